// SPDX-License-Identifier: Apache-2.0
#include "model/sampling/head.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

std::unique_ptr<Head> categorical(int vocab_size) {
  ModelConfig config;
  config.head = HeadKind::kCategorical;
  config.vocab_size = vocab_size;
  return make_head(config);
}

std::unique_ptr<Head> mixture(int mixtures) {
  ModelConfig config;
  config.head = HeadKind::kMixtureOfLogistics;
  config.vocab_size = 256;
  config.mixtures = mixtures;
  return make_head(config);
}

std::vector<float> normal_values(std::size_t count, float scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// The likelihood as the format page writes it.
double mixture_log2_prob(std::span<const float> output, int value) {
  const std::size_t n = output.size() / 3;
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const auto softplus = [](double x) { return x > 30.0 ? x : std::log1p(std::exp(x)); };
  double total = 0.0;
  for (std::size_t j = 0; j < n; ++j) total += std::exp(double{output[j]});
  const double y = value / 255.0 * 2.0 - 1.0;
  double p = 0.0;
  for (std::size_t j = 0; j < n; ++j) {
    const double log_scale = std::max(double{output[2 * n + j]}, -7.0);
    const double c = y - output[n + j];
    const double i = std::exp(-log_scale);
    const double a = i * (c + 1.0 / 255.0);
    const double b = i * (c - 1.0 / 255.0);
    const double d = sigmoid(a) - sigmoid(b);
    double log_p = 0.0;
    if (y < -0.999) {
      log_p = a - softplus(a);
    } else if (y > 0.999) {
      log_p = -softplus(b);
    } else if (d > 1e-5) {
      log_p = std::log(d);
    } else {
      log_p = i * c - log_scale - 2.0 * softplus(i * c) - std::log(127.5);
    }
    p += std::exp(double{output[j]}) / total * std::exp(log_p);
  }
  return std::log2(p);
}

std::int32_t draw(const Head& head, std::span<const float> output, const SamplingOptions& options,
                  std::int64_t position, std::span<const std::uint32_t> counts = {}) {
  SamplingScratch scratch;
  return head.sample(output, options, counts, {}, {.seed = 11, .position = position}, scratch);
}

// Counts of each token in `draws` draws.
std::vector<int> histogram(const Head& head, std::span<const float> output,
                           const SamplingOptions& options, int draws,
                           std::span<const std::uint32_t> counts = {}) {
  std::vector<int> found(static_cast<std::size_t>(head.vocab_size()), 0);
  for (int i = 0; i < draws; ++i) ++found[draw(head, output, options, i, counts)];
  return found;
}

// Observed frequencies against probabilities: five standard deviations, and four more draws,
// because rare tokens are not normally distributed.
void check_frequencies(const std::vector<int>& found, const std::vector<double>& expected) {
  const double n = std::accumulate(found.begin(), found.end(), 0.0);
  for (std::size_t v = 0; v < found.size(); ++v) {
    const double deviation = std::sqrt(n * expected[v] * (1.0 - expected[v]));
    CAPTURE(v, found[v], n * expected[v]);
    CHECK(std::abs(found[v] - n * expected[v]) <=
          5.0 * deviation + (expected[v] > 0.0 ? 4.0 : 0.0));
  }
}

std::vector<double> softmax(std::vector<double> logits) {
  double total = 0.0;
  for (double& logit : logits) total += logit = std::exp(logit);
  for (double& p : logits) p /= total;
  return logits;
}

TEST_CASE("the mixture's likelihood is the format's, in every branch") {
  for (const int mixtures : {1, 3, 10}) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      const auto n = static_cast<std::size_t>(mixtures);
      std::vector<float> output = normal_values(3 * n, 1.0f, seed);
      // From wide to narrow enough for the density branch and the clamp at -7.
      for (std::size_t j = 0; j < n; ++j) output[2 * n + j] = output[2 * n + j] * 2.0f - seed;
      const auto head = mixture(mixtures);
      std::vector<double> all(256);
      head->log2_probs(output, all);
      for (int value = 0; value < 256; ++value) {
        const double expected = mixture_log2_prob(output, value);
        CAPTURE(mixtures, seed, value);
        CHECK(all[value] == head->log2_prob(output, value));
        if (expected > -900.0) CHECK(all[value] == Approx(expected).epsilon(1e-9).margin(1e-6));
      }
    }
  }
}

