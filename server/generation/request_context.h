// RequestContext: what the samples of one request have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "model/network/transformer.h"
#include "server/generation/request.h"
#include "server/generation/stop_matcher.h"
#include "server/generation/token_sink.h"

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
  const std::int64_t first_position;  // of the prompt: values the sequence had before, replay's too
  const bool is_bytes;
  const bool uses_penalties;

  // Position of the first new value.
  std::int64_t prompt_end() const {
    return first_position + static_cast<std::int64_t>(request.prompt.size());
  }
  // The value at a position if it is known beforehand, and whether it is the prompt's or given;
  // values of the replay count as the prompt's.
  std::optional<std::pair<std::int32_t, ValueSource>> known_value(std::int64_t position) const;
  // Whether the sequence had this value before the call: it is replayed.
  bool is_replayed(std::int64_t position) const { return position < first_position; }
  // Whether the model's output for the value at a position is needed.
  bool needs_output(std::int64_t position) const;
};

}  // namespace lintel
