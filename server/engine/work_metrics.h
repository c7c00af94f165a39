// SPDX-License-Identifier: Apache-2.0
// Counts and times of a scheduler: Metrics are written while it works, Stats and Timings are copies
// of them at a moment. Free of the types that show them (server/metrics).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "server/core/clock.h"
#include "server/core/histogram.h"
#include "server/engine/token_sink.h"

namespace lintel {

inline constexpr std::array kSecondsBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                              0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                              1.0,    2.5,     5.0,    10.0,  30.0,   60.0};
inline constexpr std::array kRowsBounds = {1.0,   2.0,   4.0,   8.0,    16.0,   32.0,  64.0,
                                           128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0};
using SecondsHistogram = Histogram<kSecondsBounds.size()>;
using RowsHistogram = Histogram<kRowsBounds.size()>;

// The parts of a worker's step, by which its time is measured.
enum class WorkPart {
  kSchedule,   // who is in it, with how many rows
  kProducts,   // the model's StepPart
  kAttention,  // the same
  kOther,      // the same
  kSample,     // tokens from outputs, and what a draft head expects after them
  kDeliver,    // sinks called, requests ended
};
inline constexpr std::size_t kNumWorkParts = 6;
constexpr const char* to_string(WorkPart part) {
  constexpr const char* kNames[] = {"schedule", "products", "attention",
                                    "other",    "sample",   "deliver"};
  return kNames[static_cast<std::size_t>(part)];
}

// One worker's; written by its thread alone.
struct WorkerMetrics {
  RowsHistogram rows{kRowsBounds};                  // of a step
  SecondsHistogram queued{kSecondsBounds};          // a request, until it is in a batch
  SecondsHistogram first_token{kSecondsBounds};     // a request, until its first new token
  SecondsHistogram between_tokens{kSecondsBounds};  // new tokens of a sample
  std::array<SecondsHistogram, kNumWorkParts> step{
      SecondsHistogram(kSecondsBounds), SecondsHistogram(kSecondsBounds),
      SecondsHistogram(kSecondsBounds), SecondsHistogram(kSecondsBounds),
      SecondsHistogram(kSecondsBounds), SecondsHistogram(kSecondsBounds)};
};

// All workers' together, at a moment.
struct SchedulerTimings {
  HistogramSnapshot rows, queued, first_token, between_tokens;
  std::array<HistogramSnapshot, kNumWorkParts> step;
  void add(const WorkerMetrics& worker) {
    rows.add(worker.rows.snapshot());
    queued.add(worker.queued.snapshot());
    first_token.add(worker.first_token.snapshot());
    between_tokens.add(worker.between_tokens.snapshot());
    for (std::size_t i = 0; i < step.size(); ++i) step[i].add(worker.step[i].snapshot());
  }
  void add(const SchedulerTimings& other) {
    rows.add(other.rows);
    queued.add(other.queued);
    first_token.add(other.first_token);
    between_tokens.add(other.between_tokens);
    for (std::size_t i = 0; i < step.size(); ++i) step[i].add(other.step[i]);
  }
};

inline constexpr std::size_t kNumOutcomes = 10;  // of RequestOutcome, those of a scheduler

// Totals over all workers of a scheduler. Thread-safe.
struct SchedulerMetrics {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> rows{0};
  std::atomic<std::uint64_t> shared_steps{0};  // by several threads
  std::atomic<std::uint64_t> prompt_tokens{0};
  std::atomic<std::uint64_t> generated_tokens{0};
  std::atomic<std::uint64_t> drafted_tokens{0};
  std::atomic<std::uint64_t> accepted_tokens{0};
  std::atomic<std::uint64_t> mask_waits{0};   // steps that rows waited for masks, summed
  std::atomic<std::uint64_t> empty_masks{0};  // masks that permitted no token
  std::atomic<std::uint64_t> unfinished{0};   // accepted, and not ended for their sinks
  std::atomic<std::uint64_t> in_flight{0};    // and those that have ended and are still in memory
  std::array<std::atomic<std::uint64_t>, kNumOutcomes> ended{};  // by RequestOutcome
  // Ticks of Duration since they were submitted, summed.
  std::array<std::atomic<Duration::rep>, kNumOutcomes> ended_ticks{};

  void count_end(RequestOutcome outcome, Duration after) {
    const auto i = static_cast<std::size_t>(outcome);
    ended_ticks[i].fetch_add(after.count(), std::memory_order_relaxed);
    ended[i].fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace lintel
