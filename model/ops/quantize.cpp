// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/quantize.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/core/bf16-inl.h"
#include "model/core/vector_loops-inl.h"
// clang-format on

#include "model/ops/quantize.h"

#include <algorithm>
#include <bit>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

void RoundToBf16(const float* x, size_t n, uint16_t* out) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR { store_bf16(hn::LoadU(d, x + i), out + i); });
}

// The largest |x| as bits, so that infinities and NaN, which are larger, are not lost.
float largest_magnitude(const float* x, size_t n) {
  const Lanes d;
  const hn::RebindToSigned<Lanes> s;
  const size_t lanes = hn::Lanes(d);
  const auto magnitude = [=](size_t i)
                             HWY_ATTR { return hn::BitCast(s, hn::Abs(hn::LoadU(d, x + i))); };
  auto even = hn::Zero(s);
  auto odd = hn::Zero(s);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Max(even, magnitude(i));
    odd = hn::Max(odd, magnitude(i + lanes));
  }
  for (; i + lanes <= n; i += lanes) even = hn::Max(even, magnitude(i));
  int32_t bits = hn::GetLane(hn::MaxOfLanes(s, hn::Max(even, odd)));
  for (; i < n; ++i) {
    const int32_t own = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    if (own > bits) bits = own;
  }
  return std::bit_cast<float>(bits);
}

float Quantize(const float* x, size_t n, float levels, int32_t zero, uint8_t* out) {
  const float largest = largest_magnitude(x, n);
  const float scale = largest == 0.0f ? 1.0f : largest / levels;
  const float inverse = 1.0f / scale;
  // Adding 1.5 * 2^23 rounds to an integer, which stands in the sum's lowest byte. It fits, unless
  // the scale is not finite and the levels mean nothing.
  const float rounder = 12582912.0f + static_cast<float>(zero);
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> u;
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto level = hn::MulAdd(hn::LoadU(d, x + i), hn::Set(d, inverse), hn::Set(d, rounder));
    hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(u, level)), bytes, out + i);
  });
  return scale;
}

void RoundToLevels(const float* x, size_t n, float scale, int8_t* out) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<int8_t, decltype(d)> bytes;
    const auto level = hn::NearestInt(hn::Div(hn::LoadU(d, x + i), hn::Set(d, scale)));
    hn::StoreU(hn::DemoteTo(bytes, level), bytes, out + i);
  });
}

// Of 32 values.
HWY_INLINE float quantize_group(const float* x, int8_t* out, int32_t* sums) {
  const float largest = largest_magnitude(x, 32);
  const float scale = largest == 0.0f ? 1.0f : largest / 127.0f;
  const float inverse = 1.0f / scale;
  const Lanes d;
  const hn::RebindToSigned<Lanes> s;
  const hn::Rebind<int8_t, Lanes> bytes;
  const auto rounder = hn::Set(d, 12582912.0f);  // as above
  for (size_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(s);
    for (size_t i = half * 16; i < half * 16 + 16; i += hn::Lanes(d)) {
      const auto level =
          hn::Sub(hn::BitCast(s, hn::MulAdd(hn::LoadU(d, x + i), hn::Set(d, inverse), rounder)),
                  hn::BitCast(s, rounder));
      const auto narrow = hn::DemoteTo(bytes, level);
      hn::StoreU(narrow, bytes, out + i);
      sum = hn::Add(sum, hn::PromoteTo(s, narrow));
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(s, sum));
  }
  return scale;
}

void QuantizeGroups(const float* x, size_t groups, int8_t* out, float* scales, int32_t* sums) {
  for (size_t g = 0; g < groups; ++g) {
    scales[g] = quantize_group(x + g * 32, out + g * 32, sums + 2 * g);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {

HWY_EXPORT(RoundToBf16);
HWY_EXPORT(Quantize);
HWY_EXPORT(QuantizeGroups);
HWY_EXPORT(RoundToLevels);

float quantize(std::span<const float> x, float levels, std::int32_t zero, std::uint32_t* cells) {
  if (x.size() % 4 != 0) cells[x.size() / 4] = 0;
  return HWY_DYNAMIC_DISPATCH(Quantize)(x.data(), x.size(), levels, zero,
                                        reinterpret_cast<std::uint8_t*>(cells));
}

}  // namespace

void round_to_bf16(std::span<const float> x, std::uint32_t* cells) {
  if (x.size() % 2 != 0) cells[x.size() / 2] = 0;
  HWY_DYNAMIC_DISPATCH(RoundToBf16)(x.data(), x.size(), reinterpret_cast<std::uint16_t*>(cells));
}

float quantize_signed(std::span<const float> x, std::uint32_t* cells) {
  return quantize(x, 127.0f, 128, cells);
}

float quantize_non_negative(std::span<const float> x, std::uint32_t* cells) {
  return quantize(x, 255.0f, 0, cells);
}

void round_to_levels(std::span<const float> x, float scale, std::uint32_t* cells) {
  if (x.size() % 4 != 0) cells[x.size() / 4] = 0;
  HWY_DYNAMIC_DISPATCH(RoundToLevels)
  (x.data(), x.size(), scale, reinterpret_cast<std::int8_t*>(cells));
}

void quantize_groups(std::span<const float> x, std::uint32_t* cells, float* scales,
                     std::int32_t* sums) {
  constexpr std::size_t kGroup = 32;
  auto* const bytes = reinterpret_cast<std::int8_t*>(cells);
  const std::size_t whole = x.size() / kGroup;
  HWY_DYNAMIC_DISPATCH(QuantizeGroups)(x.data(), whole, bytes, scales, sums);
  if (x.size() % kGroup == 0) return;
  float last[kGroup] = {};
  std::ranges::copy(x.subspan(whole * kGroup), last);
  HWY_DYNAMIC_DISPATCH(QuantizeGroups)
  (last, 1, bytes + whole * kGroup, scales + whole, sums + 2 * whole);
}

}  // namespace lintel
#endif  // HWY_ONCE
