// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/mixer_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "model/core/vector_loops-inl.h"
// clang-format on

#include "model/ops/mixer_kernels.h"

#include <algorithm>
#include <cassert>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

float SumOfSquares(const float* x, size_t n) {
  return sum_of(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    return hn::Mul(value, value);
  });
}

// y may be x. gain: null for ones.
void Scale(const float* x, float scale, const float* gain, size_t n, float* y) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale));
    hn::StoreU(gain == nullptr ? scaled : hn::Mul(scaled, hn::LoadU(d, gain + i)), d, y + i);
  });
}

// y, which was computed from x; NaN where x is, as Highway's functions do not keep it.
template <class V>
HWY_INLINE V keep_nan(V x, V y) {
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// 1 / (1 + exp(-x)). The bound keeps the argument where Highway's Exp is defined.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid_of(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 88.0f)));
  return keep_nan(x, hn::Div(one, hn::Add(one, e)));
}

void MultiplySilu(const float* gate, size_t n, float* x) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Mul(g, sigmoid_of(d, g))), d, x + i);
  });
}

void MultiplySigmoid(const float* gate, size_t n, float* x) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), sigmoid_of(d, g)), d, x + i);
  });
}

void SquaredRelu(float* x, size_t n) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto positive = hn::Max(hn::LoadU(d, x + i), hn::Zero(d));
    hn::StoreU(hn::Mul(positive, positive), d, x + i);
  });
}

void Interpolate(const float* a, const float* b, const float* mix, size_t n, float* out) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto from = hn::LoadU(d, a + i);
    const auto difference = hn::Sub(hn::LoadU(d, b + i), from);
    hn::StoreU(hn::MulAdd(difference, hn::LoadU(d, mix + i), from), d, out + i);
  });
}

void WeighKeys(const float* k_k, const float* k_a, const float* a, size_t n, float* k,
               float* unit) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    const auto key = hn::LoadU(d, k + i);
    hn::StoreU(hn::Mul(key, hn::LoadU(d, k_k + i)), d, unit + i);
    const auto less = hn::Sub(hn::LoadU(d, a + i), one);
    hn::StoreU(hn::Mul(key, hn::MulAdd(less, hn::LoadU(d, k_a + i), one)), d, k + i);
  });
}

void MultiplyNegated(const float* a, const float* b, size_t n, float* out) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Neg(hn::Mul(hn::LoadU(d, a + i), hn::LoadU(d, b + i))), d, out + i);
  });
}

void AddBonus(const float* r, const float* k, const float* r_k, const float* v, const float* gate,
              size_t n, float* y) {
  const float bonus = sum_of(n, [=](auto d, size_t i) HWY_ATTR {
    return hn::Mul(hn::Mul(hn::LoadU(d, r + i), hn::LoadU(d, k + i)), hn::LoadU(d, r_k + i));
  });
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto sum = hn::MulAdd(hn::Set(d, bonus), hn::LoadU(d, v + i), hn::LoadU(d, y + i));
    hn::StoreU(hn::Mul(sum, hn::LoadU(d, gate + i)), d, y + i);
  });
}

void Silu(const float* x, size_t n, float* y) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    hn::StoreU(hn::Mul(value, sigmoid_of(d, value)), d, y + i);
  });
}

void Sigmoid(size_t n, float* x) {
  for_each_vector(n, [=](auto d, size_t i)
                         HWY_ATTR { hn::StoreU(sigmoid_of(d, hn::LoadU(d, x + i)), d, x + i); });
}

void HyperbolicTangent(size_t n, float* x) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    hn::StoreU(keep_nan(value, hn::Tanh(d, value)), d, x + i);
  });
}

void ExpOfSigmoid(float factor, size_t n, float* x) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    const auto scaled = hn::Mul(hn::Set(d, factor), sigmoid_of(d, value));
    hn::StoreU(keep_nan(value, hn::Exp(d, scaled)), d, x + i);
  });
}

// channels: from one tap to the next.
void Convolve(size_t taps, size_t channels, size_t count, const float* weight, const float* bias,
              bool has_activation, float* tail, const float* x, float* out) {
  for_each_vector(count, [=](auto d, size_t i) HWY_ATTR {
    auto sum = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + i);
    for (size_t j = 0; j + 1 < taps; ++j) {
      const auto row = hn::LoadU(d, tail + j * channels + i);
      sum = hn::MulAdd(hn::LoadU(d, weight + j * channels + i), row, sum);
      if (j > 0) hn::StoreU(row, d, tail + (j - 1) * channels + i);
    }
    const auto newest = hn::LoadU(d, x + i);
    sum = hn::MulAdd(hn::LoadU(d, weight + (taps - 1) * channels + i), newest, sum);
    if (taps > 1) hn::StoreU(newest, d, tail + (taps - 2) * channels + i);
    hn::StoreU(has_activation ? hn::Mul(sum, sigmoid_of(d, sum)) : sum, d, out + i);
  });
}

