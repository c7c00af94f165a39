// How fast a model generates whole sequences, measured step by step or at some positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "bench/statistics.h"
#include "model/transformer.h"

namespace lintel::bench {

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
  // integration.h); what comes before them is read as a prompt, which is not counted.
  int positions = 0;
  std::function<void()> on_progress;  // after each repeat, or each position
};

// Sequences of max_values() values; the first is given. REQUIRES: max_length > 0.
GenerationSpeed measure_generation(const Transformer& model, const GenerationOptions& options);

}  // namespace lintel::bench
