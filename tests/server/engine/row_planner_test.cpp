// SPDX-License-Identifier: Apache-2.0
// The rows of a step are shared out, without a model.
#include "server/engine/row_planner.h"

#include <deque>
#include <initializer_list>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Drafts that are right with these probabilities.
struct FakeDrafts final : DraftSource {
  FakeDrafts(std::initializer_list<float> probabilities) : left(probabilities) {}
  bool begin_drafts(int rows) override {
    begun_after = rows;
    return !left.empty();
  }
  float draft_probability() const override { return left.front(); }
  bool take_draft() override {
    ++taken;
    left.pop_front();
    return !left.empty();
  }
  std::deque<float> left;
  int begun_after = 0;
  int taken = 0;
};

BatchSlice decoding(int wanted = 1, DraftSource* drafts = nullptr) {
  BatchSlice run;
  run.wanted = wanted;
  run.is_decoding = run.samples_next = true;
  run.drafts = drafts;
  return run;
}

BatchSlice reading(int wanted) {
  BatchSlice run;
  run.wanted = wanted;
  return run;
}

std::vector<int> rows_of(RowPlanner& planner, std::vector<BatchSlice> runs) {
  planner.plan(runs);
  std::vector<int> rows;
  for (const BatchSlice& run : runs) rows.push_back(run.rows);
  return rows;
}

using Rows = std::vector<int>;

TEST_CASE("a sample that decodes has its row, and prompts share what is left for them") {
  RowPlanner planner({.max_rows = 16, .prefill_rows = 6});
  CHECK(rows_of(planner, {decoding(), reading(100), decoding(), reading(2)}) == Rows{1, 4, 1, 2});
}

TEST_CASE("prompts have the whole step where no client waits for a row") {
  RowPlanner planner({.max_rows = 16, .prefill_rows = 6});
  CHECK(rows_of(planner, {reading(100)}) == Rows{16});
  BatchSlice given = decoding(20);
  given.samples_next = false;  // a run of given tokens
  CHECK(rows_of(planner, {given, reading(100)}) == Rows{8, 8});
}

TEST_CASE("a step for which no client waits may have more rows for prompts") {
  RowPlanner planner({.max_rows = 16, .prefill_rows = 6, .prompt_rows = 40});
  CHECK(rows_of(planner, {reading(100)}) == Rows{40});
  CHECK(rows_of(planner, {reading(100), reading(100)}) == Rows{20, 20});
  CHECK(rows_of(planner, {decoding(), reading(100)}) == Rows{1, 6});
}

TEST_CASE("a step that no client waits for has prompt_rows rows where that is faster") {
  RowPlanner planner({.max_rows = 16, .prefill_rows = 6, .prompt_rows = 8});
  CHECK(rows_of(planner, {reading(100)}) == Rows{8});
  CHECK(rows_of(planner, {reading(5), reading(100)}) == Rows{4, 4});
  CHECK(rows_of(planner, {decoding(), reading(100)}) == Rows{1, 6});
  RowPlanner wide({.max_rows = 64, .prefill_rows = 32, .prompt_rows = 24});
  CHECK(rows_of(wide, {reading(100)}) == Rows{24});
  // Runs of given tokens have their rows, and a prompt its share beside them.
  BatchSlice given = decoding();
  given.samples_next = false;
  std::vector<BatchSlice> runs(10, given);
  runs.push_back(reading(100));
  Rows expected(10, 1);
  expected.push_back(6);
  CHECK(rows_of(planner, runs) == expected);
}

TEST_CASE("prompts that are more than the rows left take turns") {
  RowPlanner planner({.max_rows = 8, .prefill_rows = 2});
  const std::vector<BatchSlice> runs = {decoding(), reading(9), reading(9), reading(9)};
  Rows sum(4, 0);
  for (int step = 0; step < 3; ++step) {
    const Rows rows = rows_of(planner, runs);
    CHECK(rows[0] == 1);
    CHECK(rows[1] + rows[2] + rows[3] == 2);
    for (std::size_t i = 0; i < 4; ++i) sum[i] += rows[i];
  }
  CHECK(sum == Rows{3, 2, 2, 2});
}

TEST_CASE("callers share rows for prompts equally, however many prompts each of them has") {
  const int callers[2] = {};
  const auto of = [&](int caller, BatchSlice run) {
    run.caller = &callers[caller];
    return run;
  };
  RowPlanner planner({.max_rows = 64, .prefill_rows = 30});
  const std::vector<BatchSlice> runs = {of(0, reading(99)), of(1, reading(99)), of(0, reading(99)),
                                        of(0, reading(99)), of(0, decoding())};
  for (int step = 0; step < 4; ++step) CHECK(rows_of(planner, runs) == Rows{5, 15, 5, 5, 1});
  // Rows that one does not need are the other's.
  CHECK(rows_of(planner, {of(0, reading(99)), of(1, reading(6)), of(0, decoding())}) ==
        Rows{24, 6, 1});
  RowPlanner narrow({.max_rows = 64, .prefill_rows = 1});
  Rows sum(5, 0);
  for (int step = 0; step < 12; ++step) {
    const Rows rows = rows_of(narrow, runs);
    for (std::size_t i = 0; i < 5; ++i) sum[i] += rows[i];
  }
  CHECK(sum == Rows{2, 6, 2, 2, 12});
}

TEST_CASE("drafts take rows that are left, the most likely first") {
  FakeDrafts likely{0.9f, 0.6f, 0.5f};
  FakeDrafts unlikely{0.7f, 0.1f};
  RowPlanner planner({.max_rows = 16, .draft_rows = 5, .drafts_always = true});
  CHECK(rows_of(planner, {decoding(1, &likely), decoding(1, &unlikely)}) == Rows{3, 2});
  CHECK(likely.begun_after == 1);
}

