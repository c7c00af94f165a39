// What the scheduler runs: checked requests in, values and outcomes out. Free of gRPC.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/head/head.h"
#include "server/base/clock.h"
#include "server/base/token_allowance.h"

namespace lintel {

// Only sampled values stop. A stop string is matched over consecutive sampled bytes of the
// sequence, across calls of a session; a given or prompt byte in between breaks the match.
struct StopOptions {
  std::vector<std::int32_t> tokens;
  std::vector<std::string> strings;  // byte models only; 1 .. kMaxStopStringBytes long
  bool include_in_output = false;
};

// Longest permitted stop string: a sequence remembers one byte less for matches across calls.
inline constexpr std::size_t kMaxStopStringBytes = 256;

// A known value at an absolute position of the sequence.
struct GivenValue {
  std::int64_t position = 0;
  std::int32_t value = 0;
};

// REQUIRES (request_checks sees to it): tokens in 0 .. V-1; prompt within the model's length; given
// ascending by position, none before the first new value (but position 0 when the sequence is empty
// and so is the prompt); num_samples 1 with a session.
//
// What a call leaves in its session: every value it read or produced, the last one pending
// (produced, not yet fed), so that the next call continues without resending anything. That
// includes a stop token or stop string excluded from the output: it was sampled, and belongs to the
// sequence. Also a cancelled or expired call leaves what it had read and produced.
struct GenerationRequest {
  std::vector<std::int32_t>
      prompt;  // fed after the sequence's pending value, if any; empty with an
               // empty sequence: the start token, if no given value is at 0
  // Values to produce: given ones included, and those a stop excludes from the output. 0: the
  // prompt is read (its last value stays pending) and the reason is kLength.
  std::int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  std::uint64_t seed = 0;  // sample i draws from seed + i (mod 2^64)
  StopOptions stop;
  bool log2_probs = false;
  int top_log2_probs = 0;    // TokenEvent::top; independent of log2_probs
  bool echo_prompt = false;  // every sample gets the echo
  int num_samples = 1;
  std::vector<GivenValue> given;
  std::optional<TimePoint> deadline;
  std::shared_ptr<TokenAllowance> allowance;  // null: as many tokens as there are
  // What the caller keeps of this request until it is over, in bytes: all sequences of a Score,
  // for one, by which each has its share.
  std::size_t held_bytes = 0;
};

enum class ValueSource { kSampled, kGiven, kPrompt };

struct TopValue {
  std::int32_t token = 0;
  float log2_prob = 0;
};

struct TokenEvent {
  int sample = 0;
  std::int64_t position = 0;
  std::int32_t token = 0;
  ValueSource source = ValueSource::kSampled;
  std::optional<float>
      log2_prob;                  // absent when not asked for, or for the first value of a sequence
  std::span<const TopValue> top;  // valid during the call only
};

enum class FinishReason {
  kLength,  // max_new_tokens
  kStopToken,
  kStopString,
  kEndOfSequence,  // image complete, position table or session full; wins over kLength
  kCancelled,
  kDeadline,
};

struct SampleResult {
  int sample = 0;
  FinishReason reason = FinishReason::kLength;
  std::int64_t prompt_tokens = 0;     // read by this call, a start token included
  std::int64_t reused_tokens = 0;     // values the session already held
  std::int64_t generated_tokens = 0;  // sampled and given, those a stop excluded included
  std::int64_t given_tokens = 0;      // of which given
  std::int64_t drafted_tokens = 0;    // guessed and fed before they were drawn
  std::int64_t accepted_tokens = 0;   // of which right
  std::uint64_t seed = 0;
  Duration queued{};      // submitted until in a batch
  Duration prompt{};      // until the first new value (or the end)
  Duration generation{};  // first new value until the last
  std::string stop_string;
  std::int64_t position = 0;  // values of the sequence so far
};

// How a whole request ended. With kDone, kCancelled, kDeadline and kShutdown every sample has had
// its on_sample_finish (the reason of those still unfinished is kCancelled or kDeadline, with what
// they had produced); with the others only the samples that had finished before.
enum class RequestOutcome {
  kDone,       // every sample finished by itself
  kCancelled,  // Scheduler::cancel
  kDeadline,   // GenerationRequest::deadline passed, in a batch, paused or still queued
  kShutdown,   // drain timeout or stop; the samples have ended with kCancelled
  kNonFinite,  // the model produced NaN or infinity; the session is gone
  kInternal,   // an exception (out of memory, a sink that threw); the session is gone
};

// Receives what a request produces. Called by one scheduler thread at a time, never under a
// scheduler lock; the calls must not block. A sink may call Scheduler::resume or cancel from
// anywhere, also from inside these calls. A sink that throws ends its request with kInternal.
//
// The lease is given back before the last on_sample_finish and before on_finish: whoever saw the
// end of a call can continue its session at once.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // Returns whether there is room for more. On false the whole request pauses after this step,
  // which frees its rows for others, until Scheduler::resume; tokens of the running step still
  // arrive.
  virtual bool on_token(const TokenEvent& event) = 0;
  virtual void on_sample_finish(const SampleResult& result) = 0;
  // After the last on_token and on_sample_finish of a step that had any: the moment to flush.
  virtual void on_step_end() = 0;
  // Exactly once, last, always, for every accepted request.
  virtual void on_finish(RequestOutcome outcome) = 0;
};

}  // namespace lintel
