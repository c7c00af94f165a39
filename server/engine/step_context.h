// StepContext: what a worker's step lends the samples that take tokens from its outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/tensor.h"
#include "model/sampling/head.h"
#include "server/core/clock.h"
#include "server/engine/token_sink.h"
#include "server/engine/work_metrics.h"

namespace lintel {

// One worker's memory and counters for turning outputs into tokens.
struct StepContext {
  TimePoint now;
  std::uint64_t prompt_tokens = 0;  // read, since the counters were taken
  std::uint64_t generated_tokens = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_tokens = 0;
  int most_drafts = 0;  // of a sample in a step; constant
  WorkerMetrics metrics;
  SamplingScratch sampling;
  std::vector<double> log2_probs;  // [V]
  std::vector<std::int32_t> order;
  std::vector<TopValue> top;
};

// The rows of one sequence in one step, handed to its sample after the step.
class OutputRows {
 public:
  OutputRows(MatrixView<const float> outputs, std::size_t first)
      : outputs_(outputs), next_(first) {}
  std::span<const float> next() { return outputs_.row(next_++); }

 private:
  MatrixView<const float> outputs_;
  std::size_t next_;
};

}  // namespace lintel
