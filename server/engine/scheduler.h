// SPDX-License-Identifier: Apache-2.0
// Scheduler: continuous batching of one model's requests over worker threads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/notification.h"
#include "server/engine/drafter.h"
#include "server/engine/request.h"
#include "server/engine/row_planner.h"
#include "server/engine/token_sink.h"
#include "server/engine/work_metrics.h"
#include "server/grammar/token_matcher.h"
#include "server/sessions/session_manager.h"

namespace lintel {

class PrefixCache;
class IntraOpParallelism;
class RequestQueue;
class Worker;

// True if no cache holds the model's weights: each step reads them from memory.
inline bool is_large(const Transformer& model) {
  return model.weight_bytes() > std::size_t{64} << 20;
}

// Every step mixes prompt reading and decoding: a request joins at the next step and leaves at once
// when it ends; a long prompt is read in slices of at most prefill_rows_per_step rows a step over
// all requests of a worker, so that it never stalls the decoding of others; where there are none,
// of prompt_rows_per_step. Of several prompts the one that has had fewest tokens read goes first,
// and those that wait have a share (RowPlanner). Runs of given tokens are read like prompts.
// Cancellation, deadline and a full outbox free the row within one step.
//
// Callers take turns (RequestQueue); of each, requests are admitted first come, first served, each
// when as many rows of one worker are free as it has samples; for one that fits nowhere the
// emptiest worker saves its rows, and the other workers serve those queued after it. A worker takes
// no more than its share of the load. A paused request keeps its state, gives up its rows, and when
// resumed goes before its caller's new ones.
//
// A large model runs one step of many rows faster than several of few: a worker takes requests
// until its rows are full before another worker leads, and idle workers share its steps.
//
// Threads: submit, cancel, resume, drain are thread-safe and never block on model work. With
// Options::workers = 0 there are no threads and a test calls run_one_step().
class Scheduler {
 public:
  struct Options {
    int workers = 1;                 // threads; 0: the caller runs run_one_step()
    int max_batch_rows = 64;         // rows of a worker's step, and sequences it decodes at a time
    int max_queued_requests = 1024;  // accepted but not yet in a batch; one more is refused
    // Bytes held by waiting requests, their messages included; one request always may wait.
    std::size_t max_queued_bytes = std::size_t{256} << 20;
    // Prompt rows among them while others decode; 0: as many as leave these RowPlanner::kSpeedKept
    // of their speed, by `cost` and the time that steps take.
    int prefill_rows_per_step = 32;
    // Rows of a step that reads prompts while no request decodes; 0: max_batch_rows.
    int prompt_rows_per_step = 0;
    // Most rows of a step that has drafts, if more than both.
    int most_rows_per_step = 0;
    Speculation speculation = Speculation::kAuto;
    // kAuto drafts into steps of at most so many rows, kOn one sample's drafts into so many.
    int speculation_rows = 64;
    // Threads that share a step while fewer workers have requests than there are, and fewer than
    // cores: at most so many; 0: as many as make it faster.
    int step_threads = 0;
    // Work on the mask of one row under a grammar in a step (grammar::TokenMatcher::prepare); all
    // rows of a worker may take four times that. A row that is over it waits a step.
    std::size_t mask_budget = grammar::kMaskBudget;
  };

  struct Stats {
    std::uint64_t steps = 0;
    std::uint64_t rows = 0;
    std::uint64_t shared_steps = 0;  // by several threads
    std::uint64_t prompt_tokens = 0;
    std::uint64_t generated_tokens = 0;
    std::uint64_t drafted_tokens = 0;   // fed before they were drawn
    std::uint64_t accepted_tokens = 0;  // of which right
    std::uint64_t mask_waits = 0;       // steps that rows waited for masks, summed
    std::uint64_t empty_masks = 0;      // masks that permitted no token: kNoToken
    std::uint64_t running = 0;          // requests in a batch or paused
    std::uint64_t queued = 0;
    std::array<std::uint64_t, kNumOutcomes> ended{};   // by RequestOutcome
    std::array<Duration, kNumOutcomes> ended_after{};  // since they were submitted, summed

