// SPDX-License-Identifier: Apache-2.0
// Attention by sums, of every feature map and of `efficient`, against twins that do what the
// formulas say and no more: no running maximum, nothing kept once that is there twice.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/layers/attention/common/feature_map.h"
#include "tests/model/attention/twin.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::head_of;
using testing::kTwinTolerance;
using testing::largest_difference;
using testing::normal_inputs;
using testing::Row;
using testing::Rows;
using testing::steps;
using testing::TwinInputs;

// ---- The formulas. Real is long double, which holds exp(11,000); or float, as one would write it.

template <typename Real>
std::vector<Real> dpfp(const std::vector<Real>& x, std::size_t nu) {
  std::vector<Real> y;
  for (const Real value : x) y.push_back(std::max(value, Real(0)));
  for (const Real value : x) y.push_back(std::max(-value, Real(0)));
  std::vector<Real> phi;
  for (std::size_t j = 1; j <= nu; ++j) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      phi.push_back(y[i] * y[(i + nu * y.size() - j) % y.size()]);
    }
  }
  return phi;
}

template <typename Real>
Real squared_length(const std::vector<Real>& x) {
  Real sum = 0;
  for (const Real value : x) sum += value * value;
  return sum;
}

template <typename Real>
std::vector<Real> taylor2(const std::vector<Real>& x, Real c) {
  std::vector<Real> phi = {1};
  for (const Real value : x) phi.push_back(c * value);
  for (const Real a : x) {
    for (const Real b : x) phi.push_back(c * a * c * b / std::sqrt(Real(2)));
  }
  return phi;
}

template <typename Real>
std::vector<Real> phi_of(const TwinInputs& in, std::span<const float> row) {
  const AttentionConfig& config = in.config;
  const std::vector<Real> x(row.begin(), row.end());
  if (config.type() == std::string("efficient")) {
    std::vector<Real> phi;
    for (const Real value : x) phi.push_back(std::exp(value));
    return phi;
  }
  const std::string& map = config.choice("feature_map");
  const bool is_of_scores = map == "taylor2" || map == "fourier" || map == "favor";
  const Real c =
      config.number("feature_scale", is_of_scores ? 1.0 / std::sqrt(std::sqrt(x.size())) : 1.0);
  std::vector<Real> u;
  if (config.is_null("features")) {
    for (const Real value : x) u.push_back(c * value);
  } else {
    const Matrix& omega = in.own[0];
    u.assign(omega.cols(), 0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t f = 0; f < u.size(); ++f) u[f] += c * x[i] * omega.row(i)[f];
    }
  }
  std::vector<Real> phi;
  const auto each = [&phi](const std::vector<Real>& values, auto function) {
    for (const Real value : values) phi.push_back(function(value));
  };
  if (map == "elu_plus_one") {
    each(x, [](Real value) { return value > 0 ? value + 1 : std::exp(value); });
  } else if (map == "relu") {
    const Real addend = config.number("feature_eps");
    each(u, [=](Real value) { return std::max(value, Real(0)) + addend; });
  } else if (map == "squared_relu") {
    const Real addend = config.number("feature_eps");
    each(u, [=](Real value) { return std::pow(std::max(value, Real(0)), 2) + addend; });
  } else if (map == "dpfp") {
    return dpfp(x, config.integer("nu"));
  } else if (map == "taylor1") {
    const Real length = std::max(std::sqrt(squared_length(x)), Real(1e-12));
    phi.push_back(1);
    each(x, [=](Real value) { return value / length; });
  } else if (map == "taylor2") {
    return taylor2(x, c);
  } else if (map == "fourier") {
    const Real size = std::sqrt(Real(u.size()));
    each(u, [=](Real value) { return std::cos(value) / size; });
    each(u, [=](Real value) { return std::sin(value) / size; });
    if (config.number("smoothing") > 0) phi.push_back(config.number("smoothing"));
  } else if (map == "exp") {
    each(u, [](Real value) { return std::exp(value); });
  } else {
    const bool is_hyperbolic = config.boolean("hyperbolic");
    const Real taken = c * c * squared_length(x) / 2;
    const Real size = std::sqrt(Real(u.size() * (is_hyperbolic ? 2 : 1)));
    each(u, [=](Real value) { return std::exp(value - taken) / size; });
    if (is_hyperbolic) each(u, [=](Real value) { return std::exp(-value - taken) / size; });
  }
  return phi;
}

// The output of one head for one token after the sums have it.
template <typename Real>
Real output_of(const TwinInputs& in, const std::vector<Real>& phi_q, const std::vector<Real>& z,
               const std::vector<std::vector<Real>>& s, std::size_t m) {
  Real out = 0, denominator = 0;
  if (in.config.type() == std::string("efficient")) {
    for (std::size_t c = 0; c < phi_q.size(); ++c) {
      out += phi_q[c] * (s[c][m] / z[c]);
      denominator += phi_q[c];
    }
    return out / denominator;
  }
  for (std::size_t c = 0; c < phi_q.size(); ++c) {
    out += phi_q[c] * s[c][m];
    denominator += phi_q[c] * z[c];
  }
  return out / (denominator + static_cast<Real>(in.config.number("eps")));
}

