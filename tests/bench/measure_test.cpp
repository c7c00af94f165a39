// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>

#include "tests/support/catch.h"

namespace lintel::bench {

TEST_CASE("the time of workers is that of the slowest") {
  using Clock = std::chrono::steady_clock;
  const double seconds = run_on_workers(3, [](int worker) {
    if (worker != 1) return;
    const auto end = Clock::now() + std::chrono::milliseconds(5);
    while (Clock::now() < end) {
    }
  });
  CHECK(seconds >= 0.005);
}

TEST_CASE("every worker runs once, and an exception of one is thrown when all have ended") {
  std::atomic<int> ran{0};
  CHECK_THROWS_AS(run_on_workers(4,
                                 [&ran](int worker) {
                                   ++ran;
                                   if (worker == 2) throw std::runtime_error("no");
                                 }),
                  std::runtime_error);
  CHECK(ran == 4);
}

TEST_CASE("the process's CPU is that of all its threads") {
  const double before = process_cpu_seconds();
  // Each until it has had its share, however little the machine gives it.
  const auto work = [&](int) {
    timespec own{};
    do {
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
    } while (own.tv_sec == 0 && own.tv_nsec < 20'000'000);
  };
  run_on_workers(2, work);
  CHECK(process_cpu_seconds() - before >= 0.035);
}

TEST_CASE("repeating gives as many measurements as asked for") {
  double next = 0;
  CHECK(repeat(5, [&next] { return ++next; }) == Summary{3, 1, 5, 5});
}

TEST_CASE("the median is the middle one, or the mean of the middle two") {
  CHECK(summarize({3, 1, 2}) == Summary{2, 1, 3, 3});
  CHECK(summarize({4, 1, 3, 2}) == Summary{2.5, 1, 4, 4});
  CHECK(summarize({7}) == Summary{7, 7, 7, 1});
}

TEST_CASE("one outlier moves the spread and not the median") {
  CHECK(summarize({10, 11, 9, 10, 1000}) == Summary{10, 9, 1000, 5});
}

TEST_CASE("a quantile lies between the ranks around it") {
  CHECK(quantile({10, 20, 30, 40, 50}, 0) == 10);
  CHECK(quantile({50, 40, 30, 20, 10}, 1) == 50);
  CHECK(quantile({10, 20, 30, 40, 50}, 0.9) == Approx(46));
  CHECK(quantile({5}, 0.99) == 5);
}

TEST_CASE("images a second are least where seconds are most") {
  const Summary rate = quotient(8, Summary{2, 1, 4, 5});
  CHECK(rate == Summary{4, 2, 8, 5});
}

}  // namespace lintel::bench
