// SPDX-License-Identifier: Apache-2.0
#include "server/engine/worker.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "server/core/threads.h"

namespace lintel {
namespace {

// Budget of a step's masks, in budgets of one row.
constexpr std::size_t kStepMaskBudgets = 4;

// Rows of a step that has drafts.
int most_drafting_rows(const Worker::Options& options) {
  if (!options.drafts) return 0;
  return options.drafts_always ? options.max_rows
                               : std::min(options.speculation_rows, options.most_rows);
}

}  // namespace

Worker::Worker(const Transformer& model, const Options& options, const Clock& clock,
               RequestQueue& queue, SchedulerMetrics& counters)
    : model_(model),
      options_(options),
      clock_(clock),
      queue_(queue),
      metrics_(counters),
      model_timer_(clock),
      planner_({.max_rows = options.max_rows,
                .prefill_rows = options.prefill_rows,
                .prompt_rows = options.prompt_rows,
                .draft_rows = most_drafting_rows(options),
                .drafts_always = options.drafts_always,
                .cost = options.step_cost}),
      workspace_(model.new_workspace(static_cast<std::size_t>(options.most_rows),
                                     static_cast<std::size_t>(most_drafting_rows(options)))) {
  workspace_.observe(&model_timer_);
  if (options.help != nullptr) {
    sharing_.emplace(*options.help, queue, static_cast<std::size_t>(options.index),
                     options.step_threads, options.is_large_model);
    workspace_.share_with(&sharing_->team());
  }
  runs_.reserve(static_cast<std::size_t>(options.max_rows));
  rows_.reserve(static_cast<std::size_t>(options.most_rows));
  drawn_ahead_.reserve(static_cast<std::size_t>(options.most_rows));
  if (options.drafts && model.has_draft_head()) {
    draft_plan_.emplace(options.step_cost, most_drafting_rows(options), options.drafts_always);
    step_.draft_plan = &*draft_plan_;
    draft_requests_.reserve(static_cast<std::size_t>(options.max_rows));
  }
  step_.most_drafts = options.drafts ? options.speculation_rows - 1 : 0;
  step_.row_mask_budget = options.mask_budget;
}

bool Worker::run_one_step() noexcept {
  return catch_exceptions([this] { return step(); },
                          [this] {
                            ThreadFailures::of_process().note(ServerThread::kWorker);
                            end_all(RequestOutcome::kInternal);
                            return true;
                          });
}

bool Worker::step() {
  step_.now = part_begun_ = clock_.now();
  if (const StepCost* const cost = new_cost_.exchange(nullptr)) {
    planner_.set_cost(*cost);
    if (draft_plan_) draft_plan_->set_cost(*cost);
  }
  const bool lost = end_lost(step_.now);
  const bool resumed = move_resumed();
  admit();
  // Another worker may have rows for requests that this one has none for.
  if (resumed && queue_.has_waiting()) queue_.wake();
  if (sharing_) sharing_->set_leading(!active_.empty());
  if (active_.empty()) {
    publish_rows();
    return lost;
  }
  runs_.clear();
  rows_.clear();
  prepare_masks();
  for (const auto& request : active_) request->propose(options_.most_rows, runs_);
  planner_.plan(runs_);
  step_model();
  settle();
  end_part(WorkPart::kDeliver);
  publish_rows();
  return true;
}

void Worker::end_part(WorkPart part) {
  const TimePoint now = clock_.now();
  step_.metrics.step[static_cast<std::size_t>(part)].observe(now - part_begun_);
  part_begun_ = now;
}

bool Worker::end_lost(TimePoint now) {
  bool any = end_lost(active_, now);
  any |= end_lost(paused_, now);
  for (auto& request : queue_.take_lost(now)) {
    request->end(request->lost(now).value_or(RequestOutcome::kCancelled), now);
    request.reset();
    any = true;
  }
  return any;
}

template <typename Container>
bool Worker::end_lost(Container& requests, TimePoint now) {
  bool any = false;
  for (auto& request : requests) {
    if (const auto outcome = request->lost(now)) {
      request->end(*outcome, now);
      request.reset();
      any = true;
    }
  }
  if (any) std::erase(requests, nullptr);
  return any;
}

bool Worker::move_resumed() {
  bool any = false;
  for (auto& request : paused_) {
    if (!request->take_resume(step_.now)) continue;
    queue_.give_back(std::move(request), RequestQueue::Place::kBehind, step_.now);
    any = true;
  }
  std::erase(paused_, nullptr);
  return any;
}

void Worker::admit() {
  publish_rows();
  bool took_some = false;
  while (true) {
    auto request = queue_.pop(options_.index, options_.max_rows);
    if (request == nullptr) {
      if (yield_rows()) continue;
      break;
    }
    took_some = true;
    if (request->start(step_)) {
      active_.push_back(std::move(request));
    } else {
      queue_.set_rows(*request, 0);
      paused_.push_back(std::move(request));
      publish_rows();  // without it, so that those after it are looked at, too
    }
  }
  // An idle worker takes what this one had no rows for: RequestQueue's least_share kept it away.
  if (took_some && queue_.has_waiting()) queue_.wake();
}

bool Worker::yield_rows() {
  SequenceGroup* const request =
      queue_.who_yields(options_.index, options_.max_rows, active_, step_.now);
  if (request == nullptr) return false;
  request->yield();
  const auto at = std::ranges::find(active_, request, &std::unique_ptr<SequenceGroup>::get);
  queue_.give_back(std::move(*at), RequestQueue::Place::kNext, step_.now);
  active_.erase(at);
  publish_rows();
  return true;
}

void Worker::prepare_masks() {
  step_.mask_budget_left = kStepMaskBudgets * options_.mask_budget;
  const std::size_t first = mask_turn_++;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    active_[(first + i) % active_.size()]->prepare_masks(step_);
  }
}

