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

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Sums run in so many chains, by index alone, for vectors of any length.
constexpr size_t kChains = 8;
using Doubles = hn::CappedTag<double, kChains>;
using OneDouble = hn::CappedTag<double, 1>;

double LargestOf(const double* x, size_t n) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Set(d, -std::numeric_limits<double>::infinity());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
  double result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

void Exponentials(double* x, size_t n, double offset, double divisor) {
  const auto part = [=](auto d, size_t i) HWY_ATTR {
    const auto shifted = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, offset));
    hn::StoreU(hn::Exp(d, hn::Div(shifted, hn::Set(d, divisor))), d, x + i);
  };
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) part(d, i);
  for (; i < n; ++i) part(OneDouble(), i);
}

double SumOfExponentials(const float* x, size_t n, double offset) {
  HWY_ALIGN double sum[kChains] = {};
  const auto add = [&](auto d, size_t i, double* to) HWY_ATTR {
    const auto wide = hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, decltype(d)>(), x + i));
    const auto e = hn::Exp(d, hn::Sub(wide, hn::Set(d, offset)));
    hn::StoreU(hn::Add(hn::LoadU(d, to), e), d, to);
  };
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (size_t j = 0; j < kChains; j += lanes) add(d, i + j, sum + j);
  }
  for (size_t j = 0; i < n; ++i, ++j) add(OneDouble(), i, sum + j);
  for (size_t width = kChains / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {

HWY_EXPORT(LargestOf);
HWY_EXPORT(Exponentials);
HWY_EXPORT(SumOfExponentials);

double largest_of(std::span<const double> x) {
  return HWY_DYNAMIC_DISPATCH(LargestOf)(x.data(), x.size());
}

void exponentials(std::span<double> x, double offset, double divisor) {
  HWY_DYNAMIC_DISPATCH(Exponentials)(x.data(), x.size(), offset, divisor);
}

double sum_of_exponentials(std::span<const float> x, double offset) {
  return HWY_DYNAMIC_DISPATCH(SumOfExponentials)(x.data(), x.size(), offset);
}

}  // namespace lintel
#endif  // HWY_ONCE
