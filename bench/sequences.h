// Sequences that one worker generates side by side: what the server's worker does, without the
// server.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/transformer.h"

namespace lintel::bench {

// One thread at a time. The model outlives it.
class Sequences {
 public:
  // Sequence i draws with seed `seed` + i.
  Sequences(const Transformer& model, std::size_t count, std::uint64_t seed);

  // Every sequence empty, its first value given.
  void start();
  // Sequence i reads `tokens` after what it has read, and draws the value after them.
  // REQUIRES: not empty.
  void read(std::size_t i, std::span<const std::int32_t> tokens);
  // Every sequence reads the same `count` values, drawn by chance, and nothing else. One sequence
  // reads them, the others are copies.
  void read_random(std::int64_t count);
  // Each sequence feeds its last value and draws the next, `steps` times.
  void generate(std::int64_t steps);
  std::size_t bytes() const;  // of all states

  std::size_t count() const { return sequences_.size(); }
  std::int64_t position() const { return sequences_.front().position(); }
  // Values of sequence i that were drawn since it started.
  const std::vector<std::int32_t>& drawn(std::size_t i) const { return drawn_[i]; }

 private:
  void draw(std::size_t i, std::span<const float> output);

  const Transformer& model_;
  const std::uint64_t seed_;
  Workspace workspace_;
  SamplingOptions sampling_;
  SamplingScratch scratch_;
  std::vector<SequenceState> sequences_;
  std::vector<std::vector<std::int32_t>> drawn_;  // [count]
  std::vector<StepRow> rows_;
};

}  // namespace lintel::bench
