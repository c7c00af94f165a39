// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/lsh_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/lsh_kernels.h"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

static_assert(kPlaneMultiple == kColumnMultiple);

void Normalize(const float* x, size_t n, float* k) {
  const float square = sum_of(n, [x](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    return hn::Mul(value, value);
  });
  scale_row(x, n, square == 0.0f ? 0.0f : 1.0f / std::sqrt(square), k);
}

void Project(const float* k, size_t d_head, const float* planes, size_t width, float* projected) {
  multiply_all_columns(k, d_head, planes, width, width, projected);
}

// The first i with x[i] == wanted, or `end`.
template <class D>
HWY_INLINE size_t find_first(D d, const float* x, size_t end, float wanted) {
  for (size_t i = 0; i < end; i += hn::Lanes(d)) {
    const auto found = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), hn::Set(d, wanted)));
    if (found >= 0) return i + static_cast<size_t>(found);
  }
  return end;
}

size_t SignedArgmax(const float* x, size_t n) {
  const hn::CappedTag<float, kPlaneMultiple> d;
  const size_t lanes = hn::Lanes(d);
  const size_t end = (n + lanes - 1) / lanes * lanes;
  auto magnitude = hn::Zero(d);
  for (size_t i = 0; i < end; i += lanes) {
    magnitude = hn::Max(magnitude, hn::Abs(hn::LoadU(d, x + i)));
  }
  // The zeros after x are found only when all is zero, and then x[0] is first.
  const float largest = hn::GetLane(hn::MaxOfLanes(d, magnitude));
  const size_t positive = find_first(d, x, end, largest);
  if (positive < end) return positive;
  const size_t negative = find_first(d, x, end, -largest);
  return negative < end ? n + negative : 0;
}

float AttendMembers(const float* q, size_t d_head, const float* const* members, size_t n,
                    float first_bias, float* weights, float* out) {
  for (size_t i = 0; i < n; ++i) {
    const float* const k = members[i];
    weights[i] = sum_of(d_head, [q, k](auto d, size_t c) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, q + c), hn::LoadU(d, k + c));
    });
  }
  weights[0] += first_bias;
  const float max = largest_of(weights, n);
  const float sum = exponentials(weights, n, max);
  for (size_t c = 0; c < d_head; ++c) out[c] = 0.0f;
  add_weighted_rows(
      weights, n, d_head, [members, d_head](size_t i) { return members[i] + d_head; }, 0.0f, out);
  scale_row(out, d_head, 1.0f / sum, out);
  return max + std::log(sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(Normalize);
HWY_EXPORT(Project);
HWY_EXPORT(SignedArgmax);
HWY_EXPORT(AttendMembers);
}  // namespace

void normalize(std::span<const float> x, float* k) {
  HWY_DYNAMIC_DISPATCH(Normalize)(x.data(), x.size(), k);
}

void project(std::span<const float> k, const float* planes, std::size_t width, float* projected) {
  HWY_DYNAMIC_DISPATCH(Project)(k.data(), k.size(), planes, width, projected);
}

std::size_t signed_argmax(const float* x, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(SignedArgmax)(x, n);
}

float attend_members(std::span<const float> q, std::span<const float* const> members,
                     float first_bias, float* weights, float* out) {
  return HWY_DYNAMIC_DISPATCH(AttendMembers)(q.data(), q.size(), members.data(), members.size(),
                                             first_bias, weights, out);
}

}  // namespace lintel
#endif  // HWY_ONCE