TEST_CASE("the mixture's probabilities add up to one where the bins are wide") {
  const std::vector<float> output = {0.3f, -1.0f, 0.2f, -0.4f, -1.5f, -0.5f};
  std::vector<double> all(256);
  mixture(2)->log2_probs(output, all);
  double sum = 0.0;
  for (const double log2_prob : all) sum += std::exp2(log2_prob);
  CHECK(sum == Approx(1.0).epsilon(1e-9));
}

TEST_CASE("a token the mixture all but excludes still has a finite log-probability") {
  for (const float extreme : {30.0f, 1e4f, 3e38f}) {
    const std::vector<float> far_mean = {0.0f, extreme, -7.0f};
    const std::vector<float> flat = {0.0f, 0.0f, extreme};
    const std::vector<float> one_sided = {extreme, -extreme, 0.5f, -0.5f, -7.0f, -7.0f};
    for (int value = 0; value < 256; ++value) {
      CAPTURE(extreme, value);
      CHECK(std::isfinite(mixture(1)->log2_prob(far_mean, value)));
      CHECK(std::isfinite(mixture(1)->log2_prob(flat, value)));
      CHECK(std::isfinite(mixture(2)->log2_prob(one_sided, value)));
    }
  }
}

TEST_CASE("mixture samples follow the sampler's distribution") {
  // One logistic: the chance of value v is the mass of its bin at scale elu(s) + 1.0001.
  const auto head = mixture(1);
  for (const float temperature : {1.0f, 0.5f}) {
    const std::vector<float> output = {0.0f, 0.1f, -2.0f};
    const double scale = (std::expm1(-2.0) + 1.0001) * temperature;
    const auto below = [&](double edge) { return 1.0 / (1.0 + std::exp(-(edge - 0.1f) / scale)); };
    std::vector<double> expected(256);
    for (int v = 0; v < 256; ++v) {
      const double low = v == 0 ? 0.0 : below((2 * v - 1) / 255.0 - 1.0);
      const double high = v == 255 ? 1.0 : below((2 * v + 1) / 255.0 - 1.0);
      expected[v] = high - low;
    }
    check_frequencies(histogram(*head, output, {.temperature = temperature}, 40000), expected);
  }
}

TEST_CASE("mixture components are picked by softmax of logits over temperature") {
  // Components so narrow and far apart that the value names the component.
  const std::vector<float> output = {0.0f, 1.0f, -1.0f, -0.8f, 0.0f, 0.8f, -30.0f, -30.0f, -30.0f};
  const auto head = mixture(3);
  for (const float temperature : {1.0f, 2.0f}) {
    const auto found = histogram(*head, output, {.temperature = temperature}, 20000);
    const auto near = [&](int center) {
      return std::accumulate(found.begin() + center - 20, found.begin() + center + 20, 0);
    };
    const auto expected = softmax({0.0 / temperature, 1.0 / temperature, -1.0 / temperature});
    check_frequencies({near(26), near(128), near(230)}, expected);
  }
}

TEST_CASE("at temperature 0 the mixture gives its most likely token, the lowest among equals") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<float> output = normal_values(30, 2.0f, seed);
    std::vector<double> all(256);
    mixture(10)->log2_probs(output, all);
    const auto best = std::max_element(all.begin(), all.end()) - all.begin();
    CHECK(draw(*mixture(10), output, {.temperature = 0.0f}, seed) == best);
  }
  // A mixture so wide and so far off that every inner value has the same probability to the last
  // bit, and both tails half of it all.
  const std::vector<float> even = {0.0f, 0.0f, 80.0f};
  CHECK(draw(*mixture(1), even, {.temperature = 0.0f}, 0) == 0);
}

