// SPDX-License-Identifier: Apache-2.0
// Worker: one batch of requests, stepped together.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/intra_op_parallelism.h"
#include "server/engine/request_queue.h"
#include "server/engine/row_planner.h"
#include "server/engine/sequence_group.h"
#include "server/engine/work_metrics.h"
#include "server/grammar/token_matcher.h"

namespace lintel {

// Adds up the parts of one step of the model.
class ModelTimer final : public StepObserver {
 public:
  explicit ModelTimer(const Clock& clock) : clock_(clock) {}
  void begin() {
    spent_ = {};
    part_ = StepPart::kOther;
    part_begun_ = clock_.now();
  }
  void enter(StepPart part) override {
    const TimePoint now = clock_.now();
    spent_[static_cast<std::size_t>(part_)] += now - part_begun_;
    part_ = part;
    part_begun_ = now;
  }
  Duration spent(StepPart part) const { return spent_[static_cast<std::size_t>(part)]; }

 private:
  const Clock& clock_;
  std::array<Duration, 3> spent_{};
  StepPart part_ = StepPart::kOther;
  TimePoint part_begun_;
};

// Owns its requests, from queue to end, and the workspace they are stepped in. Used by one thread.
class Worker {
 public:
  struct Options {
    int index = 0;  // of the queue's workers
    int max_rows = 64;
    int prefill_rows = 32;  // beside rows that clients wait for; 0: by the cost of the step
    int prompt_rows = 0;    // of a step without such rows; 0: max_rows
    int most_rows = 64;     // of any step, drafts included; at least those above
    bool drafts = false;    // as Scheduler::Options::speculation says
    bool drafts_always = false;
    int speculation_rows = 64;
    StepCost step_cost;
    int step_threads = 0;                // as StepSharing has it
    bool is_large_model = false;         // as StepSharing has it
    IntraOpParallelism* help = nullptr;  // of this queue's workers, if they help each other
    std::size_t mask_budget = grammar::kMaskBudget;  // as Scheduler::Options has it
  };

  // The references outlive the worker.
  Worker(const Transformer& model, const Options& options, const Clock& clock, RequestQueue& queue,
         SchedulerMetrics& counters);

  // Drops what is cancelled or expired, admits what fits, steps the model once and hands out what
  // it gave. Returns whether there was anything to do. Without memory for the worker's own lists
  // its requests end with kInternal, and the next step starts afresh.
  bool run_one_step() noexcept;
  // The time at which the next of the requests without rows expires, or may be able to pay.
  std::optional<TimePoint> next_deadline() const;
  std::size_t index() const { return static_cast<std::size_t>(options_.index); }
  // Sets the cost of the next steps; it outlives the worker. May be called by any thread.
  void set_step_cost(const StepCost& cost) { new_cost_.store(&cost); }
  // May be read by any thread.
  const WorkerMetrics& metrics() const { return step_.metrics; }
  // Ends all its requests.
  void end_all(RequestOutcome outcome) noexcept;

 private:
  using Requests = std::vector<std::unique_ptr<SequenceGroup>>;

  bool step();
  bool end_lost(TimePoint now);
  template <typename Container>
  bool end_lost(Container& requests, TimePoint now);
  // Puts those that need wait no longer into the queue. Returns whether there were any.
  bool move_resumed();
  void admit();
  // One of the requests gives its rows up if another caller's turn has come. Returns whether.
  bool yield_rows();
  // Makes the masks of samples under a grammar. Each step begins with another request: those whose
  // masks take long leave time for others.
  void prepare_masks();
  void step_model();
  void end_model();
  // Draws the tokens of runs that can_draw_ahead, on the threads that shared the step.
  void draw_ahead(MatrixView<const float> rows);
  void absorb_rows(MatrixView<const float> rows);
  // Asks the draft head for draft tokens of the next step.
  void ask_draft_head();
  void settle();
  // A part of the step is over (end_model: the model's three); the next begins.
  void end_part(WorkPart part);
  int own_rows() const;
  void publish_rows();

  std::atomic<const StepCost*> new_cost_{nullptr};  // null: the same as before

  // Constant after construction.
  const Transformer& model_;
  const Options options_;
  const Clock& clock_;
  RequestQueue& queue_;
  SchedulerMetrics& metrics_;

  ModelTimer model_timer_;
  RowPlanner planner_;
  std::optional<StepSharing> sharing_;
  std::optional<DraftHeadPlan> draft_plan_;  // nothing: no draft head is asked
  Workspace workspace_;
  Requests active_;  // have rows, in the order in which they got them
  Requests paused_;  // their sinks are full

  // State of the current step.
  std::vector<BatchSlice> runs_;
  std::vector<const BatchSlice*> drawn_ahead_;  // of runs_
  std::vector<BatchRow> rows_;
  std::vector<DraftRequest> draft_requests_;
  StepContext step_;
  TimePoint part_begun_;
  std::size_t mask_turn_ = 0;  // whose masks are made first
};

}  // namespace lintel