enum class Rule { kDelta, kErase, kPlain };
constexpr size_t kCacheLine = 64;

// kVectors vectors of columns of S, from `column` on, which no other column has a share in. The
// sums run over the rows of S in order. kFetches: prefetches the next columns, and with the
// last ones the first columns of the state that follows in memory.
template <Rule kRule, bool kFetches, size_t kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void feed_columns(D d, size_t dk, size_t dv, float* s, const RecurrenceToken* tokens,
                             size_t count, size_t column) {
  const size_t lanes = hn::Lanes(d);
  const size_t end = column + kVectors * lanes;
  const float* const next_columns = end < dv ? s + end : s + dk * dv;
  for (const RecurrenceToken* t = tokens; t != tokens + count; ++t) {
    V added[kVectors], p[kVectors], out[kVectors];
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      added[j] = hn::LoadU(d, t->v + column + j * lanes);
      p[j] = out[j] = hn::Zero(d);
    }
    if constexpr (kRule != Rule::kPlain) {
      for (size_t i = 0; i < dk; ++i) {
        const V read = hn::Set(d, t->read[i]);
        const float* const row = s + i * dv + column;
        LINTEL_UNROLL
        for (size_t j = 0; j < kVectors; ++j) {
          p[j] = hn::MulAdd(read, hn::LoadU(d, row + j * lanes), p[j]);
        }
      }
    }
    if constexpr (kRule != Rule::kPlain) {
      const V scale = hn::Set(d, t->read_scale);
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) p[j] = hn::Mul(p[j], scale);
    }
    if constexpr (kRule == Rule::kDelta) {
      const V beta = hn::Set(d, t->beta);
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) added[j] = hn::Mul(beta, hn::Sub(added[j], p[j]));
    }
    const bool has_output = t->q != nullptr;
    const bool decays_by_row = t->decay != nullptr;
    for (size_t i = 0; i < dk; ++i) {
      for (size_t j = 0; kFetches && j < kVectors * lanes; j += kCacheLine / sizeof(float)) {
        hwy::Prefetch(next_columns + i * dv + j);
      }
      const V decay = hn::Set(d, decays_by_row ? t->decay[i] : t->decay_of_all);
      const V write = hn::Set(d, t->write[i]);
      const V q = hn::Set(d, has_output ? t->q[i] : 0.0f);
      float* const row = s + i * dv + column;
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        V next = hn::MulAdd(write, added[j], hn::Mul(decay, hn::LoadU(d, row + j * lanes)));
        if constexpr (kRule == Rule::kErase) {
          next = hn::MulAdd(hn::Set(d, t->erase[i]), p[j], next);
        }
        hn::StoreU(next, d, row + j * lanes);
        out[j] = hn::MulAdd(q, next, out[j]);
      }
    }
    if (!has_output) continue;
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(out[j], d, t->out + column + j * lanes);
  }
}

template <Rule kRule, bool kFetches>
HWY_INLINE void feed_all_columns(size_t dk, size_t dv, float* s, const RecurrenceToken* tokens,
                                 size_t count) {
  constexpr size_t kVectors = hn::MaxLanes(Lanes()) == 1 ? 1 : 4;
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t c = 0;
  for (; c + kVectors * lanes <= dv; c += kVectors * lanes) {
    feed_columns<kRule, kFetches, kVectors>(d, dk, dv, s, tokens, count, c);
  }
  for (; c + lanes <= dv; c += lanes) feed_columns<kRule, false, 1>(d, dk, dv, s, tokens, count, c);
  for (; c < dv; ++c) feed_columns<kRule, false, 1>(OneLane(), dk, dv, s, tokens, count, c);
}

// Several tokens find the state in the cache, all but the first.
template <Rule kRule>
HWY_INLINE void feed(size_t dk, size_t dv, float* s, const RecurrenceToken* tokens, size_t count) {
  constexpr bool kFetches = hn::MaxLanes(Lanes()) > 1;
  if (count == 1) return feed_all_columns<kRule, kFetches>(dk, dv, s, tokens, 1);
  feed_all_columns<kRule, false>(dk, dv, s, tokens, count);
}

void FeedRecurrence(size_t dk, size_t dv, float* s, const RecurrenceToken* tokens, size_t count) {
  if (tokens->read == nullptr) return feed<Rule::kPlain>(dk, dv, s, tokens, count);
  if (tokens->erase == nullptr) return feed<Rule::kDelta>(dk, dv, s, tokens, count);
  feed<Rule::kErase>(dk, dv, s, tokens, count);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Scale);
