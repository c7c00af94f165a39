// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cassert>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "client/cli/console.h"

namespace lintel::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

constexpr std::size_t kRows = 64;  // of one step

double bits_of(const Transformer& model, const std::vector<std::uint8_t>& tokens,
               Workspace& workspace) {
  SequenceState sequence = model.new_sequence();
  double bits = 0;
  std::vector<BatchRow> rows;
  for (std::size_t begin = 0; begin + 1 < tokens.size(); begin += kRows) {
    const std::size_t end = std::min(begin + kRows, tokens.size() - 1);
    rows.clear();
    for (std::size_t t = begin; t < end; ++t) rows.push_back({tokens[t], &sequence, true});
    const auto outputs = model.step(rows, workspace);
    for (std::size_t t = begin; t < end; ++t) {
      bits -= model.head().log2_prob(outputs.row(t - begin), tokens[t + 1]);
    }
  }
  return bits;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  assert(!values.empty() && share >= 0 && share <= 1);
  std::ranges::sort(values);
  const double rank = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], rank - static_cast<double>(below));
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

Summary summarize(std::vector<double> values) {
  assert(!values.empty());
  const auto [least, most] = std::ranges::minmax(values);
  const int count = static_cast<int>(values.size());
  return {median(std::move(values)), least, most, count};
}

Summary quotient(double factor, const Summary& measured) {
  assert(factor > 0 && measured.least > 0);
  return {factor / measured.median, factor / measured.most, factor / measured.least,
          measured.count};
}

Summary divided(const Summary& measured, double divisor) {
  return {measured.median / divisor, measured.least / divisor, measured.most / divisor,
          measured.count};
}

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

std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
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

double bits_per_dim(const Transformer& model, const std::vector<GrayImage>& images, int workers) {
  const auto tokens = static_cast<std::size_t>(model.config().max_tokens());
  for (const GrayImage& image : images) {
    if (image.pixels.size() == tokens) continue;
    throw cli::Failure("images of " + std::to_string(image.pixels.size()) +
                       " pixels for a model of " + std::to_string(tokens));
  }
  std::vector<double> bits(images.size());
  run_on_workers(workers, [&](int w) {
    Workspace workspace = model.new_workspace(kRows);
    for (std::size_t i = static_cast<std::size_t>(w); i < images.size();
         i += static_cast<std::size_t>(workers)) {
      bits[i] = bits_of(model, images[i].pixels, workspace);
    }
  });
  return std::accumulate(bits.begin(), bits.end(), 0.0) /
         static_cast<double>(images.size() * (tokens - 1));
}

}  // namespace lintel::bench
