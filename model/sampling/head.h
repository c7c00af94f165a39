// SPDX-License-Identifier: Apache-2.0
// Head: an output row of the transformer -> log-probabilities and samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/core/random.h"

namespace lintel {

// Parameters of drawing a token. Order: logit_bias, penalties, a mask, temperature, top_k, top_p,
// min_p.
struct SamplingOptions {
  float temperature = 1.0f;  // 0: the most likely token (lowest id among equals)
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int penalty_window = 0;  // penalties count the last so many tokens of the sequence; 0: all
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // by token id, each id once

  bool operator==(const SamplingOptions&) const = default;
};

// Working memory of sample(); one per worker thread. Grows to its high-water mark and stays.
struct SamplingScratch {
  std::vector<double> values;
  std::vector<std::int32_t> order;
  // Memory for a large vocabulary: maxima and sums by block; weights of some; tokens with their
  // weights.
  std::vector<double> maxima, sums, weights;
  std::vector<std::pair<double, std::int32_t>> likeliest;
  std::vector<std::uint32_t> counts;  // for callers that have to list them
};

// Const and shareable between threads. `output` is a row of num_outputs() floats, all finite.
class Head {
 public:
  virtual ~Head() = default;

  virtual int num_outputs() const = 0;
  virtual int vocab_size() const = 0;  // V: tokens are 0 .. V-1

  // log2 p(token) under the model: before temperature, penalties and filters.
  virtual double log2_prob(std::span<const float> output, std::int32_t value) const = 0;
  // log2 p of every token. out: [V].
  virtual void log2_probs(std::span<const float> output, std::span<double> out) const = 0;

  // One token; a pure function of its arguments. counts: occurrences of every token in the sequence
  // so far, or among its last penalty_window tokens, [V]; empty when no penalty is set or
  // supports_filters() is false. allowed: the tokens that may be drawn, one at least; bit t % 64 of
  // word t / 64 for token t. Empty: all, as it is when supports_filters() is false.
  virtual std::int32_t sample(std::span<const float> output, const SamplingOptions& options,
                              std::span<const std::uint32_t> counts,
                              std::span<const std::uint64_t> allowed, DrawSource draw,
                              SamplingScratch& scratch) const = 0;

  // True if penalties, logit_bias, masks, top_k, top_p and min_p mean something for this head.
  virtual bool supports_filters() const = 0;
};

std::unique_ptr<Head> make_head(const ModelConfig& config);

}  // namespace lintel