template <typename Real>
Rows sum_twin(const TwinInputs& in) {
  const auto d_head = static_cast<std::size_t>(in.dims.d_head);
  Rows outputs(in.num_tokens());
  for (int h = 0; h < in.dims.n_heads; ++h) {
    std::vector<Real> z;
    std::vector<std::vector<Real>> s;
    for (std::size_t t = 0; t < in.num_tokens(); ++t) {
      const std::vector<Real> phi_k = phi_of<Real>(in, head_of(in.inputs[1], t, h, in.dims.d_head));
      const auto v = head_of(in.inputs[2], t, h, in.dims.d_head);
      z.resize(phi_k.size());
      s.resize(phi_k.size(), std::vector<Real>(d_head));
      for (std::size_t c = 0; c < phi_k.size(); ++c) {
        z[c] += phi_k[c];
        for (std::size_t m = 0; m < d_head; ++m) s[c][m] += phi_k[c] * v[m];
      }
      const std::vector<Real> phi_q = phi_of<Real>(in, head_of(in.inputs[0], t, h, in.dims.d_head));
      for (std::size_t m = 0; m < d_head; ++m) {
        outputs[t].push_back(static_cast<double>(output_of(in, phi_q, z, s, m)));
      }
    }
  }
  return outputs;
}

// ---- The tests.

const std::vector<std::string> kSpecs = {
    "linear",
    "linear:feature_map=relu",
    "linear:feature_map=relu,features=19,feature_eps=0.01,feature_scale=1.5",
    "linear:feature_map=squared_relu,feature_scale=0.7",
    "linear:feature_map=squared_relu,features=12",
    "linear:feature_map=dpfp,nu=1",
    "linear:feature_map=dpfp,nu=3",
    "linear:feature_map=taylor1",
    "linear:feature_map=taylor2,eps=0",
    "linear:feature_map=taylor2,feature_scale=0.4",
    "linear:feature_map=fourier,features=18,smoothing=1",
    "linear:feature_map=exp",
    "linear:feature_map=exp,feature_scale=0.5,eps=0",
    "linear:feature_map=favor,features=20",
    "linear:feature_map=favor,features=9,hyperbolic=true,eps=0.001",
    "efficient",
};

void check_against_twin(const std::string& spec, const TwinInputs& in, double tolerance) {
  const Rows expected = sum_twin<long double>(in);
  std::mt19937 generator(7);
  testing::for_each_instruction_set([&] {
    const double largest = largest_difference(steps(in, generator), expected);
    CAPTURE(spec, in.dims.n_heads, in.dims.d_head, in.num_tokens());
    CHECK(largest < tolerance);
  });
}

