// SPDX-License-Identifier: Apache-2.0
#include "server/engine/request.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <utility>

namespace lintel {
namespace {

bool has_penalties(const SamplingOptions& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

// Says why the request cannot have its constraint; null: it can.
const char* find_fault(const GrammarConstraint& constraint, const GenerationRequest& request,
                       const Transformer& model) {
  if (constraint.grammar == nullptr) return "constraint.grammar is missing";
  if (constraint.vocabulary == nullptr) return "constraint.vocabulary is missing";
  if (!model.head().supports_filters()) return "constraint: the model's head has no masks";
  if (constraint.vocabulary->size() != static_cast<std::size_t>(model.head().vocab_size())) {
    return "constraint.vocabulary is not the model's";
  }
  if (request.stop.tokens.empty()) return "constraint: the request has no stop token";
  if (request.uses_particles()) return "constraint is not for particles";
  if (!constraint.after_reasoning) return nullptr;
  if (constraint.reasoning_end.empty()) return "constraint.reasoning_end is empty";
  if (constraint.calls && constraint.calls->grammar == nullptr) {
    return "constraint.calls.grammar is missing";
  }
  return model.tokenizer() == nullptr ? "constraint.after_reasoning: no tokenizer" : nullptr;
}

void check(const ReasoningBudget& budget, const GenerationRequest& request,
           const Transformer& model) {
  const auto is_token = [&](std::int32_t id) { return id >= 0 && id < model.config().vocab_size; };
  if (model.tokenizer() == nullptr) throw std::invalid_argument("reasoning: no tokenizer");
  if (request.uses_particles()) throw std::invalid_argument("reasoning is not for particles");
  if (budget.end.empty() || !std::ranges::all_of(budget.end, is_token)) {
    throw std::invalid_argument("reasoning.end is not a list of the model's tokens");
  }
}

std::optional<ConstraintRules> rules_of(const GenerationRequest& request,
                                        const Transformer& model) {
  if (!request.constraint) return std::nullopt;
  return ConstraintRules(*request.constraint, request.stop.tokens, model.tokenizer().get());
}

// RequestContext::unending.
std::vector<std::uint64_t> unending_tokens(const GenerationRequest& request,
                                           const Transformer& model) {
  if (request.stop.min_tokens == 0) return {};
  const auto size = static_cast<std::size_t>(model.head().vocab_size());
  std::vector<std::uint64_t> mask((size + 63) / 64, ~std::uint64_t{0});
  if (size % 64 != 0) mask.back() = (std::uint64_t{1} << size % 64) - 1;
  for (const std::int32_t token : request.stop.tokens) {
    const auto id = static_cast<std::size_t>(token);
    if (id >= size) continue;  // a model may name an end that it has no row for
    mask[id / 64] &= ~(std::uint64_t{1} << id % 64);
  }
  const bool has_others = std::ranges::any_of(mask, [](std::uint64_t word) { return word != 0; });
  return has_others && !request.stop.tokens.empty() ? mask : std::vector<std::uint64_t>();
}

}  // namespace

GenerationRequest checked_request(GenerationRequest request, const Transformer& model) {
  if (request.constraint) {
    const char* const fault = find_fault(*request.constraint, request, model);
    if (fault != nullptr) throw std::invalid_argument(fault);
  }
  if (request.stop.min_tokens != 0 && !model.head().supports_filters()) {
    throw std::invalid_argument("stop.min_tokens: the model's head has no masks");
  }
  if (request.reasoning) check(*request.reasoning, request, model);
  return request;
}

RequestContext::RequestContext(GenerationRequest given_request, const Transformer& transformer,
                               const SequenceState& sequence, std::int64_t most_tokens)
    : request(checked_request(std::move(given_request), transformer)),
      model(transformer),
      stop_strings(request.stop.strings),
      max_tokens(most_tokens),
      first_position(sequence.next_position() + static_cast<std::int64_t>(request.replay.size())),
      tokenizer(model.tokenizer().get()),
      uses_penalties(model.head().supports_filters() && has_penalties(request.sampling)),
      constraint(rules_of(request, model)),
      unending(unending_tokens(request, model)) {
  if (first_position == 0 && request.prompt.empty() && given_token(0) == nullptr) {
    if (model.config().modality != ModalityKind::kImage) {
      throw std::invalid_argument("nothing to begin the sequence with");
    }
    request.prompt.push_back(model.config().image.start_token);
  }
}

const GivenToken* RequestContext::given_token(std::int64_t position) const {
  const auto found = std::lower_bound(
      request.given.begin(), request.given.end(), position,
      [](const GivenToken& given, std::int64_t wanted) { return given.position < wanted; });
  return found == request.given.end() || found->position != position ? nullptr : &*found;
}

std::optional<std::pair<std::int32_t, TokenSource>> RequestContext::known_token(
    std::int64_t position) const {
  if (position < prompt_end()) {
    const std::int64_t index = position - first_position;
    assert(index >= 0);
    return std::pair(request.prompt[static_cast<std::size_t>(index)], TokenSource::kPrompt);
  }
  const GivenToken* const given = given_token(position);
  if (given != nullptr) return std::pair(given->token, TokenSource::kGiven);
  if (position >= drawn_end()) return std::nullopt;
  return std::pair(request.drawn[static_cast<std::size_t>(position - prompt_end())],
                   TokenSource::kSampled);
}

std::int64_t RequestContext::origin_at(std::int64_t position) const {
  return window_origin(request.window, position);
}

bool RequestContext::needs_output(std::int64_t position) const {
  const auto known = known_token(position);
  if (!known) return true;
  if (request.uses_particles() && known->second == TokenSource::kGiven) return true;
  const bool shown = known->second != TokenSource::kPrompt || request.echo_prompt;
  return shown && (request.log2_probs || request.top_log2_probs > 0);
}

}  // namespace lintel
