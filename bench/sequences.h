// Sequences that one worker generates side by side: what the server's worker does, without the
// server.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/transformer.h"

namespace lintel::bench {

// One thread at a time. The model outlives it.
class Sequences {
 public:
  // Up to `count` at a time, which have the adapters in turn; empty: none.
  Sequences(const Transformer& model, std::size_t count,
            std::span<const std::shared_ptr<const Adapter>> adapters = {});

  // `count` sequences, empty but for their first value, which is given. Sequence i draws with seed
  // `seed` + i. REQUIRES: `count` is at most the constructor's.
  void start(std::size_t count, std::uint64_t seed);
  // Rows of a step that reads; the model's most_prompt_rows() at most, and unless this is called.
  void read_in_steps_of(std::size_t rows);
  // Sequence i reads `tokens` after what it has read, and draws the value after them.
  // REQUIRES: not empty.
  void read(std::size_t i, std::span<const std::int32_t> tokens);
  // Every sequence is reset and reads the same `count` random values. One sequence reads them, the
  // others are copies.
  void read_random(std::int64_t count);
  // Each sequence feeds its last value and draws the next, `steps` times.
  void generate(std::int64_t steps);

  // See Workspace::observe.
  void observe(StepObserver* observer) { workspace_.observe(observer); }

  std::size_t bytes() const;  // of the first one's state
  std::int64_t position() const { return sequences_.front().position(); }
  // Values of sequence i that were drawn since it started.
  const std::vector<std::int32_t>& drawn(std::size_t i) const { return drawn_[i]; }

 private:
  void draw(std::size_t i, std::span<const float> output);

  const Transformer& model_;
  Workspace workspace_;
  SamplingOptions sampling_;
  SamplingScratch scratch_;
  std::size_t prompt_rows_;
  std::uint64_t seed_ = 0;
  std::size_t count_ = 0;                         // that are in use
  std::vector<SequenceState> sequences_;          // [most]
  std::vector<std::vector<std::int32_t>> drawn_;  // [most]
  std::vector<StepRow> rows_;
};

}  // namespace lintel::bench
