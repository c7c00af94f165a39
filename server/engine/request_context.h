// RequestContext: what the samples of one request have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "model/transformer.h"
#include "server/engine/request.h"
#include "server/engine/stop_matcher.h"
#include "server/engine/token_sink.h"

namespace lintel {

// Constant once made.
struct RequestContext {
  // Makes the start token the prompt where there is nothing else to begin with; throws
  // std::invalid_argument where there is no start token either. most_values as
  // SessionLease::max_values.
  RequestContext(GenerationRequest given_request, const Transformer& transformer,
                 const SequenceState& sequence, std::int64_t most_values);

  GenerationRequest request;
  const Transformer& model;
  StopStrings stop_strings;
  const std::int64_t max_values;  // of the sequence: image, position table, session; 0: unbounded
  const std::int64_t first_position;  // of the prompt: tokens the sequence had before, replay's too
  const bool is_bytes;
  const bool uses_penalties;

  // Position of the first new token.
  std::int64_t prompt_end() const {
    return first_position + static_cast<std::int64_t>(request.prompt.size());
  }
  // After the tokens that an earlier run of the request has drawn.
  std::int64_t drawn_end() const {
    return prompt_end() + static_cast<std::int64_t>(request.drawn.size());
  }
  // The token at a position of the prompt or after it if it is known beforehand, and whether it is
  // the prompt's, given, or was drawn before.
  std::optional<std::pair<std::int32_t, ValueSource>> known_value(std::int64_t position) const;
  const GivenValue* given_value(std::int64_t position) const;  // null: none is
  // Position of the first token that is replayed.
  std::int64_t replay_begin() const {
    return first_position - static_cast<std::int64_t>(request.replay.size());
  }
  // Where the state begins that takes the token at this position: a function of the position alone,
  // so the bits are still one of the request.
  std::int64_t origin_at(std::int64_t position) const;
  // Whether the outputs for the prompt's tokens are needed.
  bool scores_prompt() const {
    return request.echo_prompt && (request.log2_probs || request.top_log2_probs > 0);
  }
  // Whether the model's output for the token at a position is needed.
  bool needs_output(std::int64_t position) const;
};

}  // namespace lintel
