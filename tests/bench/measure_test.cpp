// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <stdexcept>

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

TEST_CASE("every worker runs once, and what one throws is thrown when all have ended") {
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

}  // namespace lintel::bench
