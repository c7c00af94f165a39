// SPDX-License-Identifier: Apache-2.0
// TokenSink: the receiver of what a request produces, and its terms. Free of gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/engine/particle_set.h"
#include "server/sessions/session_error.h"
#include "server/sessions/session_history.h"

namespace lintel {

struct TopToken {
  std::int32_t token = 0;
  float log2_prob = 0;
};

struct TokenEvent {
  int sample = 0;
  std::int64_t position = 0;
  std::int32_t token = 0;
  TokenSource source = TokenSource::kSampled;
  std::optional<float>
      log2_prob;                  // absent when not asked for, or for the first token of a sequence
  std::span<const TopToken> top;  // valid during the call only
  // Bytes at the token's end that are not part of the text: a stop string took them, or ended
  // before them.
  std::int32_t cut_bytes = 0;
};

// A TokenEvent that waits, and what its `top` refers to.
class HeldToken {
 public:
  explicit HeldToken(const TokenEvent& event)
      : event_(event), top_(event.top.begin(), event.top.end()) {}

  std::int64_t position() const { return event_.position; }
  std::int32_t token() const { return event_.token; }
  void cut(std::size_t bytes) { event_.cut_bytes = static_cast<std::int32_t>(bytes); }
  // Valid until the object is moved.
  const TokenEvent& event() {
    event_.top = top_;
    return event_;
  }

 private:
  TokenEvent event_;
  std::vector<TopToken> top_;
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
  std::optional<std::int32_t> stop_token;  // that ended it, reported or not
  // Generated and not reported: the stop token, or tokens whose text a stop string took.
  std::vector<std::int32_t> omitted_tokens;
  std::int32_t cut_bytes = 0;     // of the last token that was reported: TokenEvent::cut_bytes
  std::int64_t position = 0;      // tokens of the sequence so far
  std::int64_t window = 0;        // of the call, in tokens; 0: none
  std::int64_t restarts = 0;      // of the state, for the tokens of this call
  std::string digest;             // of a session's history so far, hexadecimal
  bool numerics_changed = false;  // the tokens before this call have another machine's bits
};

// The end of a whole request. With kDone, kCancelled, kDeadline, kShutdown and kAdapterEnded every
// sample has had its on_sample_finish (the reason of those still unfinished is kCancelled or
// kDeadline, with what they had produced); with the others only the samples that had finished
// before.
class RequestOutcome {
 public:
  enum Kind {
    kDone,          // every sample finished by itself
    kCancelled,     // Scheduler::cancel
    kDeadline,      // GenerationRequest::deadline passed, in a batch, paused or still queued
    kShutdown,      // drain timeout or stop; the samples have ended with kCancelled
    kNonFinite,     // the model produced NaN or infinity; the session is gone
    kInternal,      // an exception (out of memory, a sink that threw); the session is gone
    kAdapterEnded,  // its adapter was unloaded, and the drain timeout passed; as kShutdown
    kGrammarWork,   // its grammar takes more work for a token than is served
    kNoToken,       // its grammar permits no token of the model next: see needed_byte()
    kMemory,        // it waited for memory, and none came: nothing of it ran
    // The server ends, and the call continues where it is repeated; not set by a scheduler.
    kMoved,
    // The storage of its session refused, see error(); not set by a scheduler. No sample's end
    // was reported; the session is as the storage has it.
    kSession,
  };
  constexpr RequestOutcome(Kind kind = kDone) : kind_(kind) {}
  constexpr RequestOutcome(SessionError error) : kind_(kSession), error_(error) {}
  // The outcome kNoToken.
  static constexpr RequestOutcome no_token(int needed_byte) {
    RequestOutcome outcome(kNoToken);
    outcome.needed_byte_ = static_cast<std::int16_t>(needed_byte);
    return outcome;
  }

  constexpr operator Kind() const { return kind_; }
  constexpr SessionError error() const { return error_; }  // kNone but for kSession
  // The only byte that the grammar permits next; -1: there are several, or none.
  constexpr int needed_byte() const { return needed_byte_; }

 private:
  Kind kind_;
  SessionError error_ = SessionError::kNone;
  std::int16_t needed_byte_ = -1;
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
  // Flushes, after the last on_token and on_sample_finish of a step that had any.
  virtual void on_step_end() = 0;
  // Ends the request: called exactly once, last, for every accepted request.
  virtual void on_finish(RequestOutcome outcome) = 0;
};

// RequestHandle: what others may ask of a request while a worker owns it.

// Shared by a request and its handles; freed with the last of them. Thread-safe.
struct RequestControl {
  std::atomic<bool> cancelled{false};  // stays set
  // The sink has room again. Cleared before every on_token of a step until one is refused, so that
  // a resume that comes between the refusal and the end of the step is not lost, and an old one
  // does not undo a later pause.
  std::atomic<bool> resumed{false};
  // Tokens of the prompt that were not read: set before the request's first token.
  std::atomic<std::int64_t> cached_tokens{0};
};

// A request as its caller knows it: made first and given to Scheduler::submit, so that a sink has
// it from its first call on, and a request may be cancelled before it is submitted. Copies mean the
// same request, and outlive it safely.
class RequestHandle {
 public:
  RequestHandle() : control_(std::make_shared<RequestControl>()) {}

  // SampleResult::cached_tokens of all samples, known from the request's first token on.
  std::int64_t cached_tokens() const { return control_->cached_tokens.load(); }

 private:
  friend class Scheduler;
  std::shared_ptr<RequestControl> control_;
};

// SampleEvents: where the samples of one request put what they have for its sink.

// Passes events to a sink and notes when it is full. Used by the one thread that runs the request.
class SampleEvents {
 public:
  SampleEvents(TokenSink& sink, RequestControl& control, int num_samples)
      : sink_(sink), control_(control), num_samples_(num_samples) {}

  // Lets the set keep new tokens, which are a particle's from now on; it decides later what to
  // report of them. The set outlives the outlet, or the last call of emit().
  void keep_in(ParticleSet& particles) { particles_ = &particles; }

  // Prompt tokens are read once and go to every sample.
  void emit(const TokenEvent& event) {
    if (event.source == TokenSource::kPrompt) return tell_all(event);
    if (particles_ == nullptr) return tell(event);
    particles_->append(event.sample, {.token = event.token,
                                      .log2_prob = event.log2_prob.value_or(0.0f),
                                      .has_log2_prob = event.log2_prob.has_value(),
                                      .source = event.source});
  }
  // Passes on the probability that a particle gives to a known token. REQUIRES: keep_in().
  void weigh(int particle, double log2_prob) { particles_->weigh(particle, log2_prob); }

  void tell_all(TokenEvent event) {
    for (event.sample = 0; event.sample < num_samples_; ++event.sample) tell(event);
  }
  void tell(const TokenEvent& event) {
    if (!full) control_.resumed.store(false);
    delivered = true;
    if (!sink_.on_token(event)) full = true;
  }

  bool full = false;       // a call was refused: the request pauses after this step
  bool delivered = false;  // something since the last on_step_end

 private:
  TokenSink& sink_;
  RequestControl& control_;
  const int num_samples_;
  ParticleSet* particles_ = nullptr;  // null: tokens are reported as they come
};

}  // namespace lintel
