// SPDX-License-Identifier: Apache-2.0
#include "server/engine/row_planner.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "model/core/step_thread_pool.h"

namespace lintel {
namespace {

constexpr std::int64_t kFewRows = 16;
constexpr int kTries = 5;
// A step of a larger model takes a tenth of a second, which little disturbs: it is measured with
// fewer rows and less often.
constexpr std::int64_t kLargeParameters = 50'000'000;
constexpr std::int64_t kFewRowsOfLarge = 4;
constexpr int kTriesOfLarge = 2;

// Steps sequences from their beginning, `rows` of each.
class MeasuredSteps {
 public:
  MeasuredSteps(const Transformer& model, std::size_t rows, std::size_t sequences, int tries,
                const Clock& clock, StepThreadPool* team, const std::function<bool()>& ends)
      : model_(model),
        tries_(tries),
        clock_(clock),
        ends_(ends),
        workspace_(model.new_workspace(rows, rows)) {
    workspace_.share_with(team);
    for (std::size_t s = 0; s < sequences; ++s) sequences_.push_back(model.new_sequence());
    if (!model.has_draft_head()) return;
    for (std::size_t s = 0; s < sequences; ++s) states_.push_back(model.new_draft_state());
  }

  // Seconds, the best of some tries.
  float of(std::size_t rows, std::size_t sequences) {
    for (SequenceState& sequence : sequences_) sequence.reset();
    std::vector<BatchRow> fed;
    for (std::size_t r = 0; r < rows; ++r) {
      SequenceState& sequence = sequences_[r * sequences / rows];
      const bool is_draft = r > 0 && fed.back().sequence == &sequence;
      fed.push_back({/*token=*/0, &sequence, /*wants_output=*/true, is_draft});
    }
    if (!ends_()) feed(fed);  // untimed: each timed step then begins with the drafts of one before
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < tries_ && !ends_(); ++i) {
      const TimePoint start = clock_.now();
      feed(fed);
      best = std::min(best, std::chrono::duration<float>(clock_.now() - start).count());
    }
    for (SequenceState& sequence : sequences_) sequence.settle();
    return best;
  }

  // The same of a draft token of each sequence.
  float of_drafts(std::size_t sequences) {
    std::vector<BatchRow> fed;
    for (std::size_t s = 0; s < sequences; ++s) {
      sequences_[s].reset();
      fed.push_back({/*token=*/0, &sequences_[s], /*wants_output=*/true});
    }
    model_.step(fed, workspace_);
    const std::vector<std::int32_t> after(sequences);
    std::vector<std::int32_t> drafts(sequences);
    std::vector<DraftRequest> requests;
    for (std::size_t s = 0; s < sequences; ++s) {
      requests.push_back({.state = &states_[s],
                          .first_hidden = s,
                          .tokens = std::span(after).subspan(s, 1),
                          .drafts = std::span(drafts).subspan(s, 1)});
    }
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < kTries && !ends_(); ++i) {
      const TimePoint start = clock_.now();
      model_.draft(requests, workspace_);
      best = std::min(best, std::chrono::duration<float>(clock_.now() - start).count());
    }
    return best;
  }

 private:
  void feed(const std::vector<BatchRow>& rows) {
    model_.step(rows, workspace_);
    for (const BatchRow& row : rows) row.sequence->rollback(0);
  }

  const Transformer& model_;
  const int tries_;
  const Clock& clock_;
  const std::function<bool()>& ends_;
  Workspace workspace_;
  std::vector<SequenceState> sequences_;
  std::vector<DraftState> states_;  // none without a draft head
};

}  // namespace

StepCost assumed_step_cost(WeightType type) {
  const bool is_integer = type != WeightType::kF32 && type != WeightType::kBf16;
  const float row = is_integer ? 0.35f : 0.25f;
  return {.fixed = 1.0f - row, .row = row, .state = 0.0f, .draft = 0.2f, .more_draft = 0.05f};
}

