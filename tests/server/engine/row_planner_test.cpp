// SPDX-License-Identifier: Apache-2.0
// The rows of a step are shared out, without a model.
#include "server/engine/row_planner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <vector>

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

BatchSlice reading(int wanted, std::int64_t read = 0) {
  BatchSlice run;
  run.read = read;
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
  CHECK(rows_of(planner, {given, reading(100)}) == Rows{14, 2});
}

TEST_CASE("a step for which no client waits may have more rows for prompts") {
  RowPlanner planner({.max_rows = 16, .prefill_rows = 6, .prompt_rows = 40});
  CHECK(rows_of(planner, {reading(100)}) == Rows{40});
  CHECK(rows_of(planner, {reading(100), reading(100)}) == Rows{35, 5});
  CHECK(rows_of(planner, {decoding(), reading(100)}) == Rows{1, 6});
}

TEST_CASE("a step that no client waits for has prompt_rows rows where that is faster") {
  RowPlanner planner({.max_rows = 16, .prefill_rows = 6, .prompt_rows = 8});
  CHECK(rows_of(planner, {reading(100)}) == Rows{8});
  CHECK(rows_of(planner, {reading(5), reading(100)}) == Rows{5, 3});
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

// Prompts that are read beside answers, step by step, on a machine of which a step takes `truth`.
struct Reading {
  struct Prompt {
    std::int64_t left = 0;
    std::int64_t read = 0;
    const void* caller = nullptr;
  };

  // Returns the step's time.
  float step() {
    std::vector<BatchSlice> runs(static_cast<std::size_t>(answers), decoding());
    for (const Prompt& prompt : prompts) {
      runs.push_back(
          reading(static_cast<int>(std::min<std::int64_t>(prompt.left, 128)), prompt.read));
      runs.back().caller = prompt.caller;
    }
    planner.plan(runs);
    int rows = 0;
    int sequences = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      rows += runs[i].rows;
      sequences += runs[i].rows > 0 ? 1 : 0;
      if (i < static_cast<std::size_t>(answers)) continue;
      Prompt& prompt = prompts[i - static_cast<std::size_t>(answers)];
      prompt.left -= runs[i].rows;
      prompt.read += runs[i].rows;
    }
    const float alone = truth.of(answers, answers);
    const float time = alone + slower * (truth.of(rows, sequences) - alone);
    if (unit > 0.0f) planner.learn(unit * time);
    return time;
  }
  // Steps until a prompt is read, which leaves then.
  int steps_to_read(std::size_t prompt) {
    int steps = 0;
    for (; prompts[prompt].left > 0 && steps < 100'000; ++steps) step();
    prompts.erase(prompts.begin() + static_cast<std::ptrdiff_t>(prompt));
    return steps;
  }
  // The part of their speed that answers keep over some steps.
  float speed_kept(int steps) {
    float time = 0.0f;
    for (int i = 0; i < steps; ++i) time += step();
    return static_cast<float>(steps) * truth.of(answers, answers) / time;
  }

  RowPlanner planner;
  int answers = 1;
  std::vector<Prompt> prompts;
  StepCost truth;
  float slower = 1.0f;  // rows of prompts than the truth
  float unit = 0.0f;    // seconds; 0: the planner does not learn what steps take
};

TEST_CASE("the prompt that has had fewest tokens read goes first") {
  const std::vector<BatchSlice> runs = {decoding(), reading(99, 40), reading(99, 10),
                                        reading(99, 20)};
  RowPlanner planner({.max_rows = 64, .prefill_rows = 8});
  CHECK(rows_of(planner, runs) == Rows{1, 1, 6, 1});
  // A row a step comes to the same.
  RowPlanner narrow({.max_rows = 64, .prefill_rows = 1});
  Rows sum(4, 0);
  for (int step = 0; step < 16; ++step) {
    const Rows rows = rows_of(narrow, runs);
    for (std::size_t i = 0; i < 4; ++i) sum[i] += rows[i];
  }
  CHECK(sum == Rows{16, 2, 12, 2});
  // Of those that have had as many, one that is soon read.
  CHECK(rows_of(planner, {reading(99, 10), reading(5, 10), decoding()}) == Rows{3, 5, 1});
}

TEST_CASE("each of four prompts that wait longest has an eighth of the rows") {
  RowPlanner planner({.max_rows = 64, .prefill_rows = 16});
  std::vector<BatchSlice> runs(7, reading(99, 50));
  runs.back().read = 0;
  runs.push_back(decoding());
  CHECK(rows_of(planner, runs) == Rows{2, 2, 2, 2, 0, 0, 8, 1});
  // One of each caller before a second one of any.
  const int callers[3] = {};
  for (std::size_t i = 0; i < 7; ++i) runs[i].caller = &callers[i == 4 ? 1 : i == 5 ? 2 : 0];
  CHECK(rows_of(planner, runs) == Rows{2, 2, 0, 0, 2, 2, 8, 1});
}

TEST_CASE("a long prompt is read though short ones come all the time") {
  Reading reading{.planner = RowPlanner({.max_rows = 64, .prefill_rows = 8})};
  constexpr std::int64_t kLong = 400;
  reading.prompts = {{.left = kLong}};
  const int callers[9] = {};
  int steps = 0;
  for (; reading.prompts.front().left > 0 && steps < 1000; ++steps) {
    while (reading.prompts.size() < 9) {
      reading.prompts.push_back({.left = 30, .caller = &callers[reading.prompts.size()]});
    }
    reading.step();
    std::erase_if(reading.prompts, [&](const Reading::Prompt& prompt) {
      return prompt.left == 0 && &prompt != &reading.prompts.front();
    });
  }
  CHECK(steps <= kLong);  // a row of eight in each
}

TEST_CASE("a short prompt behind ten long ones takes twice its time alone and a slice at most") {
  for (const int prefill_rows : {0, 1, 8, 32}) {
    for (const std::int64_t length : {10, 200, 1000}) {
      CAPTURE(prefill_rows, length);
      Reading reading{.planner = RowPlanner({.max_rows = 64, .prefill_rows = prefill_rows}),
                      .answers = 4};
      reading.prompts = {{.left = length}};
      const int alone = reading.steps_to_read(0);
      reading.prompts.assign(10, {.left = 30'000, .read = 1000});
      for (int step = 0; step < 100; ++step) reading.step();
      reading.prompts.push_back({.left = length});
      CHECK(reading.steps_to_read(10) <= 2 * alone + 4);  // four rows are a slice
    }
  }
}

TEST_CASE("answers keep 0.7 of their speed while prompts are read, by the cost of a step") {
  const StepCost costs[] = {
      {.fixed = 0.75f, .row = 0.25f},
      {.fixed = 0.98f, .row = 0.02f},
      {.fixed = 0.1f, .row = 0.5f, .state = 0.4f},  // less than a row a step
      {.fixed = 0.5f, .row = 0.01f, .state = 0.02f, .few_rows = 16, .more_row = 0.1f}};
  for (const StepCost& cost : costs) {
    for (const int answers : {1, 3, 20}) {
      CAPTURE(cost.fixed, answers);
      Reading reading{.planner = RowPlanner(
                          {.max_rows = 64, .prefill_rows = 0, .prompt_rows = 128, .cost = cost}),
                      .answers = answers,
                      .truth = cost};
      const float dearest = std::max(cost.row, cost.more_row) + cost.state;
      const float longest = cost.of(answers, answers) / RowPlanner::kSpeedKept + dearest;
      reading.prompts.assign(3, {.left = 1'000'000});
      for (int step = 0; step < 100; ++step) CHECK(reading.step() <= 1.001f * longest);
      const float kept = reading.speed_kept(1000);
      CHECK(kept >= 0.699f);
      CHECK(kept <= 0.75f);  // the time is for prompts
    }
  }
}

TEST_CASE("a step has no more rows than there is memory for, however cheap they are") {
  RowPlanner planner({.max_rows = 16,
                      .prefill_rows = 0,
                      .prompt_rows = 40,
                      .cost = {.fixed = 1.0f, .row = 0.0001f}});
  CHECK(rows_of(planner, {decoding(), reading(100)}) == Rows{1, 39});
  CHECK(rows_of(planner, {reading(100)}) == Rows{40});
}

TEST_CASE("rows of prompts that take longer than the cost says become fewer") {
  const StepCost cost{.fixed = 0.9f, .row = 0.1f};
  Reading reading{.planner = RowPlanner({.max_rows = 64, .prefill_rows = 0, .cost = cost}),
                  .answers = 4,
                  .prompts = {{.left = 1'000'000}},
                  .truth = cost,
                  .unit = 1e-3f};
  CHECK(reading.speed_kept(640) >= 0.695f);
  reading.slower = 4.0f;  // far into a long prompt
  for (int step = 0; step < 320; ++step) reading.step();
  const float kept = reading.speed_kept(640);
  CHECK(kept >= 0.68f);
  CHECK(kept <= 0.78f);
  // Where all takes longer prompts do not pay for it.
  reading.unit = 3e-3f;
  for (int step = 0; step < 640; ++step) reading.step();
  CHECK(reading.speed_kept(640) <= 0.78f);
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

TEST_CASE("a prompt beside an answer takes none of its drafts") {
  FakeDrafts drafts{0.5f, 0.5f};
  RowPlanner planner({.max_rows = 64, .prefill_rows = 32, .draft_rows = 64});
  CHECK(rows_of(planner, {decoding(1, &drafts), reading(100)}) == Rows{3, 32});
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
