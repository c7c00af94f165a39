// SPDX-License-Identifier: Apache-2.0
// Categorical head: softmax over V logits. Double arithmetic; ties go to the lowest id.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/sampling/exponentials.h"
#include "model/sampling/head.h"

namespace lintel {
namespace {

constexpr double kBanned = -std::numeric_limits<double>::infinity();
constexpr double kLog2E = 1.4426950408889634;

// log(sum of exp(logits)).
double log_sum_exp(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  return highest + std::log(sum_of_exponentials(logits, highest));
}

void apply_bias(const SamplingOptions& options, std::span<double> logits) {
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    // The bound keeps an infinite bias comparable with itself: forced, not NaN.
    logits[id] = std::min(logits[id] + bias, 1e300);
  }
}

void apply_penalties(const SamplingOptions& options, std::span<const std::uint32_t> counts,
                     std::span<double> logits) {
  for (std::size_t id = 0; id < counts.size(); ++id) {
    double& logit = logits[id];
    if (counts[id] == 0 || logit == kBanned) continue;
    const double repetition = options.repetition_penalty;
    logit = logit > 0.0 ? logit / repetition : logit * repetition;
    logit -= options.presence_penalty;
    logit -= double{options.frequency_penalty} * counts[id];
  }
}

// Empty: all are allowed.
void apply_mask(std::span<const std::uint64_t> allowed, std::span<double> logits) {
  for (std::size_t word = 0; word < allowed.size(); ++word) {
    if (allowed[word] == ~std::uint64_t{0}) continue;
    const std::span<double> some =
        logits.subspan(64 * word, std::min<std::size_t>(64, logits.size() - 64 * word));
    if (allowed[word] == 0) {
      std::ranges::fill(some, kBanned);
      continue;
    }
    for (std::size_t bit = 0; bit < some.size(); ++bit) {
      if ((allowed[word] >> bit & 1) == 0) some[bit] = kBanned;
    }
  }
}

// Lowest id among the highest.
std::int32_t most_likely(std::span<const double> values) {
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

// Of so many candidates all are sorted. A vocabulary of 250,000 is not: a few of them hold top_p
// nearly always.
constexpr std::size_t kMostSorted = 4096;

// The smallest number of candidates whose weights make up top_p of all; at least 1. They are the
// first of `candidates` then, the likeliest first.
template <typename Likelier>
std::size_t num_that_hold(double top_p, std::span<const double> weights,
                          std::span<std::int32_t> candidates, const Likelier& likelier) {
  std::size_t sorted = 0;
  const auto sort_to = [&](std::size_t end) {
    const auto begin = candidates.begin();
    if (end < candidates.size()) {
      std::nth_element(begin + static_cast<std::ptrdiff_t>(sorted),
                       begin + static_cast<std::ptrdiff_t>(end), candidates.end(), likelier);
    }
    std::sort(begin + static_cast<std::ptrdiff_t>(sorted), begin + static_cast<std::ptrdiff_t>(end),
              likelier);
    sorted = end;
  };
  sort_to(candidates.size() <= kMostSorted ? candidates.size() : kMostSorted / 16);
  double total = 0.0;
  for (const std::int32_t id : candidates) total += weights[id];
  double sum = 0.0;
  std::size_t kept = 0;
  do {
    if (kept == sorted) sort_to(std::min(4 * sorted, candidates.size()));
    sum += weights[candidates[kept++]];
  } while (kept < candidates.size() && sum < top_p * total);
  return kept;
}

// Drops what top_k and top_p exclude by setting its weight to 0. `order` is working memory, [V].
void keep_top(const SamplingOptions& options, std::span<double> weights,
              std::span<std::int32_t> order) {
  const bool limits_k =
      options.top_k > 0 && static_cast<std::size_t>(options.top_k) < weights.size();
  const bool limits_p = options.top_p < 1.0f;
  if (!limits_k && !limits_p) return;

  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [weights](std::int32_t a, std::int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  std::size_t kept = weights.size();
  if (limits_k) {
    kept = static_cast<std::size_t>(options.top_k);
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                     likelier);
  }
  if (limits_p) kept = num_that_hold(options.top_p, weights, order.first(kept), likelier);
  for (const std::int32_t id : order.subspan(kept)) weights[id] = 0.0;
}

// The first id at which `sum` and the weights up to it are above `target`; else the last one with a
// weight. REQUIRES: a weight above 0.
std::size_t first_above(std::span<const double> weights, double sum, double target) {
  std::size_t last = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0.0) continue;
    sum += weights[id];
    last = id;
    if (sum > target) break;
  }
  return last;
}

