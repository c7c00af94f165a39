// SPDX-License-Identifier: Apache-2.0
// Mixture of discretised logistics over 256 pixel values scaled to [-1, 1] (PixelCNN++, Salimans et
// al. 2017). Double arithmetic.
#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "model/sampling/head.h"

namespace lintel {
namespace {

constexpr int kValues = 256;
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLog127Half = 4.848116150844197;  // log 127.5
constexpr double kMinLogScale = -7.0;
constexpr double kMinBinMass = 1e-5;  // below it the density at the middle stands for the bin
constexpr double kMinSum = 1e-280;    // sums of probabilities below it are redone as logarithms

double center_of(int value) { return value / 255.0 * 2.0 - 1.0; }

double sigmoid(double x) {
  // The form whose exponential cannot overflow is used.
  if (x >= 0.0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

// log(1 + exp(x))
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// One logistic of the mixture, ready to be evaluated at any value.
struct Component {
  double log_weight = 0.0;
  double mean = 0.0;
  double log_scale = 0.0;
  double inverse_scale = 0.0;

  // Edge e of 0 .. 256 lies between the values e - 1 and e, in units of the scale from the mean.
  double edge(int e) const { return inverse_scale * ((2 * e - 1) / 255.0 - 1.0 - mean); }

  // log p(value), given the bin's mass d = sigmoid(edge(value + 1)) - sigmoid(edge(value)), which
  // matters inside only.
  double log_prob(int value, double mass) const {
    if (value == 0) {  // y < -0.999: everything below
      const double a = edge(1);
      return a - softplus(a);
    }
    if (value == kValues - 1) return -softplus(edge(value));  // y > 0.999: everything above
    if (mass > kMinBinMass) return std::log(mass);
    const double ic = inverse_scale * (center_of(value) - mean);
    return ic - log_scale - 2.0 * softplus(ic) - kLog127Half;
  }

  // exp of log_prob, without the detour where there is a direct form.
  double prob(int value, double mass) const {
    const bool inside = value != 0 && value != kValues - 1;
    return inside && mass > kMinBinMass ? mass : std::exp(log_prob(value, mass));
  }
};

class MixtureOfLogisticsHead final : public Head {
 public:
  explicit MixtureOfLogisticsHead(int mixtures) : mixtures_(mixtures) {}

  int num_outputs() const override { return 3 * mixtures_; }
  int vocab_size() const override { return kValues; }
  bool supports_filters() const override { return false; }

  double log2_prob(std::span<const float> output, std::int32_t value) const override {
    const double normalizer = log_normalizer(output);
    double sum = 0.0;
    for (int j = 0; j < mixtures_; ++j) {
      const Component c = component(output, j, normalizer);
      sum += std::exp(c.log_weight) *
             c.prob(value, sigmoid(c.edge(value + 1)) - sigmoid(c.edge(value)));
    }
    return to_log2(output, value, normalizer, sum);
  }

  void log2_probs(std::span<const float> output, std::span<double> out) const override {
    assert(out.size() == kValues);
    const double normalizer = log_normalizer(output);
    std::fill(out.begin(), out.end(), 0.0);
    for (int j = 0; j < mixtures_; ++j) {
      const Component c = component(output, j, normalizer);
      const double weight = std::exp(c.log_weight);
      // Neighbours share an edge. The sums run in log2_prob's order: the bits are its own.
      double below = sigmoid(c.edge(0));
      for (int value = 0; value < kValues; ++value) {
        const double above = sigmoid(c.edge(value + 1));
        out[value] += weight * c.prob(value, above - below);
        below = above;
      }
    }
    for (int value = 0; value < kValues; ++value) {
      out[value] = to_log2(output, value, normalizer, out[value]);
    }
  }

  std::int32_t sample(std::span<const float> output, const SamplingOptions& options,
                      std::span<const std::uint32_t> /*counts*/,
                      std::span<const std::uint64_t> /*allowed*/, DrawSource draw,
                      SamplingScratch& scratch) const override {
    if (options.temperature == 0.0f) return most_likely(output, scratch);
    const double temperature = options.temperature;
    const int j = draw_component(output, temperature, draw.uniform(0), scratch);
    const double s = output[2 * mixtures_ + j];
    const double scale = (s > 0.0 ? s : std::expm1(s)) + 1.0001;  // elu(s) + 1.0001
    const double u = draw.uniform(1);
    const double logistic = std::log(u) - std::log1p(-u);
    const double x = output[mixtures_ + j] + scale * temperature * logistic;
    // Clamped before it becomes an integer: x may be anything.
    const double value = std::nearbyint((x + 1.0) / 2.0 * 255.0);
    return static_cast<std::int32_t>(std::clamp(value, 0.0, kValues - 1.0));
  }

 private:
  // log of the sum of exp over the mixture logits.
  double log_normalizer(std::span<const float> output) const {
    const double highest = *std::max_element(output.begin(), output.begin() + mixtures_);
    double sum = 0.0;
    for (int j = 0; j < mixtures_; ++j) sum += std::exp(output[j] - highest);
    return highest + std::log(sum);
  }

  Component component(std::span<const float> output, int j, double normalizer) const {
    Component c;
    c.log_weight = output[j] - normalizer;
    c.mean = output[mixtures_ + j];
    c.log_scale = std::max<double>(output[2 * mixtures_ + j], kMinLogScale);
    c.inverse_scale = std::exp(-c.log_scale);
    return c;
  }

  // log2 of p(value), whose sum over the components is given; one too small for a double is redone
  // with logarithms.
  double to_log2(std::span<const float> output, int value, double normalizer, double sum) const {
    if (sum > kMinSum) return std::log(sum) * kLog2E;
    const auto log_term = [&](int j) {
      const Component c = component(output, j, normalizer);
      return c.log_weight + c.log_prob(value, sigmoid(c.edge(value + 1)) - sigmoid(c.edge(value)));
    };
    double highest = -std::numeric_limits<double>::infinity();
    for (int j = 0; j < mixtures_; ++j) highest = std::max(highest, log_term(j));
    double relative = 0.0;
    for (int j = 0; j < mixtures_; ++j) relative += std::exp(log_term(j) - highest);
    return (highest + std::log(relative)) * kLog2E;
  }

  // Lowest value among those of the highest probability.
  std::int32_t most_likely(std::span<const float> output, SamplingScratch& scratch) const {
    scratch.values.resize(kValues);
    log2_probs(output, scratch.values);
    return static_cast<std::int32_t>(
        std::max_element(scratch.values.begin(), scratch.values.end()) - scratch.values.begin());
  }

  // The inverse of the cumulative distribution of softmax(mixture logits / temperature).
  int draw_component(std::span<const float> output, double temperature, double uniform,
                     SamplingScratch& scratch) const {
    const double highest = *std::max_element(output.begin(), output.begin() + mixtures_);
    scratch.values.resize(mixtures_);
    double total = 0.0;
    for (int j = 0; j < mixtures_; ++j) {
      scratch.values[j] = std::exp((output[j] - highest) / temperature);
      total += scratch.values[j];
    }
    double sum = 0.0;
    int chosen = 0;
    for (int j = 0; j < mixtures_; ++j) {
      if (scratch.values[j] == 0.0) continue;
      sum += scratch.values[j];
      chosen = j;
      if (sum > uniform * total) break;
    }
    return chosen;
  }

  const int mixtures_;
};

}  // namespace

std::unique_ptr<Head> make_mixture_of_logistics_head(const ModelConfig& config) {
  return std::make_unique<MixtureOfLogisticsHead>(config.mixtures);
}

}  // namespace lintel