void Worker::step_model() {
  std::size_t outputs = 0;
  std::size_t hidden = 0;
  for (BatchSlice& run : runs_) {
    run.first_output = outputs;
    run.first_hidden = hidden;
    if (run.rows == 0) continue;
    run.sample->begin_step(step_.draft_plan);
    const std::size_t first = rows_.size();
    run.sample->append_rows(run.rows, rows_);
    for (const BatchRow& row : std::span(rows_).subspan(first)) {
      outputs += row.wants_output ? 1 : 0;
      hidden += row.wants_output || row.keeps_hidden ? 1 : 0;
    }
  }
  end_part(WorkPart::kSchedule);
  if (rows_.empty()) return;
  MatrixView<const float> rows;
  if (sharing_) sharing_->begin(static_cast<int>(rows_.size()), part_begun_);
  model_timer_.begin();
  try {
    rows = model_.step(rows_, workspace_);
  } catch (...) {  // out of memory: how far each sequence got is not known
    ThreadFailures::of_process().note(ServerThread::kWorker);
    for (const BatchSlice& run : runs_) {
      if (run.rows > 0) run.request->fail();
    }
    return;
  }
  end_model();
  draw_ahead(rows);
  absorb_rows(rows);
  ask_draft_head();
  end_part(WorkPart::kSample);
}

void Worker::ask_draft_head() {
  if (!draft_plan_) return;
  const auto sequences = static_cast<int>(std::ranges::count_if(runs_, [](const BatchSlice& run) {
    return run.rows > 0 && run.sample->takes_head_drafts();
  }));
  const int ahead = draft_plan_->ahead(sequences);
  const auto ask = [&] {
    draft_requests_.clear();
    for (const BatchSlice& run : runs_) {
      DraftRequest request;
      if (run.rows > 0 && run.sample->ask_head(run.first_hidden, ahead, *draft_plan_, request)) {
        draft_requests_.push_back(request);
      }
    }
    if (!draft_requests_.empty()) model_.draft(draft_requests_, workspace_);
  };
  catch_exceptions(ask, [&] {  // out of memory: without drafts
    for (const BatchSlice& run : runs_) {
      if (run.rows > 0) run.sample->stop_head();
    }
  });
}

void Worker::end_model() {
  model_timer_.enter(StepPart::kOther);  // ends the last part
  Duration all{};
  const auto observe = [&](WorkPart part, StepPart spent) {
    step_.metrics.step[static_cast<std::size_t>(part)].observe(model_timer_.spent(spent));
    all += model_timer_.spent(spent);
  };
  observe(WorkPart::kProducts, StepPart::kProducts);
  observe(WorkPart::kAttention, StepPart::kAttention);
  observe(WorkPart::kOther, StepPart::kOther);
  planner_.learn(std::chrono::duration<float>(all).count());
  if (sharing_) sharing_->end(all);
  part_begun_ = clock_.now();
}

