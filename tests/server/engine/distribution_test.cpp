// SPDX-License-Identifier: Apache-2.0
// Requests with particles: what they aim at, of a model that is small enough to know it.
#include <algorithm>
#include <cmath>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

using Path = std::vector<std::int32_t>;

// A model of few tokens, and every way in which the hidden ones of a request can be filled.
struct Enumerated {
  std::shared_ptr<const Transformer> model = changed_model(
      TinyModel::kTokens,
      [](ModelConfig& config) {
        config.vocab_size = 4;
        config.n_layers = 1;
        config.attention.resize(1, config.attention[0]);
        config.d_ff = 16;
      },
      // Flatter weights make many ways likely, so that the given tokens decide among them.
      [](ModelWeights& weights) {
        for (float& weight : weights.predictor.weight.values()) weight *= 0.35f;
      });
  GenerationRequest request;
  std::vector<Path> paths;
  std::vector<double> joint;  // p(hidden and known tokens | prompt)

  Enumerated() {
    request.prompt = {1, 3};
    request.max_new_tokens = 6;
    request.given = {{3, 2}, {6, 0}, {7, 2}};
    for (std::int32_t a = 0; a < 4; ++a) {
      for (std::int32_t b = 0; b < 4; ++b) {
        for (std::int32_t c = 0; c < 4; ++c) {
          paths.push_back({a, 2, b, c, 0, 2});
          joint.push_back(probability_of(paths.back()));
        }
      }
    }
  }

  double probability_of(const Path& path) const {
    SequenceState sequence = model->new_sequence();
    Workspace workspace = model->new_workspace(1);
    std::vector<std::int32_t> tokens = request.prompt;
    tokens.insert(tokens.end(), path.begin(), path.end());
    double log2_prob = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const BatchRow row{tokens[i], &sequence, /*wants_output=*/true};
      const auto output = model->step(std::span(&row, 1), workspace).row(0);
      if (i + 1 >= request.prompt.size()) {
        log2_prob += model->head().log2_prob(output, tokens[i + 1]);
      }
    }
    return std::exp2(log2_prob);
  }

  double evidence() const {
    double sum = 0;
    for (const double p : joint) sum += p;
    return sum;
  }
  std::size_t index_of(const Path& path) const {
    const auto found = std::ranges::find(paths, path);
    REQUIRE(found != paths.end());
    return static_cast<std::size_t>(found - paths.begin());
  }
  // Half the sum of differences between how often paths came and how likely they are.
  double distance(const std::vector<double>& counts) const {
    double total = 0;
    for (const double count : counts) total += count;
    double sum = 0;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      sum += std::abs(counts[i] / total - joint[i] / evidence()) / 2;
    }
    return sum;
  }
};

TEST_CASE("samples of particles are of the distribution given all that is known") {
  const Enumerated exact;
  const int runs = kSanitized ? 200 : 2000;
  constexpr int kSamples = 10;
  Core core(exact.model, {.workers = 0, .max_batch_rows = 64});
  std::vector<double> with(exact.paths.size()), without(exact.paths.size());
  for (int i = 0; i < runs; ++i) {
    GenerationRequest request = exact.request;
    request.seed = 1000 * static_cast<std::uint64_t>(i);
    request.num_samples = kSamples;
    const auto plain = core.generate(request);
    request.particles = 60;
    const auto sink = core.generate(request);
    for (int k = 0; k < kSamples; ++k) {
      with[exact.index_of(sink->tokens(k))] += 1;
      without[exact.index_of(plain->tokens(k))] += 1;
    }
  }
  std::size_t likely = 0;
  for (const double p : exact.joint) likely += p > 0.01 * exact.evidence();
  CAPTURE(exact.distance(with), exact.distance(without), likely, exact.evidence());
  CHECK(likely >= 10);
  CHECK(exact.distance(without) > 0.15);
  CHECK(exact.distance(with) < (kSanitized ? 0.08 : 0.025));
}

TEST_CASE("the mean of the evidence is the probability of what is known, of few particles, too") {
  const Enumerated exact;
  const int runs = kSanitized ? 1000 : 20'000;
  Core core(exact.model, {.workers = 0, .max_batch_rows = 64});
  // The evidence of the runs that end in a path is, in the mean, that path's probability: exactly,
  // of any number of particles.
  std::vector<double> sum(exact.paths.size()), squares(exact.paths.size());
  double total = 0, total_squares = 0;
  for (int i = 0; i < runs; ++i) {
    GenerationRequest request = exact.request;
    request.seed = 1000 * static_cast<std::uint64_t>(i);
    request.particles = 4;
    const auto sink = core.generate(request);
    const double evidence = std::exp2(*sink->result().log2_evidence);
    const std::size_t path = exact.index_of(sink->tokens());
    sum[path] += evidence;
    squares[path] += evidence * evidence;
    total += evidence;
    total_squares += evidence * evidence;
  }
  const auto within = [&](double added, double added_squares, double expected) {
    const double mean = added / runs;
    const double error = std::sqrt((added_squares / runs - mean * mean) / runs);
    CAPTURE(mean, expected, error);
    CHECK(std::abs(mean - expected) < 4.5 * error);
  };
  within(total, total_squares, exact.evidence());
  CHECK(std::abs(total / runs / exact.evidence() - 1) < (kSanitized ? 0.2 : 0.03));
  // One by one those that come often enough for their mean to be known.
  double rest = 0, rest_squares = 0, rest_joint = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (exact.joint[i] > 0.01 * exact.evidence()) {
      within(sum[i], squares[i], exact.joint[i]);
      continue;
    }
    rest += sum[i];
    rest_squares += squares[i];
    rest_joint += exact.joint[i];
  }
  within(rest, rest_squares, rest_joint);
}

}  // namespace
}  // namespace lintel::testing
