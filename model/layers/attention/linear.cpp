// SPDX-License-Identifier: Apache-2.0
// Linear attention (Katharopoulos et al. 2020) with any of the feature maps of
// common/feature_map.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "model/layers/attention/sum_attention.h"

namespace lintel {
namespace {

constexpr double kFeatureEps = 0.001;

constexpr ConfigKey kKeys[] = {
    {.name = "feature_map",
     .type = ConfigKey::Type::kChoice,
     .doc = "phi, what queries and keys go through",
     .initial = "\"elu_plus_one\"",
     .choices = {"elu_plus_one", "relu", "squared_relu", "dpfp", "taylor1", "taylor2", "fourier",
                 "exp", "favor"}},  // in the order of FeatureMapKind
    {.name = "eps",
     .type = ConfigKey::Type::kNotNegative,
     .doc = "added to the denominator; 0 only for exp, favor and taylor2",
     .high = 1.0,
     .initial = "1e-6"},
    {.name = "features",
     .type = ConfigKey::Type::kInteger,
     .doc = "random features of fourier and favor, and of relu and squared_relu if given",
     .high = 65'536,
     .initial = "null",
     .null_means = "none"},
    {.name = "feature_scale",
     .type = ConfigKey::Type::kPositive,
     .doc = "of what relu, squared_relu, taylor2, fourier, exp and favor go by",
     .high = 1e6,
     .initial = "null",
     .null_means = "d_head^(-1/4) for taylor2, fourier and favor, else 1"},
    {.name = "feature_eps",
     .type = ConfigKey::Type::kNotNegative,
     .doc = "added to each feature of relu and squared_relu",
     .high = 1.0,
     .initial = "0.001"},
    {.name = "nu",
     .type = ConfigKey::Type::kInteger,
     .doc = "products of dpfp for each of its inputs, which needs it",
     .high = 64,
     .initial = "null",
     .null_means = "none"},
    {.name = "smoothing",
     .type = ConfigKey::Type::kNotNegative,
     .doc = "one more feature of fourier",
     .high = 1e6,
     .initial = "0"},
    {.name = "hyperbolic",
     .type = ConfigKey::Type::kBoolean,
     .doc = "favor has each of its features with either sign",
     .initial = "false"},
};
constexpr const char* kSamples[] = {"",
                                    "eps=0.01",
                                    "feature_map=relu",
                                    "feature_map=relu,features=11,feature_eps=0,feature_scale=2",
                                    "feature_map=squared_relu,features=24",
                                    "feature_map=dpfp,nu=3",
                                    "feature_map=taylor1",
                                    "feature_map=taylor2,eps=0",
                                    "feature_map=fourier,features=13,smoothing=1",
                                    "feature_map=exp,feature_scale=0.5",
                                    "feature_map=favor,features=20,eps=0",
                                    "feature_map=favor,features=7,hyperbolic=true"};

FeatureMapKind map_of(const AttentionConfig& config) {
  const auto& names = kKeys[0].choices;
  const auto is_it = [&](const char* name) { return config.choice("feature_map") == name; };
  return static_cast<FeatureMapKind>(std::ranges::find_if(names, is_it) - names.begin());
}

template <typename... Maps>
bool is_one_of(FeatureMapKind map, Maps... maps) {
  return ((map == maps) || ...);
}

FeatureMap::Options options_of(const AttentionConfig& config, const LayerDims& dims) {
  const FeatureMapKind map = map_of(config);
  const bool is_of_scores =
      is_one_of(map, FeatureMapKind::kTaylor2, FeatureMapKind::kFourier, FeatureMapKind::kFavor);
  const double scale = is_of_scores ? std::pow(dims.d_head, -0.25) : 1.0;
  return {.kind = map,
          .n_heads = static_cast<std::size_t>(dims.n_heads),
          .d_head = static_cast<std::size_t>(dims.d_head),
          .features = config.integer("features"),
          .scale = static_cast<float>(config.number("feature_scale", scale)),
          .addend = static_cast<float>(config.number("feature_eps")),
          .nu = config.integer("nu"),
          .smoothing = static_cast<float>(config.number("smoothing")),
          .is_hyperbolic = config.boolean("hyperbolic")};
}

// ---- Keys that do not go together.

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// A key that only some maps read, and what it is where it is not its default.
struct MapKey {
  const char* name;
  bool is_read;
  std::string found;  // empty: the default
  const char* left_out;
};

std::vector<MapKey> map_keys(const AttentionConfig& config) {
  using enum FeatureMapKind;
  const FeatureMapKind map = map_of(config);
  const auto integer = [&](const char* key) {
    return config.is_null(key) ? "" : std::to_string(config.integer(key));
  };
  const auto number = [&](const char* key, double left_out) {
    const double value = config.number(key, left_out);
    return value == left_out ? "" : text_of(value);
  };
  const bool is_relu = is_one_of(map, kRelu, kSquaredRelu);
  return {{"features", is_relu || is_one_of(map, kFourier, kFavor), integer("features"), "null"},
          {"feature_scale", is_relu || is_one_of(map, kTaylor2, kFourier, kExp, kFavor),
           number("feature_scale", 0.0), "null"},
          {"feature_eps", is_relu, number("feature_eps", kFeatureEps), "0.001"},
          {"nu", map == kDpfp, integer("nu"), "null"},
          {"smoothing", map == kFourier, number("smoothing", 0.0), "0"},
          {"hyperbolic", map == kFavor, config.boolean("hyperbolic") ? "true" : "", "false"}};
}

// The key that decides the number of features.
const char* size_key(FeatureMapKind map) {
  if (map == FeatureMapKind::kDpfp) return "nu";
  const bool has_number = is_one_of(map, FeatureMapKind::kFourier, FeatureMapKind::kFavor);
  return has_number ? "features" : "feature_map";
}

constexpr std::size_t kMostFeatures = 65'536;                   // C
constexpr std::size_t kMostStateFloats = std::size_t{1} << 28;  // H*C*(D+2)

std::optional<Contradiction> contradiction(const AttentionConfig& config, const LayerDims& dims) {
  using enum FeatureMapKind;
  const FeatureMapKind map = map_of(config);
  const std::string of_map = " for feature_map \"" + config.choice("feature_map") + "\"";
  if (config.number("eps") == 0.0 && !is_one_of(map, kTaylor2, kExp, kFavor)) {
    return Contradiction{"eps", "0", "above 0" + of_map};
  }
  for (const MapKey& key : map_keys(config)) {
    if (key.found.empty() || key.is_read) continue;
    return Contradiction{key.name, key.found, key.left_out + of_map};
  }
  if (map == kDpfp && config.is_null("nu")) {
    return Contradiction{"nu", "null", "a number" + of_map};
  }
  if (is_one_of(map, kFourier, kFavor) && config.is_null("features")) {
    return Contradiction{"features", "null", "a number" + of_map};
  }
  if (map == kEluPlusOne) return {};  // bounded by the model's dimensions
  const FeatureMap::Options options = options_of(config, dims);
  // taylor2 counts as it is written, not as it is kept.
  const std::size_t features = map == kTaylor2
                                   ? 1 + options.d_head + options.d_head * options.d_head
                                   : FeatureMap::num_features(options);
  if (features > kMostFeatures) {
    return Contradiction{size_key(map), std::to_string(features) + " features of a head",
                         "at most " + std::to_string(kMostFeatures) + of_map};
  }
  const std::size_t floats = options.n_heads * features * (options.d_head + 2);
  if (floats > kMostStateFloats) {
    return Contradiction{size_key(map), "a state of " + std::to_string(floats) + " floats",
                         "at most " + std::to_string(kMostStateFloats) + of_map};
  }
  return {};
}

// ---- omega.

// Orthogonal random features (Yu et al. 2016): the columns of a D x D block are Gaussian vectors
// made orthogonal to those before them (Gram and Schmidt, in double), with the lengths of other
// Gaussian vectors.
void draw_orthogonal(std::span<float> values, const OwnTensor& of, std::uint64_t seed, int layer) {
  const auto d_head = static_cast<std::size_t>(of.shape[0]);
  const auto features = static_cast<std::size_t>(of.shape[1]);
  std::vector<float> drawn(2 * values.size());  // [2 * features, D]: directions, then lengths
  const OwnTensor rows{.name = "", .shape = {static_cast<std::int64_t>(2 * features), of.shape[0]}};
  draw_normal(drawn, rows, seed, layer);
  const auto dot = [d_head](const auto* a, const auto* b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < d_head; ++i) sum += double{a[i]} * b[i];
    return sum;
  };
  std::vector<double> block(d_head * d_head);  // unit vectors, a row each
  for (std::size_t f = 0; f < features; ++f) {
    double* const row = block.data() + f % d_head * d_head;
    std::copy_n(drawn.data() + f * d_head, d_head, row);
    for (int pass = 0; pass < 2; ++pass) {  // the second takes away what rounding left
      for (const double* other = block.data(); other < row; other += d_head) {
        const double share = dot(row, other);
        for (std::size_t i = 0; i < d_head; ++i) row[i] -= share * other[i];
      }
      const double length = std::sqrt(dot(row, row));
      for (std::size_t i = 0; i < d_head; ++i) row[i] /= length;
    }
    const float* const other = drawn.data() + (features + f) * d_head;
    const double length = std::sqrt(dot(other, other));
    for (std::size_t i = 0; i < d_head; ++i) {
      values[i * features + f] = static_cast<float>(length * row[i]);
    }
  }
}

std::vector<OwnTensor> tensors(const AttentionConfig& config, const LayerDims& dims) {
  if (config.is_null("features")) return {};
  return {{.name = "feature_map.omega",
           .shape = {dims.d_head, static_cast<std::int64_t>(config.integer("features"))},
           .shape_doc = "[D, features], where `features` is given",
           .draw = draw_orthogonal}};
}

}  // namespace

const AttentionKind kind_linear{
    .type = "linear",
    .doc = "sums over positions, read by phi(q) (Katharopoulos et al. 2020)",
    .state = "S [H, C, M] and Z [H, C], of exp and favor m [H, C], too: constant",
    .cost = "constant",
    .keys = kKeys,
    .tensors = tensors,
    .contradiction = contradiction,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      std::span<const float> omega;
      if (!params.own.empty()) omega = params.tensor("feature_map.omega").values();
      return std::make_unique<SumAttention>(
          FeatureMap(options_of(params.config, params.dims), omega), SumReading::kByRow,
          static_cast<float>(params.config.number("eps")));
    },
    .samples = kSamples};

}  // namespace lintel