StepCost measure_step_cost(const Transformer& model, int max_rows, const Clock& clock,
                           StepThreadPool* team, const std::function<bool()>& ends) {
  const std::int64_t length = model.config().max_length;
  const bool is_large = model.num_parameters() > kLargeParameters;
  const std::int64_t few = std::min<std::int64_t>(is_large ? kFewRowsOfLarge : kFewRows, max_rows);
  const int tries = is_large ? kTriesOfLarge : kTries;
  const std::int64_t num_steps = tries + 1;
  // Rows of one sequence, in each step.
  const auto rows = static_cast<std::size_t>(length > 0 ? std::min(few, length / num_steps) : few);
  if (rows < 2) return assumed_step_cost(model.weight_type());
  const std::size_t most_rows = is_large ? rows : static_cast<std::size_t>(max_rows) / rows * rows;
  MeasuredSteps steps(model, most_rows, rows, tries, clock, team, ends);
  const float alone = steps.of(1, 1);
  const float of_one = steps.of(rows, 1);
  const float of_many = steps.of(rows, rows);
  const auto more = static_cast<float>(rows - 1);
  // A disturbed measurement must not make drafts free, nor dearer than steps of their own.
  const float row = std::clamp((of_one - alone) / more, 0.01f * alone, alone);
  const float state = std::clamp((of_many - of_one) / more, 0.0f, alone);
  StepCost cost{.fixed = std::max(alone - row - state, 0.0f), .row = row, .state = state};
  if (model.has_draft_head()) {
    cost.draft = steps.of_drafts(1);
    cost.more_draft = std::max(steps.of_drafts(rows) - cost.draft, 0.0f) / more;
  }
  if (most_rows < 2 * rows ||
      (length > 0 && num_steps * static_cast<std::int64_t>(most_rows / rows) > length)) {
    return cost;
  }
  const float of_most = steps.of(most_rows, rows);
  cost.few_rows = static_cast<int>(rows);
  cost.more_row =
      std::clamp((of_most - of_many) / static_cast<float>(most_rows - rows), row, alone);
  return cost;
}

int DraftHeadPlan::ahead(int sequences) {
  constexpr int kBetweenTries = 512;  // steps
  constexpr int kTry = 16;            // steps
  if (is_always_) return kMostAhead;
  if (sequences == 0) return 0;
  sequences_ = sequences;
  const int chosen = best(sequences);
  if (chosen >= most(sequences)) return chosen;
  steps_ = (steps_ + 1) % (kBetweenTries + kTry);
  return steps_ >= kBetweenTries ? chosen + 1 : chosen;
}

bool DraftHeadPlan::reads_prompts() const { return is_always_ || best(sequences_) > 0; }

int DraftHeadPlan::best(int sequences) const {
  constexpr float kLeastGain = 1.03f;
  const float draft = cost_.draft + cost_.more_draft * static_cast<float>(sequences - 1);
  float highest = kLeastGain / cost_.of(sequences, sequences);  // tokens of a sequence in time
  int chosen = 0;
  float tokens = 1.0f;
  float all_right = 1.0f;
  for (int n = 1; n <= most(sequences); ++n) {
    all_right *= probability(n - 1);
    tokens += all_right;
    const float time = cost_.of(sequences * (n + 1), sequences) + static_cast<float>(n) * draft;
    if (tokens / time <= highest) continue;
    highest = tokens / time;
    chosen = n;
  }
  return chosen;
}

void DraftHeadPlan::learn(int i, bool right) {
  constexpr float kMemory = 64.0f;
  Record& record = records_[static_cast<std::size_t>(i)];
  if (record.drafts >= kMemory) {
    record.drafts /= 2;
    record.right /= 2;
  }
  record.drafts += 1.0f;
  if (right) record.right += 1.0f;
}

float DraftHeadPlan::probability(int i) const {
  const Record& record = records_[static_cast<std::size_t>(i)];
  return record.right / record.drafts;
}

RowPlanner::RowPlanner(const Options& options) : options_(options) {
  hungry_.reserve(static_cast<std::size_t>(options.max_rows));
  waiting_.reserve(kWaiting);
  drafting_.reserve(static_cast<std::size_t>(options.max_rows));
}

void RowPlanner::set_cost(const StepCost& cost) {
  options_.cost = cost;
  spare_ = 0.0f;
  unit_ = 0.0f;
  factor_ = 1.0f;
}

void RowPlanner::plan(std::vector<BatchSlice>& runs) {
  grant_rows(runs);
  grant_drafts(runs);
}

void RowPlanner::grant_rows(std::vector<BatchSlice>& runs) {
  int decoding = 0;
  bool client_waits = false;
  hungry_.clear();
  for (BatchSlice& run : runs) {
    run.rows = run.is_decoding ? 1 : 0;
    decoding += run.rows;
    client_waits |= run.is_decoding && run.samples_next;
    if (run.rows < run.wanted) hungry_.push_back(&run);
  }
  of_prompts_ = 0.0f;
  of_others_ = decoding > 0 ? options_.cost.of(decoding, decoding) : 0.0f;
  const bool is_timed = client_waits && options_.prefill_rows == 0;
  const float time = is_timed ? time_beside() : std::numeric_limits<float>::infinity();
  const int prompt_rows = options_.prompt_rows > 0 ? options_.prompt_rows : options_.max_rows;
  const int beside = options_.prefill_rows == 0
                         ? std::max(options_.max_rows, prompt_rows) - decoding
                         : std::min(options_.max_rows - decoding, options_.prefill_rows);
  const int rows =
      client_waits ? beside : std::max(prompt_rows - decoding, std::min(beside, prompt_rows));
  order_hungry();
  share_rows(rows, decoding, time);
  const float dearest = std::max(options_.cost.row, options_.cost.more_row) + options_.cost.state;
  spare_ = is_timed ? std::min(time - factor_ * of_prompts_, factor_ * dearest) : 0.0f;
}