TEST_CASE("any temperature gives the mixture a token in range") {
  const auto head = mixture(2);
  const std::vector<std::vector<float>> outputs = {{0.0f, 1.0f, -0.5f, 0.5f, -1.0f, -2.0f},
                                                   {3e38f, -3e38f, 3e38f, -3e38f, 3e38f, -3e38f},
                                                   {-3e38f, -3e38f, -3e38f, -3e38f, 3e38f, 3e38f}};
  for (const auto& output : outputs) {
    for (const float temperature : {1e-45f, 1e-20f, 1.0f, 1e20f, 3e38f}) {
      for (int i = 0; i < 20; ++i) {
        const std::int32_t value = draw(*head, output, {.temperature = temperature}, i);
        CHECK((value >= 0 && value <= 255));
      }
    }
  }
  // Next to nothing is next to the mean of the likeliest component.
  CHECK(draw(*head, outputs[0], {.temperature = 1e-45f}, 0) == 191);
}

TEST_CASE("categorical log-probabilities are those of softmax") {
  const auto head = categorical(50);
  const std::vector<float> output = normal_values(50, 3.0f, 1);
  std::vector<double> all(50);
  head->log2_probs(output, all);
  const auto expected = softmax({output.begin(), output.end()});
  for (int v = 0; v < 50; ++v) {
    CHECK(all[v] == Approx(std::log2(expected[v])).epsilon(1e-12));
    CHECK(head->log2_prob(output, v) == all[v]);
  }
  const std::vector<float> huge = {3e38f, -3e38f, 0.0f};
  CHECK(categorical(3)->log2_prob(huge, 0) == 0.0);
  CHECK(std::isfinite(categorical(3)->log2_prob(huge, 1)));
}

TEST_CASE("categorical samples follow softmax at any temperature") {
  const auto head = categorical(6);
  const std::vector<float> output = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f, -8.0f};
  for (const float temperature : {1.0f, 0.3f, 4.0f}) {
    std::vector<double> logits;
    for (const float logit : output) logits.push_back(logit / temperature);
    check_frequencies(histogram(*head, output, {.temperature = temperature}, 20000),
                      softmax(logits));
  }
  CHECK(draw(*head, output, {.temperature = 0.0f}, 0) == 2);
  for (int i = 0; i < 50; ++i) CHECK(draw(*head, output, {.temperature = 1e-45f}, i) == 2);
  check_frequencies(histogram(*head, output, {.temperature = 3e38f}, 6000),
                    std::vector<double>(6, 1.0 / 6));
}

TEST_CASE("equal logits: the lowest id wins at temperature 0 and in top_k") {
  const auto head = categorical(5);
  const std::vector<float> output = {1.0f, 3.0f, 3.0f, 3.0f, 0.0f};
  CHECK(draw(*head, output, {.temperature = 0.0f}, 0) == 1);
  const auto found = histogram(*head, output, {.top_k = 2}, 2000);
  CHECK(found[1] + found[2] == 2000);
  CHECK(found[1] > 0);
  CHECK(found[2] > 0);
}

