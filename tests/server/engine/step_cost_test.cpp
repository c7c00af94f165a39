// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <vector>

#include "server/engine/row_planner.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Every second question comes as much later as the list says, in microseconds.
class ScriptedClock final : public Clock {
 public:
  explicit ScriptedClock(std::vector<int> microseconds) : microseconds_(std::move(microseconds)) {}

  TimePoint now() const override {
    if (asked_++ % 2 == 0) return now_;
    REQUIRE(next_ < microseconds_.size());
    return now_ += std::chrono::microseconds(microseconds_[next_++]);
  }
  bool over() const { return next_ == microseconds_.size(); }

 private:
  const std::vector<int> microseconds_;
  mutable TimePoint now_;
  mutable std::size_t asked_ = 0, next_ = 0;
};

// Five tries each, of which one is undisturbed.
std::vector<int> tries(int alone, int of_one, int of_many, int of_most) {
  std::vector<int> all;
  for (const int best : {alone, of_one, of_many, of_most}) {
    for (const int late : {300, 0, 7, 1000, 90}) all.push_back(best + late);
  }
  return all;
}

TEST_CASE("the cost of a step is split into the weights, a row and a sequence's state") {
  const auto model = tiny_model(TinyModel::kTokens);
  constexpr int kOfMany = 110 + 15 * 6 + 15 * 4;
  const ScriptedClock clock(tries(110, 110 + 15 * 6, kOfMany, kOfMany + 48 * 9));
  const StepCost cost = measure_step_cost(*model, 64, clock);
  CHECK(clock.over());
  CHECK(1e6f * cost.row == Approx(6.0f));
  CHECK(1e6f * cost.state == Approx(4.0f));
  CHECK(1e6f * cost.fixed == Approx(100.0f));
  CHECK(cost.few_rows == 16);
  CHECK(1e6f * cost.more_row == Approx(9.0f));
  CHECK(1e6f * cost.of(3, 2) == Approx(100.0f + 18.0f + 8.0f));
  CHECK(1e6f * cost.of(20, 2) == Approx(100.0f + 96.0f + 36.0f + 8.0f));
}

TEST_CASE("a disturbed measurement makes drafts neither free nor dearer than steps") {
  const auto model = tiny_model(TinyModel::kTokens);
  const StepCost cheap = measure_step_cost(*model, 64, ScriptedClock(tries(100, 50, 40, 30)));
  CHECK(1e6f * cheap.row == Approx(1.0f));
  CHECK(cheap.state == 0.0f);
  CHECK(cheap.more_row == cheap.row);
  const StepCost dear =
      measure_step_cost(*model, 64, ScriptedClock(tries(100, 9000, 90000, 900000)));
  CHECK(1e6f * dear.row == Approx(100.0f));
  CHECK(dear.fixed == 0.0f);
  CHECK(1e6f * dear.more_row == Approx(100.0f));
  CHECK(dear.of(2, 1) > 0.0f);
}

TEST_CASE("where a step has few rows at most, all of them take as long") {
  const auto model = tiny_model(TinyModel::kTokens);
  std::vector<int> of_few = tries(110, 200, 260, 0);
  of_few.resize(15);
  const StepCost cost = measure_step_cost(*model, 31, ScriptedClock(of_few));
  CHECK(cost.few_rows == 0);
  CHECK(1e6f * cost.of(32, 0) == Approx(100.0f + 32 * 6.0f));
}

TEST_CASE("steps are measured within a model's longest sequence") {
  for (const int length : {11, 12, 17, 24}) {
    INFO(length);
    const auto model = changed_model(TinyModel::kBytes,
                                     [&](ModelConfig& config) { config.max_length = length; }, {});
    std::vector<int> times = tries(110, 200, 260, 300);
    times.resize(length < 12 ? 0 : length < 24 ? 15 : 20);
    const ScriptedClock clock(times);
    const StepCost cost = measure_step_cost(*model, 8, clock);
    CHECK(clock.over());
    CHECK((length < 12) == (cost.row == assumed_step_cost(WeightType::kF32).row));
  }
}

TEST_CASE("where one row is all a step has, its cost is assumed") {
  const auto model = tiny_model(TinyModel::kTokens);
  const StepCost cost = measure_step_cost(*model, 1, ScriptedClock({}));
  CHECK(cost.row == assumed_step_cost(WeightType::kF32).row);
}

}  // namespace
}  // namespace lintel::testing
