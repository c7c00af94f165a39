// SPDX-License-Identifier: Apache-2.0
// Categorical head: softmax over V logits. Double arithmetic; ties go to the lowest id.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
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
  return highest + std::log(sum_of_exponentials(logits, highest, 1.0));
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

// The most candidates of which all are sorted; of more, as many as top_p needs.
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

// More tokens are looked at by blocks.
constexpr std::size_t kMostInOrder = 4096;
constexpr std::size_t kBlock = 512;

template <typename T>
std::span<const T> block_of(std::span<const T> all, std::size_t i) {
  return all.subspan(i * kBlock, std::min(kBlock, all.size() - i * kBlock));
}

std::size_t num_blocks(std::size_t tokens) { return (tokens + kBlock - 1) / kBlock; }

// The block in which the sums up to it are first above `target`, else the last with a sum; before:
// the sum of those before it. REQUIRES: a sum above 0.
std::size_t block_above(std::span<const double> sums, double target, double& before) {
  double sum = 0.0;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < sums.size() && sum <= target; ++i) {
    if (sums[i] == 0.0) continue;
    chosen = i;
    before = sum;
    sum += sums[i];
  }
  return chosen;
}

// The inverse of the cumulative distribution, in the order of ids. REQUIRES: a weight above 0.
// Every filter keeps the likeliest token, whose weight is 1.
std::int32_t draw_by_weight(std::span<const double> weights, double uniform,
                            std::vector<double>& sums) {
  if (weights.size() <= kMostInOrder) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    return static_cast<std::int32_t>(first_above(weights, 0.0, uniform * total));
  }
  sums.clear();
  for (std::size_t i = 0; i < num_blocks(weights.size()); ++i) {
    sums.push_back(sum_of(block_of(weights, i)));
  }
  const double target = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  double before = 0.0;
  const std::size_t chosen = block_above(sums, target, before);
  return static_cast<std::int32_t>(chosen * kBlock +
                                   first_above(block_of(weights, chosen), before, target));
}

// Draws from a large vocabulary, most of whose tokens are never likely: without a weight of each in
// memory. T: float, or double once they are changed.
template <typename T>
class LargeVocabulary {
 public:
  LargeVocabulary(std::span<const T> logits, SamplingScratch& scratch)
      : logits_(logits), scratch_(scratch) {
    scratch.maxima.clear();
    for (std::size_t i = 0; i < num_blocks(logits.size()); ++i) {
      scratch.maxima.push_back(largest_of(block_of(logits, i)));
    }
    highest_ = *std::ranges::max_element(scratch.maxima);
  }

  double highest() const { return highest_; }

  // The lowest id among the highest.
  std::int32_t most_likely() const {
    const auto i = std::ranges::max_element(scratch_.maxima) - scratch_.maxima.begin();
    const std::span<const T> block = block_of(logits_, static_cast<std::size_t>(i));
    const auto j = std::ranges::max_element(block) - block.begin();
    return static_cast<std::int32_t>(i * static_cast<std::ptrdiff_t>(kBlock) + j);
  }

  // The same as draw_by_weight() of all.
  std::int32_t draw_of_all(double temperature, double uniform) {
    const double target = uniform * sum_blocks(temperature);
    double before = 0.0;
    const std::size_t chosen = block_above(scratch_.sums, target, before);
    const std::span<const T> block = block_of(logits_, chosen);
    scratch_.weights.resize(block.size());
    exponentials_of(block, highest_, temperature, scratch_.weights);
    return static_cast<std::int32_t>(chosen * kBlock +
                                     first_above(scratch_.weights, before, target));
  }

  // Returns true if the likeliest tokens that pass the filters are few; then they are in the
  // scratch memory, with their weights, by id.
  bool find_few(const SamplingOptions& options) {
    constexpr std::size_t kFirstWanted = 16;
    const bool limits_k =
        options.top_k > 0 && static_cast<std::size_t>(options.top_k) < logits_.size();
    if (!limits_k && options.top_p >= 1.0f) return false;
    std::size_t wanted = limits_k ? static_cast<std::size_t>(options.top_k) : kFirstWanted;
    auto& found = scratch_.likeliest;
    double total = 0.0;  // of what top_p is a share of
    std::size_t kept = 0;
    for (;; wanted *= 4) {
      bool are_all = false;
      if (!list_likeliest(wanted, options.temperature, are_all)) return false;
      kept = limits_k ? std::min(wanted, found.size()) : found.size();
      if (options.top_p >= 1.0f) break;
      if (limits_k) {
        for (std::size_t i = 0; i < kept; ++i) total += found[i].first;
      } else if (total == 0.0) {
        total = sum_blocks(options.temperature);
      }
      std::size_t holding = 0;
      double sum = 0.0;
      do {
        sum += found[holding++].first;
      } while (holding < kept && sum < options.top_p * total);
      const bool is_enough = limits_k || are_all || sum >= options.top_p * total;
      kept = holding;
      if (is_enough) break;
    }
    while (kept > 1 && found[kept - 1].first < options.min_p) --kept;
    found.resize(kept);
    std::ranges::sort(found, {}, [](const auto& token) { return token.second; });
    return true;
  }

