// Checks of a Generate request: its fields, and whether it fits the position of its sequence.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/api/violations.h"
#include "server/engine/request.h"
#include "server/models/served_model.h"
#include "server/sessions/session_image.h"

namespace lintel {

// The position of the sequence that a request continues.
struct SequencePosition {
  std::int64_t num_values = 0;  // a pending one included; 0: a new sequence
  bool has_pending = false;
  std::int64_t max_values = 0;  // 0: unbounded
};

// Longest window of a model without a max_length.
inline constexpr std::int64_t kMostWindow = 65'536;

// Notes a `window` that a request or session of this model cannot have; returns it, or 0.
std::int64_t check_window(std::int64_t window, const ModelConfig& config, Violations& violations);
// That of a request or session which names none: the initial state's (null: there is no such
// state), or else the largest one within what a model of text was trained on. 0: none, also where
// the state lacks the values that it would restart from.
std::int64_t default_window(const ModelConfig& config, const SessionImage* initial);
// Whether an image has the values that a window restarts from. Not OK where it lacks some.
grpc::Status check_window_of_state(std::int64_t window, const SessionImage& image);
// Whether the values that penalties count are known of a sequence that has num_values, those before
// `base` no more. Not OK where they are not: to count others would be another request.
grpc::Status check_penalty_window(std::int64_t penalty_window, std::int64_t base,
                                  std::int64_t num_values);

struct CheckedGenerate {
  // seed is set where the client gave one; deadline is left to the caller
  GenerationRequest request;
  bool has_seed = false;
  std::optional<std::chrono::nanoseconds> time_limit;
  int max_tokens_per_message = 0;       // 0: the server coalesces
  std::optional<std::int64_t> max_new;  // what the client asked for
  bool has_default_window = false;      // of a call without a session that named none
};

// Everything of a GenerateRequest that does not depend on the sequence it continues. `prompt`
// stands for the request's where it came in another form; session_window: of the session that it
// continues; initial: the state that it begins with, or null.
CheckedGenerate check_generate(const v1::GenerateRequest& wire,
                               std::optional<std::vector<std::int32_t>> prompt,
                               const ServedModel& model, std::optional<std::int64_t> session_window,
                               const SessionImage* initial, Violations& violations);

// The rest: prompt, given positions and max_new_tokens against where the sequence stands; settles
// checked.request.max_new_tokens. Not OK when the sequence, which errors call `subject`, is
// complete or the request cannot follow. REQUIRES: check_generate found no violation.
grpc::Status check_position(const SequencePosition& at, const ServedModel& model,
                            const std::string& subject, CheckedGenerate& checked);

// Values of the prompt as the sequence takes them: where it is empty, perhaps a start token.
// REQUIRES: check_position was OK.
std::int64_t prompt_values_of(const SequencePosition& at, const ServedModel& model,
                              const GenerationRequest& request);

// Values that the state of a request's sequence will hold at most. REQUIRES: check_position was OK.
std::int64_t values_needed(const SequencePosition& at, const CheckedGenerate& checked);

}  // namespace lintel
