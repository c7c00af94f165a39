// TokenSink: the receiver of what a request produces, and its terms. Free of gRPC.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "server/core/clock.h"
#include "server/sessions/value_source.h"

namespace lintel {

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
      log2_prob;                  // absent when not asked for, or for the first token of a sequence
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
  std::int64_t cached_tokens = 0;     // of the prompt, before those: a state was there
  std::int64_t skipped_tokens = 0;    // of the prompt, before the last place where a window begins
  std::int64_t reused_tokens = 0;     // tokens the session already had
  std::int64_t replayed_tokens = 0;   // read once more: the state lacked them, or was reset
  std::int64_t generated_tokens = 0;  // sampled and given, those a stop excluded included
  std::int64_t given_tokens = 0;      // of which given
  std::int64_t drafted_tokens = 0;    // fed before they were drawn
  std::int64_t accepted_tokens = 0;   // of which right
  std::uint64_t seed = 0;
  std::optional<double> log2_evidence;  // of particles that came to their end
  Duration queued{};                    // submitted until in a batch
  Duration prompt{};                    // until the first new token (or the end)
  Duration generation{};                // first new token until the last
  std::string stop_string;
  std::int64_t position = 0;      // tokens of the sequence so far
  std::int64_t window = 0;        // of the call, in tokens; 0: none
  std::int64_t restarts = 0;      // of the state, for the tokens of this call
  std::string digest;             // of a session's history so far, hexadecimal
  bool numerics_changed = false;  // the tokens before this call have another machine's bits
};

// How a whole request ended. With kDone, kCancelled, kDeadline, kShutdown and kAdapterEnded every
// sample has had its on_sample_finish (the reason of those still unfinished is kCancelled or
// kDeadline, with what they had produced); with the others only the samples that had finished
// before.
enum class RequestOutcome {
  kDone,          // every sample finished by itself
  kCancelled,     // Scheduler::cancel
  kDeadline,      // GenerationRequest::deadline passed, in a batch, paused or still queued
  kShutdown,      // drain timeout or stop; the samples have ended with kCancelled
  kNonFinite,     // the model produced NaN or infinity; the session is gone
  kInternal,      // an exception (out of memory, a sink that threw); the session is gone
  kAdapterEnded,  // its adapter was unloaded, and the drain timeout passed; as kShutdown
  // Not of a scheduler, but of the store that its session outlives the process in. No sample's end
  // was reported; the session is as the store has it.
  kStoreFull,
  kStoreAway,
  kStoreBroken,
  kFenced,  // another process has the session now
  // Nor this: the server ends, and the call continues where it is repeated.
  kMoved,
  kStoreDamaged,  // of the store, too: what it has of the session is not what was written
};

// Receives what a request produces. Called by one scheduler thread at a time, never under a
// scheduler lock; the calls must not block. A sink may call Scheduler::resume or cancel from
// anywhere, also from inside these calls. A sink that throws ends its request with kInternal.
//
// The lease is released before the last on_sample_finish and before on_finish: a client that
// received the end of its call can continue its session at once.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // Returns whether there is room for more. On false the whole request pauses after this step,
  // which frees its rows for others, until Scheduler::resume; tokens of the running step still
  // arrive.
  virtual bool on_token(const TokenEvent& event) = 0;
  // The same, where no token comes yet: it is asked by a sink that holds them back for this one.
  virtual bool has_room() const { return true; }
  virtual void on_sample_finish(const SampleResult& result) = 0;
  // After the last on_token and on_sample_finish of a step that had any: the moment to flush.
  virtual void on_step_end() = 0;
  // Exactly once, last, always, for every accepted request.
  virtual void on_finish(RequestOutcome outcome) = 0;
};

}  // namespace lintel