float RowPlanner::time_beside() {
  constexpr int kBetweenAlone = 32;
  if (hungry_.empty()) return 0.0f;
  // Now and then a step shows what answers take alone.
  if (unit_ > 0.0f && ++steps_beside_ % kBetweenAlone == 0) return 0.0f;
  return spare_ + (1.0f / kSpeedKept - 1.0f) * of_others_;
}

void RowPlanner::order_hungry() {
  // Runs lie in the order in which they got their rows.
  std::ranges::sort(hungry_, {},
                    [](const BatchSlice* run) { return std::tuple(run->read, run->wanted, run); });
  waiting_.clear();
  if (hungry_.size() < 2) return;
  const auto others = std::span(hungry_).subspan(1);
  const auto waits = [&](const BatchSlice* run) { return std::ranges::count(waiting_, run) > 0; };
  const auto has_turn = [&](const BatchSlice* run) {
    return std::ranges::count(waiting_, run->caller, &BatchSlice::caller) > 0;
  };
  const std::size_t most = std::min(others.size(), kWaiting);
  for (bool of_each_caller = true; waiting_.size() < most;) {
    BatchSlice* oldest = nullptr;
    for (BatchSlice* run : others) {
      if (waits(run) || (of_each_caller && has_turn(run))) continue;
      if (oldest == nullptr || run < oldest) oldest = run;
    }
    if (oldest == nullptr) {
      of_each_caller = false;
    } else {
      waiting_.push_back(oldest);
    }
  }
}

void RowPlanner::share_rows(int rows, int decoding, float time) {
  int all = decoding;
  int sequences = decoding;
  for (; rows > 0 && !hungry_.empty(); --rows) {
    const std::size_t turn = turn_ % kTurns;
    BatchSlice* const run = turn < waiting_.size() ? waiting_[turn] : hungry_.front();
    if (run->rows == 0) ++sequences;
    const float of_prompts = options_.cost.of(++all, sequences) - of_others_;
    if (factor_ * of_prompts > time) return;
    of_prompts_ = of_prompts;
    ++turn_;
    if (++run->rows < run->wanted) continue;
    std::erase(hungry_, run);
    std::erase(waiting_, run);
  }
}

void RowPlanner::learn(float seconds) {
  if (seconds <= 0.0f || of_others_ <= 0.0f) return;
  if (unit_ == 0.0f) {
    unit_ = seconds / (of_others_ + of_prompts_);
  } else if (of_prompts_ == 0.0f) {
    // A disturbed step counts as one of twice the time at most.
    const float unit = std::clamp(seconds / of_others_, 0.5f * unit_, 2.0f * unit_);
    unit_ += (unit - unit_) / 4.0f;
  } else {
    const float factor = (seconds / unit_ - of_others_) / of_prompts_;
    factor_ += (std::clamp(factor, 0.5f, 8.0f) - factor_) / 16.0f;
  }
}

void RowPlanner::grant_drafts(std::vector<BatchSlice>& runs) {
  int rows = 0;
  int sequences = 0;
  int decoding = 0;
  float tokens = 0.0f;  // expected of runs that decode
  for (const BatchSlice& run : runs) {
    rows += run.rows;
    sequences += run.rows > 0 ? 1 : 0;
    if (!run.is_decoding) continue;
    ++decoding;
    tokens += static_cast<float>(run.rows);
  }
  if (rows >= options_.draft_rows) return;
  drafting_.clear();
  for (BatchSlice& run : runs) {
    if (run.is_decoding && run.rows == run.wanted && run.drafts->begin_drafts(run.rows)) {
      drafting_.push_back(&run);
    }
  }
  float time = options_.cost.of(static_cast<int>(tokens), decoding);
  const auto less_likely = [](const BatchSlice* a, const BatchSlice* b) {
    return a->drafts->draft_probability() < b->drafts->draft_probability();
  };
  while (rows < options_.draft_rows && !drafting_.empty()) {
    const auto likeliest = std::ranges::max_element(drafting_, less_likely);
    BatchSlice& run = **likeliest;
    const float probability = run.drafts->draft_probability();
    const float more_time =
        options_.cost.of(rows + 1, sequences) - options_.cost.of(rows, sequences);
    // A draft is worth it if it yields as many tokens for its time as the step does without it.
    if (!options_.drafts_always && probability * time <= more_time * tokens) return;
    if (!run.drafts->take_draft()) drafting_.erase(likeliest);
    ++run.rows;
    ++rows;
    tokens += probability;
    time += more_time;
    of_others_ += more_time;
  }
}

}  // namespace lintel
