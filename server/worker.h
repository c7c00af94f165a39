// Worker: one batch of requests, stepped together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/transformer.h"
#include "server/clock.h"
#include "server/request_queue.h"
#include "server/running_request.h"

namespace lintel {

// Totals over all workers of a scheduler. Thread-safe.
struct SchedulerCounters {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> rows{0};
  std::atomic<std::uint64_t> prompt_tokens{0};
  std::atomic<std::uint64_t> generated_tokens{0};
  std::atomic<std::uint64_t> drafted_tokens{0};
  std::atomic<std::uint64_t> accepted_tokens{0};
  std::atomic<std::uint64_t> in_flight{0};  // accepted and not yet ended
};

// Owns its requests, from queue to end, and the workspace they are stepped in. Used by one thread.
class Worker {
 public:
  struct Options {
    int max_rows = 64;
    int prefill_rows = 32;  // beside rows that others wait for
    bool drafts = false;    // as Scheduler::Options::speculation says
    bool drafts_always = false;
    int speculation_rows = 16;
  };

  // The references outlive the worker.
  Worker(const Transformer& model, const Options& options, const Clock& clock, RequestQueue& queue,
         SchedulerCounters& counters);

  // Drops what is cancelled or expired, admits what fits, steps the model once and hands out what
  // it gave. Returns whether there was anything to do.
  bool run_one_step();
  // When the next of the requests without rows expires.
  std::optional<TimePoint> next_deadline() const;
  // Ends all its requests.
  void end_all(RequestOutcome outcome);

 private:
  using Requests = std::vector<std::unique_ptr<RunningRequest>>;

  bool end_lost(TimePoint now);
  template <typename Container>
  bool end_lost(Container& requests, TimePoint now);
  void move_resumed();
  void admit();
  void grant_rows();
  void grant_drafts();
  void step_model();
  void settle();
  int own_rows() const;
  void publish_rows();

  // Constant after construction.
  const Transformer& model_;
  const Options options_;
  const Clock& clock_;
  RequestQueue& queue_;
  SchedulerCounters& counters_;

  Workspace workspace_;
  Requests active_;  // have rows
  Requests paused_;  // their sinks are full
  std::deque<std::unique_ptr<RunningRequest>>
      resumed_;             // waiting for rows, first come first served
  int published_rows_ = 0;  // of active_, as the queue knows it
  std::size_t turn_ = 0;    // whose prompt comes first when there are more of them than rows

  // Of the current step.
  std::vector<RowRun> runs_;
  std::vector<RowRun*> hungry_;    // could use more rows
  std::vector<RowRun*> drafting_;  // may have drafts
  std::vector<StepRow> rows_;
  StepContext step_;
};

}  // namespace lintel
