#include "server/engine/request_context.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "server/engine/recent_values.h"

namespace lintel {
namespace {

bool has_penalties(const SamplingOptions& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

}  // namespace

RequestContext::RequestContext(GenerationRequest given_request, const Transformer& transformer,
                               const SequenceState& sequence, std::int64_t most_values)
    : request(std::move(given_request)),
      model(transformer),
      stop_strings(request.stop.strings),
      max_values(most_values),
      first_position(sequence.next_position() + static_cast<std::int64_t>(request.replay.size())),
      is_bytes(model.config().modality == ModalityKind::kBytes),
      uses_penalties(model.head().supports_filters() && has_penalties(request.sampling)) {
  if (first_position == 0 && request.prompt.empty() && given_value(0) == nullptr) {
    if (model.config().modality != ModalityKind::kImage) {
      throw std::invalid_argument("nothing to begin the sequence with");
    }
    request.prompt.push_back(model.config().image.start_token);
  }
}

const GivenValue* RequestContext::given_value(std::int64_t position) const {
  const auto found = std::lower_bound(
      request.given.begin(), request.given.end(), position,
      [](const GivenValue& given, std::int64_t wanted) { return given.position < wanted; });
  return found == request.given.end() || found->position != position ? nullptr : &*found;
}

std::optional<std::pair<std::int32_t, ValueSource>> RequestContext::known_value(
    std::int64_t position) const {
  if (position < prompt_end()) {
    const std::int64_t index = position - first_position;
    assert(index >= 0);
    return std::pair(request.prompt[static_cast<std::size_t>(index)], ValueSource::kPrompt);
  }
  const GivenValue* const given = given_value(position);
  if (given != nullptr) return std::pair(given->value, ValueSource::kGiven);
  if (position >= drawn_end()) return std::nullopt;
  return std::pair(request.drawn[static_cast<std::size_t>(position - prompt_end())],
                   ValueSource::kSampled);
}

std::int64_t RequestContext::origin_at(std::int64_t position) const {
  return window_origin(request.window, position);
}

bool RequestContext::needs_output(std::int64_t position) const {
  const auto known = known_value(position);
  if (!known) return true;
  if (request.uses_particles() && known->second == ValueSource::kGiven) return true;
  const bool shown = known->second != ValueSource::kPrompt || request.echo_prompt;
  return shown && (request.log2_probs || request.top_log2_probs > 0);
}

}  // namespace lintel
