#include "server/scheduler/step_cost.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace lintel {
namespace {

constexpr std::int64_t kMostRows = 16;  // of a step that is measured
constexpr int kTries = 5;

// Steps sequences from their beginning, `rows` of each.
class MeasuredSteps {
 public:
  MeasuredSteps(const Transformer& model, std::size_t rows, const Clock& clock)
      : model_(model), clock_(clock), workspace_(model.new_workspace(rows)) {
    for (std::size_t s = 0; s < rows; ++s) sequences_.push_back(model.new_sequence());
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
      fed.push_back({/*token=*/0, &sequence, /*wants_output=*/true});
    }
    const TimePoint begun = clock_.now();
    model_.step(fed, workspace_);
    return std::chrono::duration<float>(clock_.now() - begun).count();
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
  const std::int64_t most = std::min<std::int64_t>(kMostRows, max_rows);
  const auto rows = static_cast<std::size_t>(length > 0 ? std::min(most, length) : most);
  if (rows < 2) return assumed_step_cost(model.weight_type());
  MeasuredSteps steps(model, rows, clock);
  const float alone = steps.of(1, 1);
  const float of_one = steps.of(rows, 1);
  const float of_many = steps.of(rows, rows);
  const auto more = static_cast<float>(rows - 1);
  // What is disturbed must not make drafts free, nor dearer than steps of their own.
  const float row = std::clamp((of_one - alone) / more, 0.01f * alone, alone);
  const float state = std::clamp((of_many - of_one) / more, 0.0f, alone);
  return {.fixed = std::max(alone - row - state, 0.0f), .row = row, .state = state};
}

}  // namespace lintel
