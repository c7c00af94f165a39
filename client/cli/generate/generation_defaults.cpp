#include "client/cli/generate/generation_defaults.h"

#include <algorithm>

namespace lintel::cli {
namespace {

// Where nothing ends a sequence but a number: as many values as somebody who did not think of it
// likes to wait for.
constexpr std::uint32_t kDefaultNewTokens = 256;

std::size_t prompt_size(const v1::GenerateRequest& request) {
  const v1::Values& prompt = request.prompt();
  return prompt.has_text() ? prompt.text().size()
                           : static_cast<std::size_t>(prompt.tokens().ids_size());
}

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

std::int64_t trained_window(const v1::Model& model) {
  constexpr std::int64_t kMostWindow = 65'536;  // of a model without a max_length
  if (model.has_image() || model.trained_length() == 0) return 0;
  const std::int64_t most = model.max_length() > 0 ? model.max_length() : kMostWindow;
  return std::min(model.trained_length(), most) / 2 * 2;
}

std::int64_t default_window(const v1::Model& model, const v1::GenerateRequest& request) {
  // A session has its own; what a named state has seen is not known here.
  if (!request.session_id().empty() || !request.initial_state().empty()) return 0;
  const std::int64_t values =
      static_cast<std::int64_t>(prompt_size(request)) + std::int64_t{request.max_new_tokens()};
  return values <= model.trained_length() ? 0 : trained_window(model);
}

std::string window_note(const v1::Model& model, std::int64_t window) {
  return "lintel: the model was trained on " + std::to_string(model.trained_length()) +
         " values at once: longer text gets a window of " + std::to_string(window) + " (--window " +
         std::to_string(window) + "; --window 0: none)\n";
}

}  // namespace lintel::cli