    void add(const Stats& other);
  };

  // The clock outlives the scheduler, and so does `prefixes`, which forgets the model with it
  // (null: every prompt is read from its beginning). Throws std::invalid_argument for options that
  // make no sense, std::system_error when the system has no more threads. cost: what a step takes,
  // for kAuto and prompts beside answers; nothing: it is assumed.
  Scheduler(std::shared_ptr<const Transformer> model, const Options& options, const Clock& clock,
            PrefixCache* prefixes = nullptr, const std::optional<StepCost>& cost = {});
  ~Scheduler();  // stop()

  enum class SubmitError { kNone, kQueueFull, kDraining };

  // Takes the request, or refuses it at once: then the sink is never called and the lease is given
  // back. `handle`: the caller's, of this request alone; the sink may use it before submit returns.
  // A lease that waits_for_memory gets it in its caller's turn, or the request ends with kMemory.
  // REQUIRES: lease; the lease is of this model; num_sequences() <= max_batch_rows. Throws, the
  // sink never called, std::invalid_argument for a request that cannot run (too many samples, or
  // neither prompt nor pending token nor start token to begin with) and std::bad_alloc.
  SubmitError submit(GenerationRequest request, SessionLease lease, std::shared_ptr<TokenSink> sink,
                     const RequestHandle& handle = RequestHandle());
  // Cancels: on_finish(kCancelled) comes within one step, or the step after submit. Idempotent.
  void cancel(const RequestHandle& handle);
  void resume(const RequestHandle& handle);  // the sink has room again; idempotent

  // Some ServedAdapter has `ended` set: requests that use it end with kAdapterEnded within one
  // step. Or `retired`: those of them that wait for memory.
  void note_adapter_end();

  // Draft tokens and prompts are weighed by this cost from the next steps on. Thread-safe.
  // REQUIRES: called at most once.
  void set_step_cost(const StepCost& cost);

  // An adapter of the model is unloaded: what prompts have left that were read with it goes.
  void forget_gone_adapters();

  // Notified when a place in the queue may be free, and when no request is taken any more.
  CapacityListeners& waiting_room();

  // The model goes: requests that wait for memory end with kShutdown within one step, and more of
  // them are refused with kDraining; those that have memory continue. Returns at once.
  void end_memory_waits();
  // New requests are refused; running ones continue. Returns at once.
  void begin_drain();
  bool draining() const;
  bool idle() const;  // nothing queued, running or paused
  // Refuses new requests, ends what is left with kShutdown and joins the workers. Idempotent; not
  // to be called by a sink.
  void stop();

  // One step of a worker without threads. Returns whether there was anything to do. REQUIRES:
  // workers is 0; one caller at a time.
  bool run_one_step();

  Stats stats() const;
  SchedulerTimings timings() const;
  const Options& options() const { return options_; }

 private:
  void run_worker(Worker& worker);

  // Constant after construction.
  const std::shared_ptr<const Transformer> model_;
  const Options options_;
  const Clock& clock_;
  PrefixCache* const prefixes_;

  // Have their own locks.
  const std::unique_ptr<SchedulerMetrics> metrics_;
  const std::unique_ptr<RequestQueue> queue_;
  std::unique_ptr<IntraOpParallelism> help_;  // null: workers do not help each other
  std::atomic<bool> stopping_{false};
  Mutex stop_mutex_;  // one stop() at a time

  StepCost measured_cost_;                        // of set_step_cost(); workers refer to it
  std::vector<std::unique_ptr<Worker>> workers_;  // each used by its thread alone
  std::vector<std::thread> threads_ GUARDED_BY(stop_mutex_);
};

}  // namespace lintel
