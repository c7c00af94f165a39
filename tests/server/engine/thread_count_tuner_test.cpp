// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <functional>
#include <map>

#include "server/engine/intra_op_parallelism.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::microseconds;

// Steps of some rows, each as long as `takes` says of its threads. Returns how many had which
// number of threads.
using Counts = std::map<int, int>;
Counts run(ThreadCountTuner& choice, int rows, int available, int steps,
           const std::function<Duration(int)>& takes, bool helpers_come = true) {
  Counts counts;
  for (int i = 0; i < steps; ++i) {
    const int threads = choice.choose(rows, available);
    CHECK(choice.wanted() >= threads);
    REQUIRE(threads <= available);
    const int here = helpers_come ? threads : 1;
    ++counts[threads];
    choice.note(here, takes(here));
  }
  return counts;
}

// Models a step with a part that threads share, and a rest that takes as long as ever, in
// microseconds.
std::function<Duration(int)> shared(int part, int rest) {
  return [=](int threads) { return microseconds(part / threads + rest); };
}

TEST_CASE("as many threads share a step as make it faster") {
  ThreadCountTuner choice;
  run(choice, 1, 16, 5'000, shared(1'000, 0));
  CHECK(run(choice, 1, 16, 5'000, shared(1'000, 0))[16] > 4'500);

  ThreadCountTuner of_a_third;  // 2 save a sixth, 4 a tenth of that, 8 next to nothing
  run(of_a_third, 1, 16, 5'000, shared(500, 1'000));
  CHECK(run(of_a_third, 1, 16, 5'000, shared(500, 1'000))[2] > 4'500);
}

TEST_CASE("a saving below a tenth is not worth another core, and is seldom tried") {
  ThreadCountTuner choice;
  const auto takes = shared(180, 910);
  run(choice, 1, 2, 10'000, takes);
  Counts counts = run(choice, 1, 2, 100'000, takes);
  CHECK(counts[2] > 0);
  CHECK(counts[2] < 1'000);
  CHECK(counts[1] > 99'000);
}

TEST_CASE("threads that became a burden are released") {
  ThreadCountTuner choice;
  run(choice, 4, 2, 20'000, shared(1'000, 100));
  CHECK(run(choice, 4, 2, 1'000, shared(1'000, 100))[2] > 900);
  const auto burden = [](int threads) { return microseconds(threads == 1 ? 1'000 : 1'500); };
  run(choice, 4, 2, 20'000, burden);
  CHECK(run(choice, 4, 2, 1'000, burden)[1] > 900);
}

TEST_CASE("steps of few rows and of many have threads of their own") {
  ThreadCountTuner choice;
  const auto helps = shared(1'000, 0);
  const auto hinders = [](int threads) { return microseconds(1'000 * threads); };
  for (int i = 0; i < 200; ++i) {
    run(choice, 1, 2, 10, helps);
    run(choice, 100, 2, 10, hinders);
  }
  CHECK(run(choice, 1, 2, 20, helps)[2] >= 10);
  CHECK(run(choice, 100, 2, 20, hinders)[1] == 20);
  CHECK(choice.wanted() == 2);  // for the others of late
  run(choice, 100, 2, 100, hinders);
  CHECK(choice.wanted() == 1);
}

TEST_CASE("there are no more threads than are available") {
  ThreadCountTuner choice;
  CHECK(run(choice, 1, 1, 5'000, shared(1'000, 0))[1] == 5'000);
  run(choice, 1, 8, 5'000, shared(1'000, 0));
  CHECK(run(choice, 1, 8, 100, shared(1'000, 0))[8] > 50);
  CHECK(run(choice, 1, 3, 100, shared(1'000, 0))[2] == 100);
  CHECK(run(choice, 1, 1, 100, shared(1'000, 0))[1] == 100);
  CHECK(choice.wanted() == 1);
}

TEST_CASE("long steps: a second thread is found within some steps and seldom doubted") {
  ThreadCountTuner choice;
  const auto helps = shared(20'000, 5'000);
  CHECK(run(choice, 1, 2, 16, helps)[1] <= 11);
  CHECK(run(choice, 1, 2, 500, helps)[1] <= 15);
}

TEST_CASE("steps of a large model share all threads from the first one on") {
  ThreadCountTuner choice(/*starts_with_all=*/true);
  CHECK(run(choice, 1, 8, 30, shared(80'000, 1'000))[8] == 30);
  CHECK(run(choice, 1, 8, 500, shared(80'000, 1'000))[8] > 480);
  ThreadCountTuner burdened(/*starts_with_all=*/true);
  const auto burden = [](int threads) { return microseconds(10'000 + 2'000 * threads); };
  run(burdened, 1, 4, 500, burden);
  CHECK(run(burdened, 1, 4, 100, burden)[1] > 80);
}

TEST_CASE("nothing is learnt from helpers that never come, and a step held up now and then") {
  ThreadCountTuner choice;
  Counts counts = run(choice, 1, 2, 100'000, shared(1'000, 0), /*helpers_come=*/false);
  CHECK(counts[1] > 95'000);

  ThreadCountTuner disturbed;
  int steps = 0;
  const auto takes = [&](int threads) {
    const int late = ++steps % 40 == 0 ? 100'000 : 0;
    return microseconds(1'000 / threads + late);
  };
  run(disturbed, 1, 2, 20'000, takes);
  CHECK(run(disturbed, 1, 2, 1'000, takes)[2] > 900);
}

}  // namespace
}  // namespace lintel::testing
