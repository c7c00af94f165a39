// Request checks: wire -> checked requests, or the fields that cannot be served and why. The only
// place where a request is judged; behind it everything may rely on what GenerationRequest
// requires.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "lintel/v1/session.pb.h"
#include "model/config/config.h"
#include "server/call/status.h"
#include "server/generation/generation.h"
#include "server/models/request_limits.h"

namespace lintel {

// Gathers violations; one pass over a request names everything that is wrong with it.
class Violations {
 public:
  // At most 64 are kept: a request of a million bad tokens needs no million messages.
  void add(std::string field, std::string description);
  bool empty() const { return violations_.empty(); }
  bool full() const { return violations_.size() >= 64; }
  const std::vector<FieldViolation>& list() const { return violations_; }
  grpc::Status status() const { return invalid_argument(violations_); }

 private:
  std::vector<FieldViolation> violations_;
};

// What a request meets: the sequence it goes on with.
struct SequencePosition {
  std::int64_t num_values = 0;  // a pending one included; 0: a new sequence
  bool has_pending = false;
  std::int64_t max_values = 0;  // of the session; 0: unbounded, or a one-shot call
};

struct CheckedGenerate {
  GenerationRequest
      request;  // seed is set where the client gave one; deadline is left to the caller
  bool has_seed = false;
  std::optional<std::chrono::nanoseconds> time_limit;
  int max_tokens_per_message = 0;       // 0: the server coalesces
  std::optional<std::int64_t> max_new;  // what the client asked for
};

// Everything of a GenerateRequest that does not depend on the sequence it goes on with.
CheckedGenerate check_generate(const v1::GenerateRequest& wire, const ModelConfig& config,
                               const Head& head, const RequestLimits& limits,
                               Violations& violations);

// The rest: prompt, given positions and max_new_tokens against where the sequence stands; settles
// checked.request.max_new_tokens. Not OK when the sequence is complete or the request cannot
// follow. REQUIRES: check_generate found no violation.
grpc::Status check_position(const SequencePosition& at, const ModelConfig& config,
                            const RequestLimits& limits, const std::string& subject,
                            CheckedGenerate& checked);

// Values that a request's sequence will hold at most. REQUIRES: check_position was OK.
std::int64_t values_needed(const SequencePosition& at, const CheckedGenerate& checked);

// Most sequences of a Score request: each takes some memory of its own, however short it is, on its
// way here and while it waits. Far more than are worth sending at once.
inline constexpr int kMaxScoreSequences = 65'536;

// The sequences of a Score request, one behind the other.
struct ScoreSequences {
  std::vector<std::int32_t> values;
  std::vector<std::size_t> ends;  // of each sequence in `values`

  std::size_t size() const { return ends.size(); }
  std::span<const std::int32_t> operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends[index - 1];
    return std::span(values).subspan(begin, ends[index] - begin);
  }
};

// Fills none when something is wrong.
ScoreSequences check_score(const v1::ScoreRequest& wire, const ModelConfig& config,
                           const RequestLimits& limits, Violations& violations);

struct CheckedList {
  std::string after_id;
  std::size_t page_size = 100;
};
CheckedList check_list(const v1::ListSessionsRequest& wire, Violations& violations);

// Values the session may hold; 0: the model's own limit.
std::int64_t check_create(const v1::CreateSessionRequest& wire, const ModelConfig& config,
                          Violations& violations);
// What check_create asks of that number, where another message carries it as `field`.
void check_session_length(std::int64_t max_tokens, const std::string& field,
                          const ModelConfig& config, Violations& violations);

// Appends the ids of `values`, at most `max_values` of them, naming what is wrong with `path`
// before the field. Shared by the checks above.
void read_values(const v1::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_values, std::vector<std::int32_t>& out, Violations& violations);
// Sampling as this head can honour it (request_sampling.cpp).
SamplingOptions read_sampling(const v1::Sampling& wire, const ModelConfig& config, const Head& head,
                              Violations& violations);

// Most values a sequence of this model can hold: the image, or the position table and the last
// value, which is never fed; 0: unbounded.
std::int64_t sequence_capacity(const ModelConfig& config);

}  // namespace lintel
