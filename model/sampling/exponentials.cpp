// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/sampling/exponentials.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

#include "model/sampling/exponentials.h"

#include <algorithm>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Sums run in so many chains, by index alone, for vectors of any length.
constexpr size_t kChains = 8;
using Doubles = hn::CappedTag<double, kChains>;
using OneDouble = hn::CappedTag<double, 1>;

template <typename T>
HWY_INLINE T largest(const T* x, size_t n) {
  const hn::CappedTag<T, 64 / sizeof(T)> d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kVectors = 4;  // side by side
  auto most = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto second = most, third = most, fourth = most;
  size_t i = 0;
  for (; i + kVectors * lanes <= n; i += kVectors * lanes) {
    most = hn::Max(most, hn::LoadU(d, x + i));
    second = hn::Max(second, hn::LoadU(d, x + i + lanes));
    third = hn::Max(third, hn::LoadU(d, x + i + 2 * lanes));
    fourth = hn::Max(fourth, hn::LoadU(d, x + i + 3 * lanes));
  }
  most = hn::Max(hn::Max(most, second), hn::Max(third, fourth));
  T result = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

double LargestOf(const double* x, size_t n) { return largest(x, n); }
float LargestFloatOf(const float* x, size_t n) { return largest(x, n); }

// exp((x[i ...] - offset) / divisor), the lanes of d.
template <typename D, typename T>
HWY_INLINE hn::Vec<D> exponential_of(D d, const T* x, double offset, double divisor) {
  auto value = hn::Zero(d);
  if constexpr (std::is_same_v<T, float>) {
    value = hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
  } else {
    value = hn::LoadU(d, x);
  }
  value = hn::Sub(value, hn::Set(d, offset));
  // Slow, and exact where it does nothing.
  if (divisor != 1.0) value = hn::Div(value, hn::Set(d, divisor));
  return hn::Exp(d, value);
}

template <typename T>
HWY_INLINE void exponentials(const T* x, size_t n, double offset, double divisor, double* out) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(exponential_of(d, x + i, offset, divisor), d, out + i);
  }
  const OneDouble one;
  for (; i < n; ++i) hn::StoreU(exponential_of(one, x + i, offset, divisor), one, out + i);
}

void ExponentialsOf(const double* x, size_t n, double offset, double divisor, double* out) {
  exponentials(x, n, offset, divisor, out);
}
void ExponentialsOfFloats(const float* x, size_t n, double offset, double divisor, double* out) {
  exponentials(x, n, offset, divisor, out);
}

// Adds up the chains, in pairs.
HWY_INLINE double sum_of_chains(double* sum) {
  for (size_t width = kChains / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

double SumOf(const double* x, size_t n) {
  HWY_ALIGN double sum[kChains] = {};
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (size_t j = 0; j < kChains; j += lanes) {
      hn::Store(hn::Add(hn::Load(d, sum + j), hn::LoadU(d, x + i + j)), d, sum + j);
    }
  }
  for (size_t j = 0; i < n; ++i, ++j) sum[j] += x[i];
  return sum_of_chains(sum);
}

template <typename T>
HWY_INLINE double sum_of_exponentials(const T* x, size_t n, double offset, double divisor) {
  HWY_ALIGN double sum[kChains] = {};
  const auto add = [&](auto d, size_t i, double* to) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, to), exponential_of(d, x + i, offset, divisor)), d, to);
  };
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (lanes == kChains) {  // in a register
    auto sums = hn::Zero(d);
    for (; i + kChains <= n; i += kChains) {
      sums = hn::Add(sums, exponential_of(d, x + i, offset, divisor));
    }
    hn::StoreU(sums, d, sum);
  }
  for (; i + kChains <= n; i += kChains) {
    for (size_t j = 0; j < kChains; j += lanes) add(d, i + j, sum + j);
  }
  for (size_t j = 0; i < n; ++i, ++j) add(OneDouble(), i, sum + j);
  return sum_of_chains(sum);
}

double SumOfExponentials(const double* x, size_t n, double offset, double divisor) {
  return sum_of_exponentials(x, n, offset, divisor);
}
double SumOfFloatExponentials(const float* x, size_t n, double offset, double divisor) {
  return sum_of_exponentials(x, n, offset, divisor);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {

HWY_EXPORT(LargestOf);
HWY_EXPORT(LargestFloatOf);
HWY_EXPORT(SumOf);
HWY_EXPORT(ExponentialsOf);
HWY_EXPORT(ExponentialsOfFloats);
HWY_EXPORT(SumOfExponentials);
HWY_EXPORT(SumOfFloatExponentials);

double largest_of(std::span<const double> x) {
  return HWY_DYNAMIC_DISPATCH(LargestOf)(x.data(), x.size());
}

float largest_of(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(LargestFloatOf)(x.data(), x.size());
}

double sum_of(std::span<const double> x) { return HWY_DYNAMIC_DISPATCH(SumOf)(x.data(), x.size()); }

void exponentials_of(std::span<const float> x, double offset, double divisor,
                     std::span<double> out) {
  HWY_DYNAMIC_DISPATCH(ExponentialsOfFloats)(x.data(), x.size(), offset, divisor, out.data());
}
void exponentials_of(std::span<const double> x, double offset, double divisor,
                     std::span<double> out) {
  HWY_DYNAMIC_DISPATCH(ExponentialsOf)(x.data(), x.size(), offset, divisor, out.data());
}

double sum_of_exponentials(std::span<const float> x, double offset, double divisor) {
  return HWY_DYNAMIC_DISPATCH(SumOfFloatExponentials)(x.data(), x.size(), offset, divisor);
}
double sum_of_exponentials(std::span<const double> x, double offset, double divisor) {
  return HWY_DYNAMIC_DISPATCH(SumOfExponentials)(x.data(), x.size(), offset, divisor);
}

}  // namespace lintel
#endif  // HWY_ONCE
