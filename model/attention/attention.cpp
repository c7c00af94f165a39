#include "model/attention/attention.h"

#include <array>
#include <cmath>
#include <numbers>

#include "model/base/random.h"

namespace lintel {

// Each backend is one file without a header; these lines are all that is known of it.
std::unique_ptr<AttentionBackend> make_linear_attention(const AttentionParams& params);
std::unique_ptr<AttentionBackend> make_softmax_attention(const AttentionParams& params);
std::unique_ptr<AttentionBackend> make_lsh_attention(const AttentionParams& params);

namespace {

struct Entry {
  const char* type;
  std::unique_ptr<AttentionBackend> (*make)(const AttentionParams& params);
  AttentionConfig small;  // what default_attention() gives
};

// The table of backends. Its order is the order of attention_types().
const std::array kTable = {
    Entry{"linear", make_linear_attention, {.type = "linear"}},
    Entry{"softmax", make_softmax_attention, {.type = "softmax"}},
    Entry{"lsh", make_lsh_attention, {.type = "lsh", .rounds = 2, .bits = 4, .chunk_size = 8}},
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

void AttentionBackend::full_pass(MatrixView<const float> q, MatrixView<const float> k,
                                 MatrixView<const float> v, MatrixView<float> out,
                                 AttentionScratch& scratch) const {
  const AlignedArray<float> block = make_aligned<float>(block_floats());
  const std::unique_ptr<AttentionState> state = new_state({block.get(), block_floats()});
  const std::vector<AttentionState*> states(q.rows(), state.get());
  step(states, q, k, v, out, scratch);
  zero_memory(std::span(block.get(), block_floats()));
}

std::vector<float> draw_planes(const AttentionConfig& config, int d_head, std::uint64_t seed,
                               int layer) {
  const std::size_t per_round = static_cast<std::size_t>(config.bits) * d_head;
  std::vector<float> planes(per_round * config.rounds);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const auto round = static_cast<std::int64_t>(i / per_round);
    const DrawSource draws{.seed = seed, .position = std::int64_t{layer} << 32 | round};
    // Box and Muller 1958.
    const auto index = static_cast<std::uint32_t>(2 * (i % per_round));
    const double radius = std::sqrt(-2.0 * std::log(draws.uniform(index)));
    const double angle = 2.0 * std::numbers::pi * draws.uniform(index + 1);
    planes[i] = static_cast<float>(radius * std::cos(angle));
  }
  return planes;
}

}  // namespace lintel