TEST_CASE("attention by sums follows its formula over ten thousand tokens", "[rows]") {
  const std::string spec = GENERATE(from_range(kSpecs));
  std::mt19937 generator(1);
  const TwinInputs in = normal_inputs(attention_of(spec), 2, 6, 10'000, generator);
  check_against_twin(spec, in, kTwinTolerance);
}

TEST_CASE("attention by sums follows its formula at every head size", "[rows]") {
  const std::string spec = GENERATE(from_range(kSpecs));
  std::mt19937 generator(2);
  for (int d_head = 1; d_head <= 70; d_head += d_head < 20 ? 1 : 5) {
    const TwinInputs in = normal_inputs(attention_of(spec), 1 + d_head % 3, d_head, 12, generator);
    check_against_twin(spec, in, kTwinTolerance);
  }
}

// Queries and keys times `size`.
TwinInputs large_inputs(const std::string& spec, float size, std::size_t n) {
  std::mt19937 generator(3);
  TwinInputs in = normal_inputs(attention_of(spec), 2, 6, n, generator);
  for (const std::size_t which : {0, 1}) {
    for (float& x : in.inputs[which].values()) x *= size;
  }
  return in;
}

TEST_CASE("exp, favor and efficient hold at norms where the formula overflows in f32", "[rows]") {
  const auto [spec, size] = GENERATE(table<std::string, float>(
      {{"linear:feature_map=exp,eps=0", 60.0f},
       {"linear:feature_map=exp", 60.0f},
       {"linear:feature_map=favor,features=20,eps=0", 20.0f},
       {"linear:feature_map=favor,features=20", 20.0f},
       {"linear:feature_map=favor,features=9,hyperbolic=true,eps=0", 20.0f},
       {"efficient", 60.0f}}));
  const TwinInputs in = large_inputs(spec, size, 3000);
  const Rows expected = sum_twin<long double>(in);
  const auto is_finite = [](const Row& row) {
    return std::ranges::all_of(row, [](double x) { return std::isfinite(x); });
  };
  REQUIRE(std::ranges::all_of(expected, is_finite));
  const bool vanishes = spec == "linear:feature_map=favor,features=20";  // 0 / (0 + eps)
  const auto held = std::ranges::count_if(sum_twin<float>(in), is_finite);
  CHECK((vanishes || held < 300));
  check_against_twin(spec, in, 1e-4);
}

TEST_CASE("fourier holds at angles of any size") {
  // All weights are positive (smoothing 2), so the outputs are means of N(0, 1) values.
  const TwinInputs in =
      large_inputs("linear:feature_map=fourier,features=18,smoothing=2", 1e9f, 50);
  std::mt19937 generator(4);
  testing::for_each_instruction_set([&] {
    const Matrix out = steps(in, generator);
    for (const float x : out.values()) CHECK(std::abs(x) < 5.0f);
  });
}

TEST_CASE("a query, key or value that is not finite makes the output so") {
  const std::string spec = GENERATE(from_range(kSpecs));
  std::mt19937 generator(5);
  testing::for_each_instruction_set([&] {
    for (std::size_t which = 0; which < 3; ++which) {
      for (const std::size_t token : {0, 3}) {
        for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
          TwinInputs spoilt = normal_inputs(attention_of(spec), 2, 6, 5, generator);
          spoilt.inputs[which].row(token)[7] = bad;  // of the second head
          const Matrix out = steps(spoilt, generator);
          CAPTURE(spec, which, token, bad);
          CHECK(std::ranges::none_of(out.row(token).subspan(7, 1),
                                     [](float x) { return std::isfinite(x); }));
          CHECK(std::ranges::all_of(out.row(token).first(6),
                                    [](float x) { return std::isfinite(x); }));
        }
      }
    }
  });
}

TEST_CASE("a token allocates nothing once the scratch has grown") {
  const std::string spec = GENERATE(from_range(kSpecs));
  std::mt19937 generator(6);
  const TwinInputs in = normal_inputs(attention_of(spec), 3, 7, 40, generator);
  const auto backend = make_attention(in.params());
  const AlignedArray<float> block = make_aligned<float>(backend->block_floats());
  const auto state = backend->new_state({block.get(), backend->block_floats()});
  std::vector<std::vector<float>> drafts(2, std::vector<float>(backend->rollback_floats(
                                                4, static_cast<std::int64_t>(in.num_tokens()))));
  std::vector<std::vector<MatrixView<const float>>> rows;
  for (std::size_t t = 0; t < in.num_tokens(); t += 5) rows.push_back(in.rows(t, 5));
  const std::vector<LayerState*> states(5, state.get());
  Matrix out(5, 21);
  AttentionScratch scratch;
  backend->step(states, rows[0], out.view(), scratch);
  const testing::AllocationCount count;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    state->begin_speculation(4, drafts[i % 2]);
    backend->step(states, rows[i], out.view(), scratch);
    state->rollback(i % 4 + 1);
  }
  CHECK(count.so_far() == 0);
}

constexpr float kGuardValue = -77.25f;

TEST_CASE("a feature map writes no further than its slack") {
  using enum FeatureMapKind;
  testing::for_each_instruction_set([] {
    for (const FeatureMapKind kind :
         {kEluPlusOne, kRelu, kSquaredRelu, kDpfp, kTaylor1, kTaylor2, kFourier, kExp, kFavor}) {
      for (std::size_t d_head = 1; d_head <= 40; ++d_head) {
        const bool has_omega = kind == kFourier || kind == kFavor;
        const FeatureMap::Options options{.kind = kind,
                                          .n_heads = 2,
                                          .d_head = d_head,
                                          .features = has_omega ? d_head + 3 : 0,
                                          .nu = 2,
                                          .smoothing = 1.0f,
                                          .is_hyperbolic = true};
        const std::vector<float> omega(options.d_head * options.features, 0.3f);
        const FeatureMap map(options, omega);
        const std::vector<float> x(2 * d_head, 0.5f);
        const std::size_t room = 2 * map.num_features() + FeatureMap::kSlack;
        std::vector<float> phi(room + 20, kGuardValue), work(map.work_floats() + 20, kGuardValue);
        map.apply(x, phi.data(), work.data());
        const auto is_guard = [](float value) { return value == kGuardValue; };
        CAPTURE(static_cast<int>(kind), d_head);
        CHECK(std::all_of(phi.end() - 20, phi.end(), is_guard));
        CHECK(std::all_of(work.end() - 20, work.end(), is_guard));
        CHECK(std::none_of(phi.begin(), phi.end() - 20 - FeatureMap::kSlack, is_guard));
      }
    }
  });
}

}  // namespace
}  // namespace lintel
