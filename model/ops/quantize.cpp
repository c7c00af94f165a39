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
#include <cassert>
#include <cstring>
#include <vector>

#include "model/core/float_formats.h"

#ifndef LINTEL_MODEL_QUANTIZE_ONCE_
#define LINTEL_MODEL_QUANTIZE_ONCE_
namespace lintel {
namespace {
constexpr std::size_t kColumns = 64;  // of BlockMatrix
constexpr std::size_t kLineBytes = 4 * kColumns;
}  // namespace
}  // namespace lintel
#endif

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

void RoundToBf16(const float* x, size_t n, uint16_t* out) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR { store_bf16(hn::LoadU(d, x + i), out + i); });
}

void WidenBf16(const uint8_t* bytes, size_t n, float* out) {
  const Lanes d;
  const hn::RebindToUnsigned<Lanes> u;
  const hn::Rebind<uint16_t, Lanes> half;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; lanes > 1 && i + lanes <= n; i += lanes) {
    const auto bits = hn::LoadU(half, reinterpret_cast<const uint16_t*>(bytes + 2 * i));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(u, bits))), d, out + i);
  }
  for (; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof bits);
    out[i] = bf16_to_f32(bits);
  }
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

HWY_INLINE float scale_of(const float* x, size_t n) {
  const float largest = largest_magnitude(x, n);
  return largest == 0.0f ? 1.0f : largest / 127.0f;
}

float ScaleOf(const float* x, size_t n) { return scale_of(x, n); }

// Rounds 32 values.
HWY_INLINE void round_group(const float* x, float scale, int8_t* out, int32_t* sums) {
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
}

void QuantizeGroups(const float* x, size_t groups, int8_t* out, float* scales, int32_t* sums) {
  for (size_t g = 0; g < groups; ++g) {
    scales[g] = scale_of(x + g * 32, 32);
    round_group(x + g * 32, scales[g], out + g * 32, sums + 2 * g);
  }
}

// Each four groups of 32 have one scale, and what is left.
void QuantizeTogether(const float* x, size_t groups, int8_t* out, float* scales, int32_t* sums,
                      int32_t* group_sums) {
  for (size_t first = 0; first < groups; first += 4) {
    const size_t end = std::min(first + 4, groups);
    const float scale = scale_of(x + first * 32, (end - first) * 32);
    int32_t sum = 0;
    for (size_t g = first; g < end; ++g) {
      scales[g] = scale;
      round_group(x + g * 32, scale, out + g * 32, sums + 2 * g);
      sum += sums[2 * g] + sums[2 * g + 1];
    }
    *group_sums++ = sum;
  }
}

// Levels of 4 bits, 0 to 15, of a row of 32 values in each lane. Every lane has the bits that it
// has alone.
struct FourBits {
  static constexpr size_t kValues = 32;
  static constexpr int kTried = 9;  // scales on either side of the one that the largest value gives

  using F = hn::CappedTag<float, 16>;
  using U = hn::RebindToUnsigned<F>;
  using V = hn::Vec<F>;

  static HWY_INLINE V level_of(V x, V inverse) {
    const F d;
    const V level = hn::Round(hn::Mul(x, inverse));
    return hn::Min(hn::Max(level, hn::Set(d, -8.0f)), hn::Set(d, 7.0f));
  }

  // x: [32, lanes]; lines: of the first lane's column. Returns the scales.
  static HWY_INLINE V quantize(const float* x, uint8_t* lines) {
    const F d;
    const U u;
    const size_t lanes = hn::Lanes(d);
    V largest = hn::Zero(d);  // with its sign: it becomes -8, of which there is no other sign
    for (size_t i = 0; i < kValues; ++i) {
      const V value = hn::Load(d, x + i * lanes);
      largest = hn::IfThenElse(hn::Gt(hn::Abs(value), hn::Abs(largest)), value, largest);
    }
    largest = hn::IfThenElse(hn::Eq(largest, hn::Zero(d)), hn::Set(d, 1.0f), largest);
    V best = hn::Set(d, -1.0f), inverse = hn::Zero(d), scale = hn::Zero(d);
    for (int k = -kTried; k <= kTried; ++k) {
      const V tried = hn::Div(hn::Set(d, -8.0f + 0.1f * static_cast<float>(k)), largest);
      V products = hn::Zero(d), squares = hn::Zero(d);
      for (size_t i = 0; i < kValues; ++i) {
        const V value = hn::Load(d, x + i * lanes);
        const V level = level_of(value, tried);
        products = hn::MulAdd(value, level, products);
        squares = hn::MulAdd(level, level, squares);
      }
      // The squared error of the best d of these levels is sum x^2 less this.
      const V one = hn::Set(d, 1.0f);
      const V fitted = hn::Div(products, hn::Max(squares, one));
      const V gain = hn::Mul(products, fitted);
      const auto is_better = hn::Gt(gain, best);
      best = hn::IfThenElse(is_better, gain, best);
      inverse = hn::IfThenElse(is_better, tried, inverse);
      scale = hn::IfThenElse(is_better, fitted, scale);
    }
    const auto word = [&](size_t cell) HWY_ATTR {
      auto bytes = hn::Zero(u);
      for (size_t i = 0; i < 4; ++i) {
        const V level = level_of(hn::Load(d, x + (4 * cell + i) * lanes), inverse);
        const auto whole = hn::BitCast(
            u, hn::ConvertTo(hn::RebindToSigned<F>(), hn::Add(level, hn::Set(d, 8.0f))));
        bytes = hn::Or(bytes, hn::ShiftLeftSame(whole, static_cast<int>(8 * i)));
      }
      return bytes;
    };
    for (size_t p = 0; p < 4; ++p) {
      hn::Store(hn::Or(word(2 * p), hn::ShiftLeft<4>(word(2 * p + 1))), u,
                reinterpret_cast<uint32_t*>(lines + p * kLineBytes));
    }
    return scale;
  }
};

