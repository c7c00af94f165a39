// SPDX-License-Identifier: Apache-2.0
// Longformer (Beltagy et al. 2020): softmax over a window, which may have gaps, and over the first
// positions, in the causal form.
//
//   P_h(t) = {t - j d_h: 0 <= j < W}  u  {s < G}  u  {all s <= t, where t < G}
//
// with W = window, d_h = dilation, G = global_tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/layers/attention/pattern_attention.h"

namespace lintel {
namespace {

// The first G are kept for ever; of the others, as many as the widest window spans.
class LongformerPattern final : public PositionPattern {
 public:
  LongformerPattern(std::size_t window, std::span<const std::int64_t> dilations,
                    std::size_t global_tokens, std::size_t max_length)
      : window_(window), num_first_(at_most(global_tokens, max_length)) {
    for (const std::int64_t d : dilations) dilations_.push_back(static_cast<std::size_t>(d));
    const std::size_t span = (window - 1) * std::ranges::max(dilations_) + 1;
    num_recent_ = max_length == 0 ? span : std::min(span, max_length - num_first_);
  }

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    PatternParts seen;
    seen.add(run_of(Kept::kFirst, 0, std::min(num_first_, t + 1)));
    if (t >= num_first_) {
      const std::size_t d = dilations_[h % dilations_.size()];
      const std::size_t count = std::min(window_, (t - num_first_) / d + 1);
      const std::size_t first = t - (count - 1) * d;
      if (d == 1) {
        seen.add(run_of(Kept::kRecent, first, t + 1));
      } else {
        seen.add({.kept = Kept::kRecent, .first = first, .period = d, .count = count});
      }
    }
    return seen.part(i);
  }

  std::size_t num_first() const override { return num_first_; }
  std::size_t num_recent() const override { return num_recent_; }
  std::size_t recent_from(std::size_t n) const override {
    return std::max(n - std::min(n, num_recent_), std::min(n, num_first_));
  }

 private:
  const std::size_t window_;
  std::vector<std::size_t> dilations_;  // one for all heads, or one a head
  const std::size_t num_first_;
  std::size_t num_recent_ = 0;
};

constexpr ConfigKey kKeys[] = {
    kPatternScale,
    {.name = "window",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions seen, the own one included",
     .high = kMostPositions},
    {.name = "dilation",
     .type = ConfigKey::Type::kIntegers,
     .doc = "from one position of the window to the next, of all heads or of each",
     .high = 65536,
     .initial = "1"},
    {.name = "global_tokens",
     .type = ConfigKey::Type::kInteger,
     .doc = "so many of the sequence's first positions see all before them, and are seen by all",
     .low = 0,
     .high = kMostPositions,
     .initial = "0"},
};
constexpr const char* kSamples[] = {"window=8", "window=5,dilation=3,global_tokens=2",
                                    "window=1,global_tokens=11,scale=0.4"};

std::optional<Contradiction> contradiction(const AttentionConfig& config, const LayerDims& dims) {
  const std::vector<std::int64_t> dilations = config.integers("dilation");
  if (dilations.size() != 1 && dilations.size() != static_cast<std::size_t>(dims.n_heads)) {
    return Contradiction{"dilation", "a list of " + std::to_string(dilations.size()),
                         "one for each of n_heads = " + std::to_string(dims.n_heads)};
  }
  const std::int64_t span = (static_cast<std::int64_t>(config.integer("window")) - 1) *
                            *std::ranges::max_element(dilations);
  if (span < INT32_MAX) return {};
  return Contradiction{"window", std::to_string(config.integer("window")),
                       "(window - 1) * dilation = " + std::to_string(span) + " to be below " +
                           std::to_string(INT32_MAX)};
}

std::unique_ptr<AttentionBackend> make(const AttentionParams& params) {
  const AttentionConfig& config = params.config;
  return std::make_unique<PatternAttention>(
      params,
      std::make_unique<LongformerPattern>(config.integer("window"), config.integers("dilation"),
                                          config.integer("global_tokens"),
                                          static_cast<std::size_t>(params.dims.max_length)));
}

}  // namespace

const AttentionKind kind_longformer{
    .type = "longformer",
    .doc =
        "softmax over a window, which may have gaps, and the first positions (Beltagy et al. 2020)",
    .state = "keys and values of `global_tokens` and the positions that the window spans: constant",
    .cost = "reads `window` + `global_tokens` of them: constant",
    .keys = kKeys,
    .contradiction = contradiction,
    .make = make,
    .samples = kSamples};

}  // namespace lintel
