// SPDX-License-Identifier: Apache-2.0
#include "bench/generation_speed.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "bench/sequences.h"

namespace lintel::bench {

std::vector<std::int64_t> spread_positions(std::int64_t steps, int count) {
  assert(steps >= 1 && count >= 2);
  std::vector<std::int64_t> positions;
  if (steps <= count) {
    for (std::int64_t p = 0; p < steps; ++p) positions.push_back(p);
    return positions;
  }
  for (int i = 0; i < count; ++i) positions.push_back((steps - 1) * i / (count - 1));
  return positions;
}

double integrate(std::span<const std::int64_t> positions, std::span<const double> costs,
                 std::int64_t steps) {
  assert(!positions.empty() && positions.size() == costs.size());
  double sum = 0;
  std::size_t next = 0;  // the first measured position that is not before p
  for (std::int64_t p = 0; p < steps; ++p) {
    while (next < positions.size() && positions[next] < p) ++next;
    if (next == 0) {
      sum += costs.front();
    } else if (next == positions.size()) {
      sum += costs.back();
    } else {
      const auto width = static_cast<double>(positions[next] - positions[next - 1]);
      const double share = static_cast<double>(p - positions[next - 1]) / width;
      sum += std::lerp(costs[next - 1], costs[next], share);
    }
  }
  return sum;
}

namespace {

// Every position, `repeats` times.
Summary run_whole(WorkerSequences& workers, std::int64_t steps, const GenerationOptions& options) {
  return repeat(options.repeats, [&] {
    const double seconds = workers.run([&](Sequences& own, int w) {
      workers.start(w);
      own.generate(steps);
    });
    options.on_progress();
    return seconds;
  });
}

// Seconds of `repeats` steps one after the other, from `position` on. All workers run at a time,
// and the slowest counts.
std::vector<double> step_seconds(WorkerSequences& workers, std::int64_t position,
                                 const GenerationOptions& options) {
  workers.run([&](Sequences& own, int) { own.read_random(position); });
  std::vector<double> seconds;
  for (int r = 0; r < options.repeats; ++r) seconds.push_back(workers.generate(1));
  return seconds;
}

Summary run_some(WorkerSequences& workers, std::int64_t steps, const GenerationOptions& options) {
  const auto repeats = static_cast<std::size_t>(options.repeats);
  std::vector<std::vector<std::int64_t>> positions(repeats);
  std::vector<std::vector<double>> costs(repeats);
  for (const std::int64_t wanted : spread_positions(steps, options.positions)) {
    // The last repeat is not past the end.
    const std::int64_t position =
        std::max<std::int64_t>(0, std::min(wanted, steps - options.repeats));
    const std::vector<double> seconds = step_seconds(workers, position, options);
    for (std::size_t r = 0; r < repeats; ++r) {
      positions[r].push_back(position + static_cast<std::int64_t>(r));
      costs[r].push_back(seconds[r]);
    }
    options.on_progress();
  }
  std::vector<double> sums;
  for (std::size_t r = 0; r < repeats; ++r) {
    sums.push_back(integrate(positions[r], costs[r], steps));
  }
  return summarize(std::move(sums));
}

}  // namespace

Summary GenerationSpeed::sequences_per_second() const {
  return quotient(static_cast<double>(sequences), seconds);
}

GenerationSpeed measure_generation(const Transformer& model, const GenerationOptions& options) {
  const std::int64_t steps = model.config().max_length;
  WorkerSequences workers(model, options.workers, static_cast<std::size_t>(options.batch));
  GenerationOptions checked = options;
  if (!checked.on_progress) checked.on_progress = [] {};
  // Integration of more positions than there are steps before the last repeat would repeat some.
  const bool whole = options.positions == 0 || options.positions + options.repeats >= steps;
  GenerationSpeed speed;
  speed.seconds = whole ? run_whole(workers, steps, checked) : run_some(workers, steps, checked);
  speed.sequences = std::int64_t{options.workers} * options.batch;
  speed.state_bytes = workers[0].bytes();
  speed.measured_positions = whole ? 0 : options.positions;
  return speed;
}

}  // namespace lintel::bench
