#include "server/scheduler/worker.h"

#include <algorithm>
#include <utility>

namespace lintel {
namespace {

// What one more row adds to a step, as a share of a step of one row: the weights are read anyway,
// and the narrower they are the less that is. Measured between 0.25 and 0.4; where much can be
// guessed the time of a request hardly depends on it, where little can, a low one costs time.
float row_cost(WeightType type) { return type == WeightType::kInt8 ? 0.35f : 0.25f; }

// How likely a draft must be right to be worth a row in a step of `rows` that is expected to yield
// `values`: as many values for its time as the step has without it.
float least_probability(float row_cost, int rows, float values) {
  return row_cost * values / (1.0f + row_cost * static_cast<float>(rows - 1));
}

// Rows of a step that has drafts.
int most_drafting_rows(const Worker::Options& options) {
  if (!options.drafts) return 0;
  return options.drafts_always ? options.max_rows
                               : std::min(options.speculation_rows, options.max_rows);
}

}  // namespace

Worker::Worker(const Transformer& model, const Options& options, const Clock& clock,
               RequestQueue& queue, SchedulerCounters& counters)
    : model_(model),
      options_(options),
      clock_(clock),
      queue_(queue),
      counters_(counters),
      model_timer_(clock),
      workspace_(model.new_workspace(static_cast<std::size_t>(options.max_rows),
                                     static_cast<std::size_t>(most_drafting_rows(options)))) {
  workspace_.observe(&model_timer_);
  runs_.reserve(static_cast<std::size_t>(options.max_rows));
  rows_.reserve(static_cast<std::size_t>(options.max_rows));
  hungry_.reserve(static_cast<std::size_t>(options.max_rows));
  drafting_.reserve(static_cast<std::size_t>(options.max_rows));
  step_.most_drafts = options.drafts ? options.speculation_rows - 1 : 0;
}

bool Worker::run_one_step() noexcept {
  try {
    return step();
  } catch (...) {
    end_all(RequestOutcome::kInternal);
    return true;
  }
}

bool Worker::step() {
  step_.now = part_begun_ = clock_.now();
  const bool lost = end_lost(step_.now);
  move_resumed();
  admit();
  if (active_.empty()) {
    publish_rows();
    return lost;
  }
  runs_.clear();
  rows_.clear();
  for (const auto& request : active_) request->propose(options_.max_rows, runs_);
  grant_rows();
  grant_drafts();
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
  any |= end_lost(resumed_, now);
  if (any) workspace_.forget_drafts();
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

void Worker::move_resumed() {
  for (auto& request : paused_) {
    if (request->take_resume(step_.now)) resumed_.push_back(std::move(request));
  }
  std::erase(paused_, nullptr);
}

// Resumed requests come before queued ones: they hold memory already.
void Worker::admit() {
  int own = own_rows();
  while (!resumed_.empty() && own + resumed_.front()->slots() <= options_.max_rows) {
    own += resumed_.front()->slots();
    active_.push_back(std::move(resumed_.front()));
    resumed_.pop_front();
  }
  publish_rows();
  while (resumed_.empty()) {
    auto request = queue_.pop(options_.index, options_.max_rows);
    if (request == nullptr) return;
    if (request->start(step_)) {
      active_.push_back(std::move(request));
    } else {
      paused_.push_back(std::move(request));
      publish_rows();  // without it, so that those behind it are looked at, too
    }
  }
}

// Every decoding sample has its row. Prompts, and runs of given values, share what prefill_rows
// leaves them beside somebody who waits for a row to be sampled, or else the whole step.
void Worker::grant_rows() {
  int left = options_.max_rows;
  bool somebody_waits = false;
  for (RowRun& run : runs_) {
    run.rows = run.is_decoding ? 1 : 0;
    left -= run.rows;
    somebody_waits |= run.is_decoding && run.samples_next;
  }
  if (somebody_waits) left = std::min(left, options_.prefill_rows);

  hungry_.clear();
  for (RowRun& run : runs_) {
    if (run.rows < run.wanted) hungry_.push_back(&run);
  }
  if (hungry_.empty()) return;
  std::rotate(hungry_.begin(),
              hungry_.begin() + static_cast<std::ptrdiff_t>(turn_++ % hungry_.size()),
              hungry_.end());
  while (left > 0 && !hungry_.empty()) {
    const int share = std::max(left / static_cast<int>(hungry_.size()), 1);
    for (RowRun* run : hungry_) {
      const int granted = std::min({share, run->wanted - run->rows, left});
      run->rows += granted;
      left -= granted;
    }
    std::erase_if(hungry_, [](const RowRun* run) { return run->rows == run->wanted; });
  }
}

// Guesses of what the samples will draw take rows that are left, the most likely first.
void Worker::grant_drafts() {
  if (!options_.drafts) return;
  int rows = 0;
  for (const RowRun& run : runs_) rows += run.rows;
  const int most = most_drafting_rows(options_);
  if (rows >= most) return;
  drafting_.clear();
  float values = 0.0f;  // expected of the step
  const float cost = row_cost(model_.weight_type());
  for (RowRun& run : runs_) {
    values += static_cast<float>(run.rows);
    if (run.is_decoding && run.rows == run.wanted && run.sample->begin_drafts(run.rows)) {
      drafting_.push_back(&run);
    }
  }
  const auto less_likely = [](const RowRun* a, const RowRun* b) {
    return a->sample->draft_probability() < b->sample->draft_probability();
  };
  while (rows < most && !drafting_.empty()) {
    const auto likeliest = std::ranges::max_element(drafting_, less_likely);
    RowRun& run = **likeliest;
    const float probability = run.sample->draft_probability();
    if (!options_.drafts_always && probability <= least_probability(cost, rows, values)) return;
    if (!run.sample->take_draft()) drafting_.erase(likeliest);
    ++run.rows;
    ++rows;
    values += probability;
  }
}

void Worker::step_model() {
  std::size_t outputs = 0;
  for (RowRun& run : runs_) {
    run.first_output = outputs;
    if (run.rows > 0) outputs += static_cast<std::size_t>(run.sample->append_rows(run.rows, rows_));
  }
  end_part(WorkPart::kSchedule);
  if (rows_.empty()) return;
  MatrixView<const float> rows;
  model_timer_.begin();
  try {
    rows = model_.step(rows_, workspace_);
  } catch (...) {  // out of memory: how far each sequence got is not known
    for (const RowRun& run : runs_) {
      if (run.rows > 0) run.request->fail();
    }
    return;
  }
  end_model();
  absorb_rows(rows);
  end_part(WorkPart::kSample);
}

void Worker::end_model() {
  model_timer_.enter(StepPart::kOther);  // ends the last part
  const auto observe = [this](WorkPart part, StepPart spent) {
    step_.metrics.step[static_cast<std::size_t>(part)].observe(model_timer_.spent(spent));
  };
  observe(WorkPart::kProducts, StepPart::kProducts);
  observe(WorkPart::kAttention, StepPart::kAttention);
  observe(WorkPart::kOther, StepPart::kOther);
  part_begun_ = clock_.now();
}

void Worker::absorb_rows(MatrixView<const float> rows) {
  step_.now = part_begun_;
  counters_.steps.fetch_add(1, std::memory_order_relaxed);
  counters_.rows.fetch_add(rows_.size(), std::memory_order_relaxed);
  step_.metrics.rows.observe(static_cast<double>(rows_.size()));
  for (const RowRun& run : runs_) {
    if (run.rows > 0) run.request->absorb(run, rows, step_);
  }
}

// The sinks hear what ended, and requests whose sinks are full leave the batch.
void Worker::settle() {
  counters_.prompt_tokens.fetch_add(std::exchange(step_.prompt_tokens, 0),
                                    std::memory_order_relaxed);
  counters_.generated_tokens.fetch_add(std::exchange(step_.generated_tokens, 0),
                                       std::memory_order_relaxed);
  counters_.drafted_tokens.fetch_add(std::exchange(step_.drafted_tokens, 0),
                                     std::memory_order_relaxed);
  counters_.accepted_tokens.fetch_add(std::exchange(step_.accepted_tokens, 0),
                                      std::memory_order_relaxed);
  bool any_ended = false;
  for (auto& request : active_) {
    switch (request->end_step(step_)) {
      case RunningRequest::Status::kRunning:
        break;
      case RunningRequest::Status::kPaused:
        paused_.push_back(std::move(request));
        break;
      case RunningRequest::Status::kEnded:
        request.reset();
        any_ended = true;
        break;
    }
  }
  std::erase(active_, nullptr);
  if (any_ended) workspace_.forget_drafts();
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
  look_at(resumed_);
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
  end_these(resumed_);
  workspace_.forget_drafts();
  publish_rows();
}

int Worker::own_rows() const {
  int rows = 0;
  for (const auto& request : active_) rows += request->slots();
  return rows;
}

void Worker::publish_rows() { queue_.set_running_rows(options_.index, own_rows()); }

}  // namespace lintel