void QuantizeTo4Bits(MatrixView<const float> x, uint8_t* lines, float* scales) {
  const FourBits::F d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float columns[FourBits::kValues * 16];
  for (size_t first = 0; first < x.rows(); first += lanes) {
    const size_t count = std::min(lanes, x.rows() - first);
    for (size_t n = 0; n < lanes; ++n) {
      for (size_t i = 0; i < FourBits::kValues; ++i) {
        columns[i * lanes + n] = n < count ? x.row(first + n)[i] : 0.0f;
      }
    }
    hn::StoreU(FourBits::quantize(columns, lines + 4 * first), d, scales + first);
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
HWY_EXPORT(WidenBf16);
HWY_EXPORT(ScaleOf);
HWY_EXPORT(Quantize);
HWY_EXPORT(QuantizeGroups);
HWY_EXPORT(QuantizeTogether);
HWY_EXPORT(QuantizeTo4Bits);
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

void widen_bf16(std::span<const std::byte> values, std::span<float> out) {
  assert(values.size() == out.size() * sizeof(std::uint16_t));
  HWY_DYNAMIC_DISPATCH(WidenBf16)
  (reinterpret_cast<const std::uint8_t*>(values.data()), out.size(), out.data());
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

void quantize_to_4_bits(MatrixView<const float> x, std::uint8_t* lines, std::uint16_t* d) {
  float scales[kColumns];
  HWY_DYNAMIC_DISPATCH(QuantizeTo4Bits)(x, lines, scales);
  for (std::size_t n = 0; n < x.rows(); ++n) d[n] = f32_to_f16(scales[n]);
}

void quantize_to_8_bits(MatrixView<const float> x, std::uint8_t* lines, float* scales) {
  // Rows that fill a cache line.
  constexpr std::size_t kRows = 16;
  const std::size_t cells = (x.cols() + 3) / 4;
  std::vector<std::uint32_t> levels(kRows * cells);
  for (std::size_t first = 0; first < x.rows(); first += kRows) {
    const std::size_t rows = std::min(kRows, x.rows() - first);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::span<const float> row = x.row(first + r);
      scales[first + r] = HWY_DYNAMIC_DISPATCH(ScaleOf)(row.data(), row.size());
      round_to_levels(row, scales[first + r], levels.data() + r * cells);
    }
    for (std::size_t c = 0; c < cells; ++c) {
      std::uint32_t line[kRows];
      for (std::size_t r = 0; r < rows; ++r) line[r] = levels[r * cells + c] ^ 0x80808080u;
      std::memcpy(lines + c * kLineBytes + 4 * first, line, rows * sizeof line[0]);
    }
  }
}

void quantize_large_groups(std::span<const float> x, std::uint32_t* cells, float* scales,
                           std::int32_t* sums, std::int32_t* group_sums) {
  constexpr std::size_t kSmall = 32, kGroup = 128;
  auto* const bytes = reinterpret_cast<std::int8_t*>(cells);
  const bool has_part = x.size() % kSmall != 0;
  const std::size_t whole = has_part ? x.size() / kGroup * kGroup : x.size();
  HWY_DYNAMIC_DISPATCH(QuantizeTogether)
  (x.data(), whole / kSmall, bytes, scales, sums, group_sums);
  if (!has_part) return;
  float last[kGroup] = {};
  std::ranges::copy(x.subspan(whole), last);
  HWY_DYNAMIC_DISPATCH(QuantizeTogether)
  (last, (x.size() - whole + kSmall - 1) / kSmall, bytes + whole, scales + whole / kSmall,
   sums + whole / kSmall * 2, group_sums + whole / kGroup);
}

}  // namespace lintel
#endif  // HWY_ONCE