// More weights are summed by blocks of kSummed.
constexpr std::size_t kMostInOrder = 4096;
constexpr std::size_t kSummed = 1024;

// The inverse of the cumulative distribution, in the order of ids. REQUIRES: a weight above 0.
// Every filter keeps the likeliest token, whose weight is 1.
std::int32_t draw_by_weight(std::span<const double> weights, double uniform) {
  if (weights.size() <= kMostInOrder) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    return static_cast<std::int32_t>(first_above(weights, 0.0, uniform * total));
  }
  const auto block_at = [&](std::size_t begin) {
    return weights.subspan(begin, std::min(kSummed, weights.size() - begin));
  };
  double total = 0.0;
  for (std::size_t i = 0; i < weights.size(); i += kSummed) total += sum_of(block_at(i));
  const double target = uniform * total;
  double before = 0.0, sum = 0.0;
  std::size_t chosen = 0;  // where the block of the target begins, or the last with a weight
  for (std::size_t i = 0; i < weights.size() && sum <= target; i += kSummed) {
    const double of_block = sum_of(block_at(i));
    if (of_block == 0.0) continue;
    chosen = i;
    before = sum;
    sum += of_block;
  }
  return static_cast<std::int32_t>(chosen + first_above(block_at(chosen), before, target));
}

class CategoricalHead final : public Head {
 public:
  explicit CategoricalHead(int vocab_size) : vocab_size_(vocab_size) {}

  int num_outputs() const override { return vocab_size_; }
  int vocab_size() const override { return vocab_size_; }
  bool supports_filters() const override { return true; }

  double log2_prob(std::span<const float> output, std::int32_t value) const override {
    return (output[value] - log_sum_exp(output)) * kLog2E;
  }

  void log2_probs(std::span<const float> output, std::span<double> out) const override {
    const double normalizer = log_sum_exp(output);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = (output[i] - normalizer) * kLog2E;
  }

  std::int32_t sample(std::span<const float> output, const SamplingOptions& options,
                      std::span<const std::uint32_t> counts, std::span<const std::uint64_t> allowed,
                      DrawSource draw, SamplingScratch& scratch) const override {
    assert(counts.empty() || counts.size() == output.size());
    assert(allowed.empty() || allowed.size() == (output.size() + 63) / 64);
    scratch.values.resize(output.size());
    scratch.order.resize(output.size());
    const std::span<double> values(scratch.values);
    if (options.logit_bias.empty() && counts.empty() && allowed.empty()) {
      const float highest = largest_of(output);
      if (options.temperature == 0.0f) {
        return static_cast<std::int32_t>(std::ranges::find(output, highest) - output.begin());
      }
      exponentials_of(output, highest, options.temperature, values);
      return draw_filtered(options, draw, scratch);
    }

    std::copy(output.begin(), output.end(), values.begin());
    apply_bias(options, values);
    apply_penalties(options, counts, values);
    apply_mask(allowed, values);
    double highest = largest_of(values);
    if (highest == kBanned) {
      // Every token is banned, which leaves no distribution: the biases are void.
      std::copy(output.begin(), output.end(), values.begin());
      apply_penalties(options, counts, values);
      apply_mask(allowed, values);
      highest = largest_of(values);
    }
    if (options.temperature == 0.0f) return most_likely(values);

    // Weights relative to the highest: it has 1, at every temperature.
    exponentials(values, highest, options.temperature);
    return draw_filtered(options, draw, scratch);
  }

 private:
  // Of the weights in scratch.values.
  static std::int32_t draw_filtered(const SamplingOptions& options, DrawSource draw,
                                    SamplingScratch& scratch) {
    const std::span<double> weights(scratch.values);
    keep_top(options, weights, scratch.order);
    if (options.min_p > 0.0f) {
      for (double& weight : weights) {
        if (weight < options.min_p) weight = 0.0;
      }
    }
    return draw_by_weight(weights, draw.uniform(0));
  }

  const int vocab_size_;
};

}  // namespace

std::unique_ptr<Head> make_categorical_head(const ModelConfig& config) {
  return std::make_unique<CategoricalHead>(config.vocab_size);
}

}  // namespace lintel
