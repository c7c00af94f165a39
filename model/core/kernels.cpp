// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/core/kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "model/core/relu-inl.h"
#include "model/core/vector_loops-inl.h"
// clang-format on

#include "model/core/kernels.h"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// kRows rows at once: what they wait for is the sums of one row, and gain and bias are loaded once.
template <size_t kRows>
HWY_INLINE void layer_norm_rows(const float* x, size_t x_stride, const float* gain,
                                const float* bias, float eps, size_t n, float* y, size_t y_stride) {
  const auto count = static_cast<float>(n);
  float mean[kRows], inverse[kRows];
  sums_of<kRows>(
      n, [=](auto d, size_t r, size_t i) HWY_ATTR { return hn::LoadU(d, x + r * x_stride + i); },
      mean);
  for (size_t r = 0; r < kRows; ++r) mean[r] = mean[r] / count;
  sums_of<kRows>(
      n,
      [x, x_stride, &mean](auto d, size_t r, size_t i) HWY_ATTR {
        const auto c = hn::Sub(hn::LoadU(d, x + r * x_stride + i), hn::Set(d, mean[r]));
        return hn::Mul(c, c);
      },
      inverse);
  for (size_t r = 0; r < kRows; ++r) inverse[r] = 1.0f / std::sqrt(inverse[r] / count + eps);
  for_each_vector(n, [=, &mean, &inverse](auto d, size_t i) HWY_ATTR {
    const auto gains = hn::LoadU(d, gain + i);
    const auto biases = hn::LoadU(d, bias + i);
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const auto c = hn::Sub(hn::LoadU(d, x + r * x_stride + i), hn::Set(d, mean[r]));
      const auto normalized = hn::Mul(c, hn::Set(d, inverse[r]));
      hn::StoreU(hn::MulAdd(normalized, gains, biases), d, y + r * y_stride + i);
    }
  });
}

void LayerNorm(const float* x, size_t x_stride, const float* gain, const float* bias, float eps,
               size_t rows, size_t n, float* y, size_t y_stride) {
  constexpr size_t kAtOnce = 4;
  for (; rows >= kAtOnce; rows -= kAtOnce, x += kAtOnce * x_stride, y += kAtOnce * y_stride) {
    layer_norm_rows<kAtOnce>(x, x_stride, gain, bias, eps, n, y, y_stride);
  }
  for (; rows > 0; --rows, x += x_stride, y += y_stride) {
    layer_norm_rows<1>(x, x_stride, gain, bias, eps, n, y, y_stride);
  }
}

void Relu(float* x, size_t n) {
  for_each_vector(
      n, [=](auto d, size_t i) HWY_ATTR { hn::StoreU(relu_of(hn::LoadU(d, x + i)), d, x + i); });
}

// erf by Abramowitz and Stegun 7.1.26, |error| <= 1.5e-7:
// erf(a) = 1 - (a1 t + ... + a5 t^5) exp(-a^2), t = 1 / (1 + p a), a >= 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf_of(D d, V x) {
  const V a = hn::Abs(x);
  const V t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(hn::Set(d, 0.3275911f), a, hn::Set(d, 1.0f)));
  V polynomial = hn::Set(d, 1.061405429f);
  polynomial = hn::MulAdd(polynomial, t, hn::Set(d, -1.453152027f));
  polynomial = hn::MulAdd(polynomial, t, hn::Set(d, 1.421413741f));
  polynomial = hn::MulAdd(polynomial, t, hn::Set(d, -0.284496736f));
  polynomial = hn::MulAdd(polynomial, t, hn::Set(d, 0.254829592f));
  polynomial = hn::Mul(polynomial, t);
  // exp(-80) is nothing beside 1, and Exp is only defined down to -FLT_MAX.
  const V square = hn::Min(hn::Mul(a, a), hn::Set(d, 80.0f));
  const V magnitude = hn::NegMulAdd(polynomial, hn::Exp(d, hn::Neg(square)), hn::Set(d, 1.0f));
  return hn::CopySign(magnitude, x);
}

void Gelu(float* x, size_t n) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    const auto erf = erf_of(d, hn::Mul(value, hn::Set(d, 0.70710678118654752f)));
    const auto half = hn::Mul(value, hn::Set(d, 0.5f));
    hn::StoreU(hn::MulAdd(half, erf, half), d, x + i);
  });
}

bool AllFinite(const float* x, size_t n) {
  // x * 0 is 0, or NaN for an infinity and for NaN, and a sum keeps NaN.
  const float sum = sum_of(
      n, [x](auto d, size_t i) HWY_ATTR { return hn::Mul(hn::LoadU(d, x + i), hn::Zero(d)); });
  return sum == 0.0f;
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(LayerNorm);
HWY_EXPORT(Relu);
HWY_EXPORT(Gelu);
HWY_EXPORT(AllFinite);
HWY_EXPORT(Target);
}  // namespace

void layer_norm(MatrixView<const float> x, std::span<const float> gain, std::span<const float> bias,
                float eps, MatrixView<float> y) {
  assert(x.rows() == y.rows() && x.cols() == y.cols());
  assert(gain.size() == x.cols() && bias.size() == x.cols());
  HWY_DYNAMIC_DISPATCH(LayerNorm)
  (x.data(), x.stride(), gain.data(), bias.data(), eps, x.rows(), x.cols(), y.data(), y.stride());
}

void relu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(Relu)(x.data(), x.size()); }

void gelu(std::span<float> x) { HWY_DYNAMIC_DISPATCH(Gelu)(x.data(), x.size()); }

bool all_finite(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(AllFinite)(x.data(), x.size());
}

std::string kernel_target() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace lintel
#endif  // HWY_ONCE