TEST_CASE("a draft that costs more than it promises has no row") {
  FakeDrafts sure{0.9f, 0.9f, 0.01f};
  RowPlanner planner({.max_rows = 16, .draft_rows = 16, .cost = {.fixed = 0.75f, .row = 0.25f}});
  CHECK(rows_of(planner, {decoding(1, &sure)}) == Rows{3});
  FakeDrafts unsure{0.2f};
  CHECK(rows_of(planner, {decoding(1, &unsure)}) == Rows{1});
}

TEST_CASE("a draft pays for its row, which takes longer beyond the first") {
  FakeDrafts drafts{0.5f, 0.5f, 0.5f};
  // The state is read for the row that is there anyway.
  const StepCost cheap{.fixed = 0.4f, .row = 0.1f, .state = 0.5f};
  RowPlanner all({.max_rows = 16, .draft_rows = 16, .cost = cheap});
  CHECK(rows_of(all, {decoding(1, &drafts)}) == Rows{4});
  FakeDrafts again{0.5f, 0.5f, 0.5f};
  StepCost dear = cheap;
  dear.few_rows = 2;
  dear.more_row = 0.6f;
  RowPlanner one({.max_rows = 16, .draft_rows = 16, .cost = dear});
  CHECK(rows_of(one, {decoding(1, &again)}) == Rows{2});
}

TEST_CASE("draft tokens make a step wider than the sequences that may share it") {
  FakeDrafts sure{1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  RowPlanner planner({.max_rows = 2, .draft_rows = 5, .drafts_always = true});
  CHECK(rows_of(planner, {decoding(1, &sure), decoding(1, &sure)}) == Rows{4, 1});
}

TEST_CASE("there are no drafts in wide steps, nor where none are wanted") {
  FakeDrafts drafts{1.0f};
  RowPlanner narrow({.max_rows = 16, .prefill_rows = 8, .draft_rows = 4, .drafts_always = true});
  CHECK(rows_of(narrow, {decoding(1, &drafts), reading(3)}) == Rows{1, 3});
  RowPlanner off({.max_rows = 16, .drafts_always = true});
  CHECK(rows_of(off, {decoding(1, &drafts)}) == Rows{1});
  CHECK(drafts.taken == 0);
}

TEST_CASE(
    "a sample that reads given tokens has drafts only when its step reaches the end of them") {
  FakeDrafts drafts{1.0f};
  RowPlanner planner({.max_rows = 16, .prefill_rows = 2, .draft_rows = 16, .drafts_always = true});
  CHECK(rows_of(planner, {decoding(5, &drafts), decoding(1, &drafts)})[0] == 3);
  CHECK(drafts.begun_after == 1);  // the other's
}

TEST_CASE("a draft head is asked as far ahead as it is right and pays") {
  const StepCost cost{.fixed = 1.0f, .row = 0.1f, .draft = 0.1f, .more_draft = 0.01f};
  DraftHeadPlan plan(cost, /*most_rows=*/64, /*always=*/false);
  CHECK(plan.ahead(0) == 0);
  const auto learn = [&](int ahead, int right) {
    for (int i = 0; i < 200; ++i) {
      for (int d = 0; d < ahead; ++d) plan.learn(d, d < right);
    }
  };
  learn(4, 4);
  CHECK(plan.ahead(1) == 4);
  learn(3, 2);
  CHECK(plan.probability(1) > 0.95f);
  CHECK(plan.probability(2) < 0.05f);
  CHECK(plan.ahead(1) == 2);
  // Rows of many sequences take as long as each would in a step of its own.
  DraftHeadPlan many({.fixed = 0.1f, .row = 1.0f, .draft = 0.1f, .more_draft = 0.05f}, 64, false);
  CHECK(many.ahead(16) == 0);
  CHECK(DraftHeadPlan(cost, 64, /*always=*/true).ahead(64) == DraftHeadPlan::kMostAhead);
}

TEST_CASE("a draft head is not asked for tokens that a step has no rows for") {
  const StepCost cost{.fixed = 1.0f, .row = 0.001f, .draft = 0.001f};
  for (int sequences = 1; sequences <= 80; ++sequences) {
    DraftHeadPlan plan(cost, /*most_rows=*/64, /*always=*/false);
    CAPTURE(sequences);
    for (int step = 0; step < 600; ++step) {
      const int ahead = plan.ahead(sequences);
      CHECK((ahead == 0 || sequences * (ahead + 1) <= 64));
    }
  }
}

TEST_CASE("a draft head that is wrong is asked now and then, and again once it is right") {
  DraftHeadPlan plan({.fixed = 1.0f, .row = 0.1f, .draft = 0.2f}, /*most_rows=*/64, false);
  for (int i = 0; i < 100; ++i) plan.learn(0, false);
  int asked = 0;
  for (int step = 0; step < 10'000; ++step) asked += plan.ahead(1) > 0 ? 1 : 0;
  CHECK(asked > 100);
  CHECK(asked < 400);
  // Also the tokens far ahead, which are not asked for in between.
  for (int i = 0; i < 100; ++i) plan.learn(1, false);
  for (int step = 0; step < 20'000; ++step) {
    const int ahead = plan.ahead(1);
    for (int i = 0; i < ahead; ++i) plan.learn(i, true);
  }
  CHECK(plan.ahead(1) == DraftHeadPlan::kMostAhead);
}

}  // namespace
}  // namespace lintel::testing
