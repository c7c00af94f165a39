// SPDX-License-Identifier: Apache-2.0
// SequenceGroup: one accepted request, from the queue to its on_finish.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/particle_filter.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/request.h"
#include "server/engine/row_planner.h"
#include "server/engine/sequence.h"
#include "server/engine/token_sink.h"
#include "server/engine/work_metrics.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// Counts a request: as unfinished until finish(), and as in flight while it lives.
class InFlight {
 public:
  explicit InFlight(SchedulerMetrics& metrics) : metrics_(metrics) {
    metrics_.in_flight.fetch_add(1);
    metrics_.unfinished.fetch_add(1);
  }
  ~InFlight() {
    finish();
    metrics_.in_flight.fetch_sub(1);
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  void finish() {
    if (!std::exchange(is_finished_, true)) metrics_.unfinished.fetch_sub(1);
  }

 private:
  SchedulerMetrics& metrics_;
  bool is_finished_ = false;
};

class RequestQueue;
struct QueuedCaller;

// A request among those of its caller, from RequestQueue::push until it goes.
class CallerTurn {
 public:
  CallerTurn() = default;
  ~CallerTurn();
  CallerTurn(const CallerTurn&) = delete;
  CallerTurn& operator=(const CallerTurn&) = delete;

  const QueuedCaller* caller() const { return caller_; }

 private:
  friend class RequestQueue;  // which outlives the object once it has pushed its request
  RequestQueue* queue_ = nullptr;
  QueuedCaller* caller_ = nullptr;
  int rows_ = 0;         // counted as the caller's
  bool is_out_ = false;  // of the queue, accepted
};

// Owned by the queue or one worker at a time and used by that thread only, but for control().
// Answers its sink exactly once: at the latest when destroyed. Nothing here throws: an exception of
// the sink or of memory ends the request with kInternal.
class SequenceGroup {
 public:
  // prefixes: what earlier prompts left, readings: those that are being read; both outlive it;
  // null: nothing. Without memory (SessionLease::is_admitted) it has no samples until start().
  SequenceGroup(GenerationRequest request, SessionLease lease, std::shared_ptr<TokenSink> sink,
                std::shared_ptr<RequestControl> control, const Transformer& model,
                TimePoint submitted, SchedulerMetrics& counters, PrefixCache* prefixes = nullptr,
                PrefillCoalescer* readings = nullptr);
  ~SequenceGroup();
  SequenceGroup(const SequenceGroup&) = delete;
  SequenceGroup& operator=(const SequenceGroup&) = delete;

  // Rows of a step kept for it: one for every unfinished sample or particle.
  int slots() const;
  // Bytes that it holds while it waits: the tokens it brought, the objects of its samples, and what
  // its caller keeps for it. Constant.
  std::size_t held_bytes() const { return held_bytes_; }
  RequestControl& control() { return *control_; }
  // The time at which it ends unless something happens before: its deadline, and while it waits for
  // memory the end of that.
  std::optional<TimePoint> deadline() const;
  const std::string& caller() const { return request().caller; }
  bool waits_for_memory() const { return lease_.waits_for_memory(); }
  // Queues it for memory. REQUIRES: its lease waits_for_memory; once. Throws std::bad_alloc.
  void wait_for_memory(MemoryWaiter& waiter) { lease_.wait_for_memory(caller(), waiter); }
  CallerTurn& turn() { return turn_; }
  // True if it has produced a token.
  bool has_answered() const { return answered_; }
  // The time since which it has had rows, without a pause.
  TimePoint has_rows_since() const { return has_rows_since_; }
  // The outcome if it must end now: it was cancelled, its time is up, the time in which it could
  // get memory is, or its adapter has ended.
  std::optional<RequestOutcome> lost(TimePoint now) const;
  // Makes it end with this outcome, though it gets its memory now.
  void set_lost(RequestOutcome outcome) { lost_ = outcome; }

  // Joins a batch, for the first time or again; what needs no row happens now. Returns whether it
  // may continue at once, or begins with a pause.
  bool start(StepContext& step);
  // Gives its rows up between two steps, to get others later.
  void yield();
  // Makes masks for the tokens that its samples draw next; nothing without a grammar.
  void prepare_masks(StepContext& step);
  // The rows it could use in a step of at most `max_rows`.
  void propose(int max_rows, std::vector<BatchSlice>& runs);
  // The step failed: ends at end_step with kInternal.
  void fail() { failure_ = RequestOutcome::kInternal; }
  // Takes what the rows of a run gave.
  void absorb(const BatchSlice& run, MatrixView<const float> outputs, StepContext& step);

  enum class Status { kRunning, kPaused, kEnded };
  // Reports to the sink what finished in this step. A paused request gives up its rows.
  Status end_step(StepContext& step);
  // True if a paused request may continue: its sink has room, it can pay for its tokens, and need
  // not wait for another that reads the beginning of its prompt.
  bool take_resume(TimePoint now);
  // The time at which a paused request that cannot pay, or waits for another, should be asked
  // again.
  std::optional<TimePoint> next_payment() const {
    return wait_.reading != nullptr ? wait_until_ : throttled_until_;
  }