TEST_CASE("top_k, top_p and min_p keep what they say") {
  const auto head = categorical(4);
  // Probabilities 0.5, 0.25, 0.15, 0.1, out of order.
  const std::vector<float> output = {std::log(0.15f), std::log(0.5f), std::log(0.1f),
                                     std::log(0.25f)};
  const auto kept = [&](const SamplingOptions& options) {
    std::vector<int> ids;
    const auto found = histogram(*head, output, options, 1000);
    for (int v = 0; v < 4; ++v) {
      if (found[v] > 0) ids.push_back(v);
    }
    return ids;
  };
  using Ids = std::vector<int>;
  CHECK(kept({}) == Ids{0, 1, 2, 3});
  CHECK(kept({.top_k = 1}) == Ids{1});
  CHECK(kept({.top_k = 3}) == Ids{0, 1, 3});
  CHECK(kept({.top_k = 99}) == Ids{0, 1, 2, 3});
  CHECK(kept({.top_p = 0.4f}) == Ids{1});
  CHECK(kept({.top_p = 0.6f}) == Ids{1, 3});
  CHECK(kept({.top_p = 0.85f}) == Ids{0, 1, 3});
  CHECK(kept({.top_p = 0.0f}) == Ids{1});  // never nothing
  CHECK(kept({.min_p = 0.25f}) == Ids{0, 1, 3});
  CHECK(kept({.min_p = 1.0f}) == Ids{1});
  // top_p is a share of what top_k left: 0.5 of 0.75 is enough for 0.66.
  CHECK(kept({.top_k = 2, .top_p = 0.66f}) == Ids{1});
  CHECK(kept({.top_k = 2, .top_p = 0.68f}) == Ids{1, 3});
  // After temperature: at 1/2 the probabilities are as their squares, 0.72 at the top.
  CHECK(kept({.temperature = 0.5f, .top_p = 0.7f}) == Ids{1});
  // The remaining tokens keep their proportions.
  check_frequencies(histogram(*head, output, {.top_k = 2}, 20000), {0.0, 2.0 / 3, 0.0, 1.0 / 3});
}

