// SPDX-License-Identifier: Apache-2.0
// Measures how fast a model generates whole sequences, step by step or at some positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bench/measure.h"
#include "model/transformer.h"

namespace lintel::bench {

// The cost of a whole sequence from its cost at some positions.

// `count` positions spread evenly over 0 .. steps - 1, both ends among them; all of them where
// there are no more. REQUIRES: steps >= 1, count >= 2.
std::vector<std::int64_t> spread_positions(std::int64_t steps, int count);

// The sum of cost(p) over p = 0 .. steps - 1, where cost is the straight line between two measured
// positions, and beyond the outermost as there. Exact where the cost is linear in the position; of
// a quadratic cost c p^2 it is above the truth by a share of at most 1/(2 (count - 1)^2). REQUIRES:
// positions increasing, not empty, as many as costs.
double integrate(std::span<const std::int64_t> positions, std::span<const double> costs,
                 std::int64_t steps);

struct GenerationSpeed {
  Summary seconds;              // until every sequence is whole
  std::int64_t sequences = 0;   // of all workers
  std::size_t state_bytes = 0;  // of one session at its end
  int measured_positions = 0;   // 0: every position was run
  Summary sequences_per_second() const;
};

struct GenerationOptions {
  int workers = 1;
  int batch = 1;  // sequences of a worker
  int repeats = 1;
  // 0: run every position. Else the steps at so many positions are measured and integrated (see
  // integrate); what comes before them is read as a prompt, which is not counted.
  int positions = 0;
  std::function<void()> on_progress;  // after each repeat, or each position
};

// Sequences of max_tokens() tokens; the first is given. REQUIRES: max_length > 0.
GenerationSpeed measure_generation(const Transformer& model, const GenerationOptions& options);

}  // namespace lintel::bench
