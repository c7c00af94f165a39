#include "model/attention/attention.h"

#include <array>

namespace lintel {

// Each backend is one file without a header; these lines are all that is known of it.
std::unique_ptr<AttentionBackend> make_linear_attention(const AttentionParams& params);

namespace {

struct Entry {
  const char* type;
  std::unique_ptr<AttentionBackend> (*make)(const AttentionParams& params);
  AttentionConfig small;  // what default_attention() gives
};

// The table of backends. Its order is the order of attention_types().
const std::array kTable = {
    Entry{"linear", make_linear_attention, {.type = "linear"}},
};

const Entry& find(const std::string& type) {
  std::string known;
  for (const Entry& entry : kTable) {
    if (type == entry.type) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.type);
  }
  throw ModelError("attention.type is \"" + type + "\"; this build has: " + known);
}

}  // namespace

std::unique_ptr<AttentionBackend> make_attention(const AttentionParams& params) {
  return find(params.config.type).make(params);
}

std::vector<std::string> attention_types() {
  std::vector<std::string> types;
  for (const Entry& entry : kTable) types.push_back(entry.type);
  return types;
}

AttentionConfig default_attention(const std::string& type) { return find(type).small; }

}  // namespace lintel
