// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "model/config/config.h"
#include "model/tokenizer/tokenizer.h"
#include "server/api/params/generate_params.h"
#include "server/engine/request.h"
#include "server/models/model_options.h"
#include "server/models/model_registry.h"
#include "server/rpc/status.h"
#include "server/sessions/persistence/persistent_request.h"
#include "server/sessions/session.h"
#include "server/sessions/session_history.h"

namespace lintel {

// Violations: the invalid fields of a request.
//
// A request is checked once, on its way in, and no later code checks it again: here what lintel.v1
// asks for, in session_checks.h what concerns sessions, in lookup.h the names of models, adapters
// and states. server/api/kserve checks the form of the Open Inference Protocol (tensors and
// parameters); what a request asks for with them is checked here.

// Gathers violations; one pass over a request names everything that is wrong with it.
class Violations {
 public:
  // Keeps at most 64 violations: a request of a million bad tokens needs no million messages.
  void add(std::string field, std::string description) {
    if (!full()) violations_.push_back({std::move(field), std::move(description)});
  }
  bool empty() const { return violations_.empty(); }
  bool full() const { return violations_.size() >= 64; }
  const std::vector<FieldViolation>& list() const { return violations_; }
  // A constant by which programs distinguish the status.
  void set_reason(const char* reason) { reason_ = reason; }
  // REQUIRES: not empty.
  grpc::Status status() const {
    return reason_ == nullptr ? invalid_argument(violations_)
                              : invalid_argument(violations_, reason_);
  }

 private:
  std::vector<FieldViolation> violations_;
  const char* reason_ = nullptr;  // null: none
};

// The reason of a prompt that does not fit the model's context.
inline constexpr const char* kContextLengthExceeded = "CONTEXT_LENGTH_EXCEEDED";

// "given[2]"
inline std::string indexed(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

// Checks of tokens: ids, a text's bytes or an image's pixels, each from 0 to V-1.

void check_token(std::int64_t token, const std::string& field, int vocab_size,
                 Violations& violations);

// Ids that go by the name `path`.tokens.ids. Returns whether they are at most `max_tokens`.
bool check_tokens(std::span<const std::int32_t> ids, const std::string& path,
                  const ModelConfig& config, std::int64_t max_tokens, Violations& violations);

// Appends the ids of `values`, at most `max_tokens` of them, naming what is wrong with `path`
// before the field.
void read_tokens(const api::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_tokens, std::vector<std::int32_t>& out, Violations& violations);

// Stop strings that go by the name `path`: how many, and how long each is.
void check_stop_strings(const std::vector<std::string>& strings, const std::string& path,
                        const RequestLimits& limits, Violations& violations);

// Checks of a Generate request: its fields, and whether it fits the position of its sequence.

// The position of the sequence that a request continues.
struct SequencePosition {
  std::int64_t num_tokens = 0;  // a pending one included; 0: a new sequence
  bool has_pending = false;
  std::int64_t max_tokens = 0;  // 0: unbounded
};

// Longest window of a model without a max_length.
inline constexpr std::int64_t kMostWindow = 65'536;

// Notes a `window` that a request or session of this model cannot have; returns it, or 0.
std::int64_t check_window(std::int64_t window, const ModelConfig& config, Violations& violations);
// The window of a request or session which names none: the initial state's (null: there is no such
// state), or else the largest one within what a model of text was trained on. 0: none, also if the
// state lacks the tokens that it would restart from.
std::int64_t default_window(const ModelConfig& config, const SessionImage* initial);
// OK if an image has the tokens that a window restarts from.
grpc::Status check_window_of_state(std::int64_t window, const SessionImage& image);
// OK if the tokens that penalties count are known in a sequence that has num_tokens, of which those
// before `base` are not. Fails otherwise: to count others would be another request.
grpc::Status check_penalty_window(std::int64_t penalty_window, std::int64_t base,
                                  std::int64_t num_tokens);

struct CheckedGenerate {
  // seed is set where the client gave one; deadline is left to the caller
  GenerationRequest request;
  bool has_seed = false;
  std::optional<std::chrono::nanoseconds> time_limit;
  int max_tokens_per_message = 0;       // 0: the server coalesces
  std::optional<std::int64_t> max_new;  // what the client asked for
  bool has_default_window = false;      // of a call without a session that named none
  bool token_bytes = false;             // the client wants those of every token
};

// The tokens of a text prompt. begins: its sequence has none yet.
std::vector<std::int32_t> encode_prompt(const api::GenerateParams& params, const std::string& text,
                                        const Tokenizer& tokenizer, bool begins);

// Checks all of a request that does not depend on the sequence it continues. `prompt` stands for
// the request's; session_window: of the session that it continues; initial: the state that it
// begins with, or null; begins: the sequence has no tokens yet.
CheckedGenerate check_generate(const api::GenerateParams& params, const api::Values& prompt,
                               const ServedModel& model, std::optional<std::int64_t> session_window,
                               const SessionImage* initial, bool begins, Violations& violations);

// The rest: prompt, given positions and max_new_tokens against where the sequence stands; settles
// checked.request.max_new_tokens. Not OK when the sequence, which errors call `subject`, is
// complete or the request cannot follow. REQUIRES: check_generate found no violation.
grpc::Status check_position(const SequencePosition& at, const ServedModel& model,
                            const std::string& subject, CheckedGenerate& checked);

// Tokens of the prompt as the sequence takes them: where it is empty, perhaps a start token.
// REQUIRES: check_position was OK.
std::int64_t prompt_tokens_of(const SequencePosition& at, const ServedModel& model,
                              const GenerationRequest& request);

// Tokens that the state of a request's sequence will hold at most. REQUIRES: check_position was OK.
std::int64_t tokens_needed(const SequencePosition& at, const CheckedGenerate& checked);

// Checks of a Score request.

// Most sequences of a Score request: each takes some memory of its own, however short it is, on its
// way here and while it waits. Far more than are worth sending at once.
inline constexpr int kMaxScoreSequences = 65'536;

// The sequences of a Score request, concatenated.
struct ScoreSequences {
  std::vector<std::int32_t> tokens;
  std::vector<std::size_t> ends;  // of each sequence in `values`

  std::size_t size() const { return ends.size(); }
  std::span<const std::int32_t> operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends[index - 1];
    return std::span(tokens).subspan(begin, ends[index] - begin);
  }
};

// Fills none when something is wrong. tokenizer: of the model; null: it has none.
ScoreSequences check_score(const v1::ScoreRequest& wire, const ModelConfig& config,
                           const Tokenizer* tokenizer, const RequestLimits& limits,
                           Violations& violations);

// Checks of the fields that name a call and its repeats.

// Longest call_id.
inline constexpr std::size_t kMostCallIdBytes = 64;

// `prompt`: where it came in another form than the request's; else null. `lease`: of the session
// that the call continues; none: a one-shot call.
IdempotencyKey check_call_terms(const api::GenerateParams& params, const api::Values* prompt,
                                const SessionLease& lease, Violations& violations);
// Checks the position of a session that is not stored; kPositionMismatch.
SessionRefusal check_expected_position(const IdempotencyKey& terms, std::int64_t num_tokens);

}  // namespace lintel