void Worker::draw_ahead(MatrixView<const float> rows) {
  // Below it a draw takes less than handing it to another thread.
  constexpr int kLeastVocabulary = 4096;
  if (!sharing_ || !sharing_->is_shared() || model_.head().vocab_size() < kLeastVocabulary) return;
  drawn_ahead_.clear();
  for (const BatchSlice& run : runs_) {
    if (run.rows > 0 && run.sample->can_draw_ahead(run.rows)) drawn_ahead_.push_back(&run);
  }
  if (drawn_ahead_.size() < 2) return;
  const auto draw = [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
    thread_local SamplingScratch scratch;
    for (std::size_t i = begin; i < end; ++i) {
      const BatchSlice& run = *drawn_ahead_[i];
      run.sample->draw_ahead(rows.row(run.first_output), scratch);
    }
  };
  // Without memory to split them, the others are drawn one by one, below.
  catch_exceptions([&] { sharing_->team().split(drawn_ahead_.size(), draw); }, [] {});
}

void Worker::absorb_rows(MatrixView<const float> rows) {
  step_.now = part_begun_;
  metrics_.steps.fetch_add(1, std::memory_order_relaxed);
  metrics_.rows.fetch_add(rows_.size(), std::memory_order_relaxed);
  if (sharing_ && sharing_->is_shared()) {
    metrics_.shared_steps.fetch_add(1, std::memory_order_relaxed);
  }
  step_.metrics.rows.observe(static_cast<double>(rows_.size()));
  for (const BatchSlice& run : runs_) {
    if (run.rows > 0) run.request->absorb(run, rows, step_);
  }
}

// The sinks hear what ended, and requests whose sinks are full leave the batch.
void Worker::settle() {
  metrics_.prompt_tokens.fetch_add(std::exchange(step_.prompt_tokens, 0),
                                   std::memory_order_relaxed);
  metrics_.generated_tokens.fetch_add(std::exchange(step_.generated_tokens, 0),
                                      std::memory_order_relaxed);
  metrics_.drafted_tokens.fetch_add(std::exchange(step_.drafted_tokens, 0),
                                    std::memory_order_relaxed);
  metrics_.accepted_tokens.fetch_add(std::exchange(step_.accepted_tokens, 0),
                                     std::memory_order_relaxed);
  metrics_.empty_masks.fetch_add(std::exchange(step_.empty_masks, 0), std::memory_order_relaxed);
  for (auto& request : active_) {
    switch (request->end_step(step_)) {
      case SequenceGroup::Status::kRunning:
        queue_.set_rows(*request, request->slots());
        break;
      case SequenceGroup::Status::kPaused:
        queue_.set_rows(*request, 0);
        paused_.push_back(std::move(request));
        break;
      case SequenceGroup::Status::kEnded:
        request.reset();
        break;
    }
  }
  std::erase(active_, nullptr);
}

std::optional<TimePoint> Worker::next_deadline() const {
  std::optional<TimePoint> next;
  const auto look_at = [&](const auto& requests) {
    for (const auto& request : requests) {
      const auto deadline = request->deadline();
      if (deadline && (!next || *deadline < *next)) next = deadline;
    }
  };
  look_at(paused_);
  for (const auto& request : paused_) {
    const auto payment = request->next_payment();
    if (payment && (!next || *payment < *next)) next = payment;
  }
  return next;
}

void Worker::end_all(RequestOutcome outcome) noexcept {
  const TimePoint now = clock_.now();
  const auto end_these = [&](auto& requests) {
    for (auto& request : requests) {
      if (request == nullptr) continue;
      request->end(outcome, now);
      request.reset();
    }
    requests.clear();
  };
  end_these(active_);
  end_these(paused_);
  publish_rows();
}

int Worker::own_rows() const {
  int rows = 0;
  for (const auto& request : active_) rows += request->slots();
  return rows;
}

void Worker::publish_rows() { queue_.set_running_rows(options_.index, own_rows()); }

}  // namespace lintel