TEST_CASE("filters of a large vocabulary keep what sorting all of it would keep") {
  // The vocabulary has several times as many blocks as are looked at first, or fewer.
  const int tokens = GENERATE(70'000, 6'000);
  const float scale = GENERATE(0.0f, 0.5f, 3.0f);  // flat: nearly all are kept; steep: a few
  const float top_p = GENERATE(0.0f, 0.9f, 0.999f);
  const int top_k = GENERATE(0, 3, 66, 80'000);
  const float temperature = top_k == 66 ? 0.7f : 1.0f;
  const float min_p = GENERATE(0.0f, 0.2f);
  const int allowed_of = GENERATE(1, 3, 10'000);  // one token of so many is
  CAPTURE(tokens, temperature, scale, top_p, top_k, min_p, allowed_of);
  static std::uint64_t number = 0;
  if (!testing::is_drawn(number++, 8)) return;
  const auto head = categorical(tokens);
  std::vector<float> logits = normal_values(tokens, scale, 11);
  for (float& logit : logits) logit = std::round(logit * 64.0f) / 64.0f;  // many equal ones

  std::vector<std::uint64_t> mask((tokens + 63) / 64);
  std::vector<std::int32_t> order;
  for (std::int32_t id = 0; id < tokens; id += allowed_of) {
    mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
    order.push_back(id);
  }
  std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
  std::vector<double> weights;
  for (const std::int32_t id : order) {
    weights.push_back(std::exp((double{logits[id]} - logits[order[0]]) / temperature));
  }
  if (top_k > 0) weights.resize(std::min(weights.size(), static_cast<std::size_t>(top_k)));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t kept = 0;
  for (double sum = 0.0; kept == 0 || (kept < weights.size() && sum < top_p * total); ++kept) {
    sum += weights[kept];
  }
  std::vector<double> share(tokens, 0.0);
  for (std::size_t i = 0; i < kept; ++i) {
    if (weights[i] >= min_p) share[order[i]] = weights[i];
  }
  std::vector<double> up_to(tokens);
  std::partial_sum(share.begin(), share.end(), up_to.begin());

  // The draw is the inverse of the cumulative distribution: its ends show which tokens are left.
  SamplingScratch scratch;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const DrawSource draw{.seed = seed, .position = 3};
    const std::int32_t found = head->sample(
        logits, {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p}, {},
        allowed_of == 1 ? std::span<const std::uint64_t>() : mask, draw, scratch);
    REQUIRE(share[found] > 0.0);
    const double target = draw.uniform(0) * up_to.back();
    CHECK(up_to[found] - share[found] <= target * (1 + 1e-9) + 1e-9);
    CHECK(up_to[found] >= target * (1 - 1e-9));
  }
}

TEST_CASE("a large vocabulary is drawn from as the cumulative distribution says") {
  // Not whole blocks; some have no weight at all.
  const int vocab_size = 9'000;
  const auto head = categorical(vocab_size);
  std::vector<float> output = normal_values(vocab_size, 3.0f, 8);
  std::fill(output.begin() + 2'000, output.begin() + 4'500,
            -std::numeric_limits<float>::infinity());
  const float highest = *std::ranges::max_element(output);
  std::vector<double> below(output.size() + 1);  // the weights before each id
  for (std::size_t i = 0; i < output.size(); ++i) {
    below[i + 1] = below[i] + std::exp(double{output[i]} - highest);
  }
  SamplingScratch scratch;
  std::vector<std::uint64_t> all((output.size() + 63) / 64, ~std::uint64_t{0});
  for (std::int64_t position = 0; position < 3'000; ++position) {
    const DrawSource draw{.seed = 4, .position = position};
    const std::int32_t token = head->sample(output, {}, {}, {}, draw, scratch);
    const double target = draw.uniform(0) * below.back();
    CAPTURE(position, token, target);
    CHECK(below[static_cast<std::size_t>(token)] <= target * (1 + 1e-12));
    CHECK(below[static_cast<std::size_t>(token) + 1] >= target * (1 - 1e-12));
    // The way of those with masks and penalties gives the same.
    CHECK(head->sample(output, {}, {}, all, draw, scratch) == token);
  }
  SamplingOptions greedy;
  greedy.temperature = 0.0f;
  output[7'000] = output[8'000] = highest + 1;
  CHECK(head->sample(output, greedy, {}, {}, {.seed = 1}, scratch) == 7'000);
}

TEST_CASE("penalties count the tokens of the sequence") {
  const auto head = categorical(4);
  const std::vector<float> output = {2.0f, -1.0f, 0.5f, 0.0f};
  const std::vector<std::uint32_t> counts = {3, 1, 0, 2};
  SamplingOptions options;
  options.repetition_penalty = 2.0f;  // positive logits are divided, negative multiplied
  check_frequencies(histogram(*head, output, options, 20000, counts),
                    softmax({1.0, -2.0, 0.5, 0.0}));
  options = {};
  options.presence_penalty = 0.5f;
  check_frequencies(histogram(*head, output, options, 20000, counts),
                    softmax({1.5, -1.5, 0.5, -0.5}));
  options = {};
  options.frequency_penalty = 0.25f;
  check_frequencies(histogram(*head, output, options, 20000, counts),
                    softmax({1.25, -1.25, 0.5, -0.5}));
  check_frequencies(histogram(*head, output, options, 20000), softmax({2.0, -1.0, 0.5, 0.0}));
}

TEST_CASE("logit bias comes before the penalties, and can ban or force") {
  const auto head = categorical(4);
  const std::vector<float> output = {2.0f, 1.0f, 0.5f, 0.0f};
  const std::vector<std::uint32_t> counts = {1, 0, 0, 1};
  const float infinity = std::numeric_limits<float>::infinity();
  SamplingOptions options;
  options.logit_bias = {{0, -3.0f}, {3, 1.0f}};
  options.repetition_penalty = 2.0f;
  check_frequencies(histogram(*head, output, options, 20000, counts),
                    softmax({-2.0, 1.0, 0.5, 0.5}));

  options = {};
  options.logit_bias = {{0, -infinity}, {1, -infinity}};
  options.presence_penalty = 1.0f;
  const auto found = histogram(*head, output, options, 2000, counts);
  CHECK(found[0] + found[1] == 0);
  CHECK(found[2] > 0);
  CHECK(found[3] > 0);
  options.temperature = 0.0f;
  CHECK(draw(*head, output, options, 0) == 2);

  options = {};
  options.logit_bias = {{3, infinity}};
  for (int i = 0; i < 20; ++i) CHECK(draw(*head, output, options, i) == 3);
}

TEST_CASE("bans of every token are void") {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto head = categorical(3);
  const std::vector<float> output = {0.0f, 2.0f, 1.0f};
  SamplingOptions options;
  options.logit_bias = {{0, -infinity}, {1, -infinity}, {2, -infinity}};
  check_frequencies(histogram(*head, output, options, 20000), softmax({0.0, 2.0, 1.0}));
  options.temperature = 0.0f;
  CHECK(draw(*head, output, options, 0) == 1);
}

TEST_CASE("a mask: allowed tokens are drawn as if the others had no weight") {
  const auto head = categorical(130);
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<std::uint64_t> mask = {0b1011, ~std::uint64_t{0}, 0b10};
  SamplingScratch scratch;
  for (int i = 0; i < 200; ++i) {
    const auto output = normal_values(130, 3.0f, static_cast<unsigned>(i));
    SamplingOptions options{.top_k = i % 3 * 20, .top_p = i % 2 == 0 ? 0.8f : 1.0f};
    if (i % 5 == 0) options.temperature = 0.0f;
    if (i % 7 == 0) options.logit_bias = {{5, infinity}};  // which the mask bans
    const DrawSource source{.seed = 11, .position = i};
    SamplingOptions banned = options;
    for (int v = 4; v < 64; ++v) banned.logit_bias.push_back({v, -infinity});
    for (const int v : {2, 128}) banned.logit_bias.push_back({v, -infinity});
    if (i % 7 == 0) std::erase(banned.logit_bias, std::pair(5, infinity));
    CHECK(head->sample(output, options, {}, mask, source, scratch) ==
          head->sample(output, banned, {}, {}, source, scratch));
  }
  // Biases that ban what the mask allows are void; the mask is not.
  mask = {0, 0, 0b10};
  const SamplingOptions options{.logit_bias = {{129, -infinity}}};
  const auto output = normal_values(130, 3.0f, 1);
  CHECK(head->sample(output, options, {}, mask, {.seed = 1, .position = 1}, scratch) == 129);
}

TEST_CASE("filters and banned tokens at once leave a token in range") {
  const auto head = categorical(100);
  const float infinity = std::numeric_limits<float>::infinity();
  SamplingOptions options{.top_k = 5, .top_p = 0.9f, .min_p = 0.1f};
  for (int v = 3; v < 100; ++v) options.logit_bias.push_back({v, -infinity});
  for (const float temperature : {0.0f, 1e-45f, 1.0f, 3e38f}) {
    options.temperature = temperature;
    for (int i = 0; i < 50; ++i) {
      const auto output = normal_values(100, 5.0f, static_cast<unsigned>(i));
      const std::int32_t value = draw(*head, output, options, i);
      CHECK((value >= 0 && value < 3));
    }
  }
}

TEST_CASE("a sample is a function of its arguments and not of the scratch memory") {
  const auto head = categorical(64);
  const auto output = normal_values(64, 1.0f, 1);
  SamplingScratch used;
  used.values.assign(1000, 5.0);
  used.order.assign(1000, 7);
  const SamplingOptions options{.top_k = 20, .top_p = 0.95f};
  for (int i = 0; i < 100; ++i) {
    const DrawSource source{.seed = 11, .position = i};
    CHECK(head->sample(output, options, {}, {}, source, used) == draw(*head, output, options, i));
  }
}

TEST_CASE("heads report their outputs, vocabulary and filters") {
  CHECK(categorical(10)->supports_filters());
  CHECK_FALSE(mixture(10)->supports_filters());
  CHECK(categorical(10)->num_outputs() == 10);
  CHECK(mixture(10)->num_outputs() == 30);
  CHECK(mixture(10)->vocab_size() == 256);
}

}  // namespace
}  // namespace lintel
