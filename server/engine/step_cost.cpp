#include "server/engine/step_cost.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace lintel {
namespace {

constexpr std::int64_t kFewRows = 16;
constexpr int kTries = 5;

// Steps sequences from their beginning, `rows` of each.
class MeasuredSteps {
 public:
  MeasuredSteps(const Transformer& model, std::size_t rows, std::size_t sequences,
                const Clock& clock)
      : model_(model), clock_(clock), workspace_(model.new_workspace(rows, rows)) {
    for (std::size_t s = 0; s < sequences; ++s) sequences_.push_back(model.new_sequence());
  }

  // Seconds, the best of kTries.
  float of(std::size_t rows, std::size_t sequences) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < kTries; ++i) best = std::min(best, one(rows, sequences));
    return best;
  }

 private:
  float one(std::size_t rows, std::size_t sequences) {
    for (SequenceState& sequence : sequences_) sequence.reset();
    std::vector<StepRow> fed;
    for (std::size_t r = 0; r < rows; ++r) {
      SequenceState& sequence = sequences_[r * sequences / rows];
      const bool is_draft = r > 0 && fed.back().sequence == &sequence;
      fed.push_back({/*token=*/0, &sequence, /*wants_output=*/true, is_draft});
    }
    feed(fed);  // whose drafts the next step has to do with, too
    const TimePoint start = clock_.now();
    feed(fed);
    const float seconds = std::chrono::duration<float>(clock_.now() - start).count();
    for (SequenceState& sequence : sequences_) sequence.settle();
    return seconds;
  }

  void feed(const std::vector<StepRow>& rows) {
    model_.step(rows, workspace_);
    for (const StepRow& row : rows) row.sequence->take_back(0);
  }

  const Transformer& model_;
  const Clock& clock_;
  Workspace workspace_;
  std::vector<SequenceState> sequences_;
};

}  // namespace

StepCost assumed_step_cost(WeightType type) {
  const float row = type == WeightType::kInt8 ? 0.35f : 0.25f;
  return {.fixed = 1.0f - row, .row = row, .state = 0.0f};
}

StepCost measure_step_cost(const Transformer& model, int max_rows, const Clock& clock) {
  const std::int64_t length = model.config().max_length;
  const std::int64_t few = std::min<std::int64_t>(kFewRows, max_rows);
  // Of one sequence, in each of two steps.
  const auto rows = static_cast<std::size_t>(length > 0 ? std::min(few, length / 2) : few);
  if (rows < 2) return assumed_step_cost(model.weight_type());
  const std::size_t most_rows = static_cast<std::size_t>(max_rows) / rows * rows;
  MeasuredSteps steps(model, most_rows, rows, clock);
  const float alone = steps.of(1, 1);
  const float of_one = steps.of(rows, 1);
  const float of_many = steps.of(rows, rows);
  const auto more = static_cast<float>(rows - 1);
  // What is disturbed must not make drafts free, nor dearer than steps of their own.
  const float row = std::clamp((of_one - alone) / more, 0.01f * alone, alone);
  const float state = std::clamp((of_many - of_one) / more, 0.0f, alone);
  StepCost cost{.fixed = std::max(alone - row - state, 0.0f), .row = row, .state = state};
  if (most_rows < 2 * rows ||
      (length > 0 && static_cast<std::int64_t>(2 * most_rows / rows) > length)) {
    return cost;
  }
  const float of_most = steps.of(most_rows, rows);
  cost.few_rows = static_cast<int>(rows);
  cost.more_row =
      std::clamp((of_most - of_many) / static_cast<float>(most_rows - rows), row, alone);
  return cost;
}

}  // namespace lintel
