#include "bench/measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <thread>

namespace lintel::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

double run_on_workers(int workers, const std::function<void(int)>& work) {
  struct Worker {
    Clock::time_point begin, end;
    std::exception_ptr error;
  };
  std::vector<Worker> all(static_cast<std::size_t>(workers));
  std::barrier ready(workers);
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i) {
    threads.emplace_back([&, i] {
      Worker& worker = all[static_cast<std::size_t>(i)];
      ready.arrive_and_wait();
      // On the worker itself: another thread may wake long after the work has started.
      worker.begin = Clock::now();
      try {
        work(i);
      } catch (...) {
        worker.error = std::current_exception();
      }
      worker.end = Clock::now();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : all) {
    if (worker.error) std::rethrow_exception(worker.error);
  }
  return seconds_between(std::ranges::min(all, {}, &Worker::begin).begin,
                         std::ranges::max(all, {}, &Worker::end).end);
}

Summary repeat(int repeats, const std::function<double()>& measure) {
  std::vector<double> values;
  for (int i = 0; i < repeats; ++i) values.push_back(measure());
  return summarize(std::move(values));
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return seconds_between(begin, Clock::now());
}

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  double seconds = 0;
  for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
    seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

}  // namespace lintel::bench
