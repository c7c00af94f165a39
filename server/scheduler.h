// Scheduler: continuous batching of one model's requests over worker threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "model/transformer.h"
#include "server/clock.h"
#include "server/generation.h"
#include "server/session_store.h"

namespace lintel {

// A submitted request, for cancel() and resume(). Cheap to copy; outlives the request safely.
class RequestHandle {
 public:
  RequestHandle() = default;

 private:
  friend class Scheduler;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Every step mixes prompt reading and decoding: a request joins at the next step and leaves at once
// when it ends; a long prompt is read in slices of at most prefill_rows_per_step rows a step over
// all requests of a worker, so that it never stalls the decoding of others. Cancellation, deadline
// and a full outbox free the row within one step.
//
// Threads: submit, cancel, resume, drain are thread-safe and never block on model work. With
// Options::workers = 0 there are no threads and a test calls run_one_step().
class Scheduler {
 public:
  struct Options {
    int workers = 1;                 // threads; 0: the caller runs run_one_step()
    int max_batch_rows = 64;         // rows of a worker's step, and sequences it decodes at a time
    int max_queued_requests = 1024;  // accepted but not yet in a batch; one more is refused
    int prefill_rows_per_step = 32;  // prompt rows among them while others decode
  };

  struct Stats {
    std::uint64_t steps = 0;
    std::uint64_t rows = 0;
    std::uint64_t prompt_tokens = 0;
    std::uint64_t generated_tokens = 0;
    std::uint64_t running = 0;  // requests in a batch or paused
    std::uint64_t queued = 0;
  };

  Scheduler(std::shared_ptr<const Transformer> model, const Options& options, const Clock& clock);
  ~Scheduler();  // stop()

  enum class SubmitError { kNone, kQueueFull, kDraining };
  struct SubmitResult {
    RequestHandle handle;
    SubmitError error = SubmitError::kNone;
  };

  // Takes the request, or refuses it at once: then the sink is never called and the lease is given
  // back.
  SubmitResult submit(GenerationRequest request, SessionLease lease,
                      std::shared_ptr<TokenSink> sink);
  void cancel(const RequestHandle& handle);  // on_finish(kCancelled) within one step; idempotent
  void resume(const RequestHandle& handle);  // the sink has room again; idempotent

  // New requests are refused; running ones go on. Returns at once.
  void begin_drain();
  bool idle() const;  // nothing queued, running or paused
  // Ends what is left with kShutdown and joins the workers. Idempotent.
  void stop();

  // One step of a worker without threads. Returns whether there was anything to do.
  bool run_one_step();

  Stats stats() const;
  const Options& options() const { return options_; }

 private:
  // ... (implementation's choice)
  const Options options_;
};

}  // namespace lintel