  // REQUIRES: find_few().
  std::int32_t draw_of_few(double uniform) const {
    double total = 0.0;
    for (const auto& [weight, id] : scratch_.likeliest) total += weight;
    double sum = 0.0;
    std::int32_t last = 0;
    for (const auto& [weight, id] : scratch_.likeliest) {
      if (weight == 0.0) continue;
      sum += weight;
      last = id;
      if (sum > uniform * total) break;
    }
    return last;
  }

 private:
  double sum_blocks(double temperature) {
    scratch_.sums.clear();
    for (std::size_t i = 0; i < scratch_.maxima.size(); ++i) {
      const bool is_banned = scratch_.maxima[i] == kBanned;
      scratch_.sums.push_back(
          is_banned ? 0.0 : sum_of_exponentials(block_of(logits_, i), highest_, temperature));
    }
    return std::accumulate(scratch_.sums.begin(), scratch_.sums.end(), 0.0);
  }

  // Lists with their weights the likeliest tokens, in order: at least so many, unless fewer are
  // allowed; are_all: they are all that are. Returns false where it would have to sort too many.
  bool list_likeliest(std::size_t wanted, double temperature, bool& are_all) {
    if (wanted > scratch_.maxima.size() / 2) return false;
    std::vector<double>& ranked = scratch_.weights;
    ranked = scratch_.maxima;
    const auto place = ranked.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
    std::nth_element(ranked.begin(), place, ranked.end(), std::greater<>());
    const double least = *place;  // `wanted` blocks have a token that is as likely
    auto& found = scratch_.likeliest;
    found.clear();
    for (std::size_t i = 0; i < scratch_.maxima.size(); ++i) {
      if (scratch_.maxima[i] < least || scratch_.maxima[i] == kBanned) continue;
      const std::span<const T> block = block_of(logits_, i);
      for (std::size_t j = 0; j < block.size(); ++j) {
        if (block[j] < least || block[j] == kBanned) continue;
        found.emplace_back(block[j], static_cast<std::int32_t>(i * kBlock + j));
      }
      if (found.size() > kMostSorted) return false;
    }
    std::vector<double>& weights = scratch_.weights;
    weights.clear();
    for (const auto& [logit, id] : found) weights.push_back(logit);
    exponentials_of(std::span<const double>(weights), highest_, temperature, weights);
    for (std::size_t i = 0; i < found.size(); ++i) found[i].first = weights[i];
    std::ranges::sort(found, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    are_all = least == kBanned;
    return true;
  }

  const std::span<const T> logits_;
  SamplingScratch& scratch_;
  double highest_ = kBanned;
};

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
    if (options.logit_bias.empty() && counts.empty() && allowed.empty()) {
      return draw_of(output, options, draw, scratch);
    }
    scratch.values.resize(output.size());
    const std::span<double> values(scratch.values);
    std::copy(output.begin(), output.end(), values.begin());
    apply_bias(options, values);
    apply_penalties(options, counts, values);
    apply_mask(allowed, values);
    if (largest_of(values) == kBanned) {
      // Every token is banned, which leaves no distribution: the biases are void.
      std::copy(output.begin(), output.end(), values.begin());
      apply_penalties(options, counts, values);
      apply_mask(allowed, values);
    }
    return draw_of(std::span<const double>(values), options, draw, scratch);
  }

 private:
  // Draws by temperature and filters. logits: may be scratch.values, which then changes.
  template <typename T>
  static std::int32_t draw_of(std::span<const T> logits, const SamplingOptions& options,
                              DrawSource draw, SamplingScratch& scratch) {
    double highest = 0.0;
    if (logits.size() > kMostInOrder) {
      LargeVocabulary<T> vocabulary(logits, scratch);
      highest = vocabulary.highest();
      if (options.temperature == 0.0f) return vocabulary.most_likely();
      if (options.top_k <= 0 && options.top_p >= 1.0f && options.min_p <= 0.0f) {
        return vocabulary.draw_of_all(options.temperature, draw.uniform(0));
      }
      if (vocabulary.find_few(options)) return vocabulary.draw_of_few(draw.uniform(0));
    } else {
      highest = largest_of(logits);
      if (options.temperature == 0.0f) {  // the lowest id among the highest
        return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
      }
    }
    // Weights relative to the highest: it has 1, at every temperature.
    scratch.values.resize(logits.size());
    scratch.order.resize(logits.size());
    const std::span<double> weights(scratch.values);
    exponentials_of(logits, highest, options.temperature, weights);
    keep_top(options, weights, scratch.order);
    if (options.min_p > 0.0f) {
      for (double& weight : weights) {
        if (weight < options.min_p) weight = 0.0;
      }
    }
    return draw_by_weight(weights, draw.uniform(0), scratch.sums);
  }

  const int vocab_size_;
};

}  // namespace

std::unique_ptr<Head> make_categorical_head(const ModelConfig& config) {
  return std::make_unique<CategoricalHead>(config.vocab_size);
}

}  // namespace lintel