  // Ends it from outside. kCancelled, kDeadline, kShutdown and kAdapterEnded flush and report what
  // there is; kInternal discards the session, whose state is in doubt. No effect when ended.
  void end(RequestOutcome outcome, TimePoint now);
  // Gives the lease of a request back that was never accepted, and leaves the sink alone.
  void refuse();

 private:
  const GenerationRequest& request() const { return context_ ? context_->request : request_; }
  // Makes the context and the samples. REQUIRES: the lease is admitted.
  void make_samples();
  // The same, with the sequence, of a request that waited for memory.
  void begin_admitted() noexcept;
  // The end of the time in which it may get memory; nothing: it waits for none.
  std::optional<TimePoint> end_of_wait() const;
  // Runs `body` unless something failed before; what it throws becomes failure_.
  template <typename Body>
  void attempt(Body&& body) noexcept;
  bool begin(StepContext& step);
  // True if the prompt may begin with a state that another left.
  bool takes_prefix() const;
  // True if another reads a beginning of the prompt that is worth waiting for.
  bool waits_for_prefix(TimePoint now);
  // Continues the sequence after a beginning of the prompt that was read before.
  void begin_behind_prefix(TimePoint now);
  // Keeps the state where another prompt may continue from it.
  void keep_prefix(TimePoint now);
  // Keeps the state behind the answer, where the conversation's next turn may begin with it.
  // REQUIRES: its only sample has ended by a stop token.
  void keep_end();
  // Its next step ends where a state is to be kept.
  void stop_where_wanted();
  std::int64_t next_kept() const { return keep_at_.empty() ? 0 : keep_at_.front().tokens; }
  void end_reading(TimePoint now);
  PrefixCache::Reader reader() const { return {model_, lease_.adapter(), lease_.owner()}; }
  PrefixPartKey prefix_key() const { return {&model_, lease_.adapter().get(), lease_.owner()}; }
  void fork_when_prompt_read(StepContext& step);
  // Pays for what the step has given so far, and notes how long to pause.
  void pay(TimePoint now);
  // Reports the samples that finished since the last call, and frees their memory; `is_last` gives
  // the lease back first.
  void report_finished(TimePoint now, bool is_last);
  // The same for a request that ends before it has memory.
  void report_unbegun(RequestOutcome outcome, TimePoint now);
  std::vector<SampleResult> take_results(TimePoint now, bool is_last);
  void release();

  SchedulerMetrics& metrics_;
  InFlight in_flight_;  // first: until everything is gone
  CallerTurn turn_;
  // The lease before all that refers to its sequence.
  SessionLease lease_;
  const std::shared_ptr<TokenSink> sink_;
  const std::shared_ptr<RequestControl> control_;
  const Transformer& model_;
  GenerationRequest request_;              // until there is a context, which takes it
  std::optional<RequestContext> context_;  // nothing: the request has no memory yet
  SampleEvents outlet_;
  // All tokens of a conversation's turn.
  struct TurnLog final : TokenLog {
    void append(std::int32_t token, TokenSource /*source*/) override { tokens.push_back(token); }
    std::vector<std::int32_t> tokens;
  };
  std::optional<TurnLog> turn_log_;  // where the state behind the answer may be kept
  std::vector<Sequence> samples_;    // or particles, of which samples are chosen in the end
  std::vector<bool> reported_;       // per sample
  std::optional<ParticleFilter>
      particles_;  // once they are forked; none: samples are what they are

  PrefixCache* const prefixes_;       // null: none
  PrefillCoalescer* const readings_;  // null: none
  struct KeepPlace {
    std::int64_t tokens = 0;  // of the prompt
    KeptFor kept_for = KeptFor::kPrefix;
  };
  std::vector<KeepPlace> keep_at_;       // that are to come, ascending
  PrefillCoalescer::Shared reading_;     // its own, while it reads its prompt
  PrefillCoalescer::Wait wait_;          // for another's
  std::optional<TimePoint> wait_until_;  // it has waited, and does no longer than that
  bool has_place_ = false;  // in its sequence: after what another has read, or at its beginning
  bool has_begun_ = false;

  const std::size_t held_bytes_;
  const TimePoint submitted_;
  std::optional<TimePoint> started_;
  TimePoint has_rows_since_;
  bool forked_ = false;    // prompt read, every sample has a sequence of its own
  bool answered_ = false;  // a new token was produced
  bool ended_ = false;
  std::optional<RequestOutcome> lost_;
  std::optional<RequestOutcome> failure_;

  std::int64_t unpaid_tokens_ = 0;  // read and produced
  std::optional<TimePoint> throttled_until_;
};

}  // namespace lintel