HWY_EXPORT(MultiplySilu);
HWY_EXPORT(MultiplySigmoid);
HWY_EXPORT(SquaredRelu);
HWY_EXPORT(Interpolate);
HWY_EXPORT(WeighKeys);
HWY_EXPORT(MultiplyNegated);
HWY_EXPORT(AddBonus);
HWY_EXPORT(Silu);
HWY_EXPORT(Sigmoid);
HWY_EXPORT(HyperbolicTangent);
HWY_EXPORT(ExpOfSigmoid);
HWY_EXPORT(Convolve);
HWY_EXPORT(FeedRecurrence);
}  // namespace

void rms_norm(MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> y) {
  const std::size_t n = x.cols();
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const float* const row = x.row(r).data();
    const float mean = HWY_DYNAMIC_DISPATCH(SumOfSquares)(row, n) / static_cast<float>(n);
    HWY_DYNAMIC_DISPATCH(Scale)
    (row, 1.0f / std::sqrt(mean + eps), gain.data(), n, y.row(r).data());
  }
}

void to_unit_length(std::span<float> x, UnitLength unit, float scale) {
  const float sum = HWY_DYNAMIC_DISPATCH(SumOfSquares)(x.data(), x.size());
  const float length =
      unit == UnitLength::kAddInside ? std::sqrt(sum + 1e-6f) : std::max(std::sqrt(sum), 1e-12f);
  HWY_DYNAMIC_DISPATCH(Scale)(x.data(), scale / length, nullptr, x.size(), x.data());
}

void multiply_silu(std::span<const float> gate, std::span<float> x) {
  assert(gate.size() == x.size());
  HWY_DYNAMIC_DISPATCH(MultiplySilu)(gate.data(), x.size(), x.data());
}

void multiply_sigmoid(std::span<const float> gate, std::span<float> x) {
  assert(gate.size() == x.size());
  HWY_DYNAMIC_DISPATCH(MultiplySigmoid)(gate.data(), x.size(), x.data());
}

void squared_relu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(SquaredRelu)(x.data(), x.size()); }

void interpolate(std::span<const float> a, std::span<const float> b, std::span<const float> mix,
                 std::span<float> out) {
  assert(a.size() == out.size() && b.size() == out.size() && mix.size() == out.size());
  HWY_DYNAMIC_DISPATCH(Interpolate)(a.data(), b.data(), mix.data(), out.size(), out.data());
}

void weigh_keys(std::span<const float> k_k, std::span<const float> k_a, std::span<const float> a,
                std::span<float> k, std::span<float> unit) {
  assert(k_k.size() == k.size() && k_a.size() == k.size() && a.size() == k.size() &&
         unit.size() == k.size());
  HWY_DYNAMIC_DISPATCH(WeighKeys)
  (k_k.data(), k_a.data(), a.data(), k.size(), k.data(), unit.data());
}

void multiply_negated(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  assert(a.size() == out.size() && b.size() == out.size());
  HWY_DYNAMIC_DISPATCH(MultiplyNegated)(a.data(), b.data(), out.size(), out.data());
}

void add_bonus(std::span<const float> r, std::span<const float> k, std::span<const float> r_k,
               std::span<const float> v, std::span<const float> gate, std::span<float> y) {
  assert(r.size() == y.size() && k.size() == y.size() && r_k.size() == y.size() &&
         v.size() == y.size() && gate.size() == y.size());
  HWY_DYNAMIC_DISPATCH(AddBonus)
  (r.data(), k.data(), r_k.data(), v.data(), gate.data(), y.size(), y.data());
}

void silu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(Silu)(x.data(), x.size(), x.data()); }

void sigmoid(std::span<float> x) { HWY_DYNAMIC_DISPATCH(Sigmoid)(x.size(), x.data()); }

void hyperbolic_tangent(std::span<float> x) {
  HWY_DYNAMIC_DISPATCH(HyperbolicTangent)(x.size(), x.data());
}

void exp_of_sigmoid(float factor, std::span<float> x) {
  HWY_DYNAMIC_DISPATCH(ExpOfSigmoid)(factor, x.size(), x.data());
}

void short_convolution(const ShortConvolution& convolution, std::span<float> tail,
                       std::span<const float> x, std::size_t first, std::span<float> out) {
  assert(convolution.weight.size() == convolution.taps * x.size());
  assert(tail.size() == (convolution.taps - 1) * x.size() && first + out.size() <= x.size());
  const float* const bias = convolution.bias.empty() ? nullptr : convolution.bias.data() + first;
  HWY_DYNAMIC_DISPATCH(Convolve)
  (convolution.taps, x.size(), out.size(), convolution.weight.data() + first, bias,
   convolution.has_activation, tail.data() + first, x.data() + first, out.data());
}

void feed_recurrence(std::size_t dk, std::size_t dv, float* s,
                     std::span<const RecurrenceToken> tokens) {
  if (tokens.empty()) return;
  HWY_DYNAMIC_DISPATCH(FeedRecurrence)(dk, dv, s, tokens.data(), tokens.size());
}

}  // namespace lintel
#endif  // HWY_ONCE
