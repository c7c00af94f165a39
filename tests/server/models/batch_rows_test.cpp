// SPDX-License-Identifier: Apache-2.0
#include "server/models/batch_rows.h"

#include <algorithm>
#include <map>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

TEST_CASE("narrow weights get as many rows as a quarter of the cache has states for") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 1);
  const auto load = [&](WeightType type) {
    return Transformer::load(directory.path(), {.weight_type = type});
  };
  const auto int8 = load(WeightType::kInt8);
  const std::size_t state = int8->state_bytes(64);
  CHECK(batch_rows_for(*int8, 2, 2 * 4 * 40 * state) == 40);
  CHECK(batch_rows_for(*int8, 1, 2 * 4 * 20 * state) == 40);
  CHECK(batch_rows_for(*int8, 2, 1) == kLeastBatchRows);
  CHECK(batch_rows_for(*int8, 2, std::size_t{1} << 40) == kMostBatchRows);
  CHECK(batch_rows_for(*load(WeightType::kF32), 2, 1) == kMostBatchRows);
}

// Microseconds of a row, try by try, by rows of a step.
class FakeRows {
 public:
  explicit FakeRows(std::map<int, std::vector<int>> tries) : tries_(std::move(tries)) {}

  PromptRows choose() {
    std::vector<int> candidates;
    for (const auto& [rows, times] : tries_) candidates.push_back(rows);
    return choose_prompt_rows(candidates, [&](int rows) {
      const std::size_t i = asked_[rows]++;
      REQUIRE(i < tries_.at(rows).size());
      return 1e-6f * static_cast<float>(tries_.at(rows)[i]);
    });
  }
  std::size_t asked(int rows) { return asked_[rows]; }

 private:
  const std::map<int, std::vector<int>> tries_;
  std::map<int, std::size_t> asked_;
};

TEST_CASE("a prompt's step has the rows with which a row takes least") {
  // A wide step is slow because it leaves the caches, and a narrow one because of the weights.
  FakeRows small_caches({{8, {44, 44, 44}}, {32, {38, 38, 38}}, {64, {42, 42, 42}}, {128, {61}}});
  CHECK(small_caches.choose().rows == 32);
  FakeRows wide({{8, {30}}, {32, {16}}, {64, {13, 13, 13}}, {128, {12, 12, 12}}});
  const PromptRows chosen = wide.choose();
  CHECK(chosen.rows == 128);
  CHECK(chosen.to_text() ==
        "128 rows a step, 12.0 us a row (8: 30.0, 32: 16.0, 64: 13.0, 128: 12.0)");
}

TEST_CASE("the least of several measurements of a prompt's rows counts") {
  FakeRows disturbed({{8, {50, 50, 50}}, {32, {55, 400, 40}}, {64, {54, 45, 900}}});
  const PromptRows chosen = disturbed.choose();
  CHECK(chosen.rows == 32);
  CHECK(1e6f * chosen.measured[1].seconds == Approx(40.0f));
  CHECK(1e6f * chosen.measured[2].seconds == Approx(45.0f));
}

TEST_CASE("of rows that are as good the fewest are chosen for a prompt's step") {
  FakeRows even({{8, {110, 110, 110}}, {32, {101, 101, 101}}, {64, {100, 100, 100}}});
  CHECK(even.choose().rows == 32);
}

TEST_CASE("rows that are far behind are measured once") {
  FakeRows rows({{8, {90}}, {32, {40, 40, 40}}, {64, {44, 44, 44}}});
  rows.choose();
  CHECK(rows.asked(8) == 1);
  CHECK(rows.asked(32) == 3);
  CHECK(rows.asked(64) == 3);
}

TEST_CASE("a clock that stands still chooses the most rows for prompts") {
  FakeRows still({{8, {0, 0, 0}}, {32, {0, 0, 0}}, {64, {0, 0, 0}}});
  CHECK(still.choose().rows == 64);
}

TEST_CASE("rows of prompts are tried up to the most there may be") {
  CHECK(prompt_row_candidates(128, 0) == std::vector<int>{8, 16, 24, 32, 48, 64, 96, 128});
  CHECK(prompt_row_candidates(64, 783) == std::vector<int>{8, 16, 24, 32, 48, 64});
  CHECK(prompt_row_candidates(50, 0) == std::vector<int>{8, 16, 24, 32, 48, 50});
  CHECK(prompt_row_candidates(128, 29) == std::vector<int>{8, 16, 24, 29});
  CHECK(prompt_row_candidates(8, 0) == std::vector<int>{8});
  CHECK(prompt_row_candidates(1, 0) == std::vector<int>{1});
}

TEST_CASE("the bytes of a worker's buffers cover those of its largest steps") {
  const std::string attention = GENERATE("linear", "softmax", "lsh");
  CAPTURE(attention);
  const auto model = tiny_model(TinyModel::kTokens, attention);
  constexpr int kRows = 100;
  Workspace workspace = model->new_workspace(kRows, kRows);
  SequenceState sequence = model->new_sequence();
  std::vector<BatchRow> rows;
  for (int i = 0; i < kRows; ++i) {
    rows.push_back({.token = i % 50, .sequence = &sequence, .wants_output = true});
  }
  const std::size_t outputs = model->step(rows, workspace).rows() * 50 * sizeof(float);
  const std::size_t bytes = worker_bytes(*model, kRows, kRows, kRows);
  CHECK(bytes >= workspace.bytes() + outputs);
  CHECK(bytes <= 3 * (workspace.bytes() + outputs));
  // Drafts have copies of states, and more rows more of all.
  CHECK(worker_bytes(*model, kRows, kRows, 0) <= bytes);
  CHECK(worker_bytes(*model, 4 * kRows, kRows, kRows) > bytes);
}

TEST_CASE("rows of prompts are measured where a step takes long enough") {
  const SteadyClock clock;
  const PromptRows small = measure_prompt_rows(*tiny_model(TinyModel::kTokens), 64, clock);
  CHECK(small.rows == 64);
  CHECK(small.measured.empty());
  const auto changed = [](ModelConfig& config) {
    config.d_ff = 4096;
    config.max_length = 100;
  };
  const auto model = changed_model(TinyModel::kTokens, changed, {});
  REQUIRE(model->num_parameters() >= kLeastMeasuredParameters);
  const PromptRows measured = measure_prompt_rows(*model, 64, clock);
  std::vector<int> tried;
  for (const PromptRowTime& time : measured.measured) {
    tried.push_back(time.rows);
    CHECK(time.seconds > 0);
    if (time.rows == measured.rows) CHECK(time.seconds < 1);
  }
  CHECK(tried == prompt_row_candidates(64, 100));
  CHECK(std::ranges::count(tried, measured.rows) == 1);
}

}  // namespace
}  // namespace lintel::testing
