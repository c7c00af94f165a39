#include "client/cli/generation_defaults.h"

#include <algorithm>

namespace lintel::cli {
namespace {

// The default limit where a sequence has no end of its own: as long as a user likes to wait.
constexpr std::uint32_t kDefaultNewTokens = 256;

}  // namespace

std::string format_for(const GenerateFlags& flags, const v1::Model& model) {
  const bool bytes = model.modality() == "bytes";
  if (flags.format == "text" && !bytes) {
    throw UsageError("--format text: this model's tokens are no bytes; use tokens or jsonl");
  }
  const std::string format = !flags.format.empty() ? flags.format : bytes ? "text" : "tokens";
  if (flags.log_probs && format == "text") {
    throw UsageError("--log-probs goes with --format tokens or jsonl");
  }
  return format;
}

std::uint32_t default_new_tokens(const v1::Model& model) {
  const std::uint32_t limit = model.limits().max_new_tokens();
  return limit == 0 ? kDefaultNewTokens : std::min(limit, kDefaultNewTokens);
}

std::string window_note(std::int64_t window) {
  const std::string size = std::to_string(window);
  return "lintel: text longer than what the model was trained on continues in a window of " + size +
         " values (--window " + size + "; --window 0: none)\n";
}

}  // namespace lintel::cli
