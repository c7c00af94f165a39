// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/dense/dense_kernels.cpp"
#include "model/simd/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
// clang-format on

#include "model/dense/dense_kernels.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

#include "model/base/float_formats.h"
#include "model/dense/dense_avx512.h"
#include "model/dense/dense_tiles.h"
#include "model/simd/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;
using VF = hn::Vec<F>;
using VU = hn::Vec<U>;
using VI = hn::Vec<I>;

constexpr size_t kLanes = hn::MaxLanes(F());
constexpr size_t kGroupVectors = kGroupWidth / kLanes;
// Vectors of columns of a tile of six rows: as many sums as registers allow beside the operands.
constexpr size_t kTileVectors = kLanes == 16 ? 4 : kLanes == 1 ? 1 : 2;

struct F32 {
  using Sum = VF;
  static HWY_INLINE Sum start(const Product&, size_t) { return hn::Zero(F()); }
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
    sum = hn::MulAdd(hn::BitCast(F(), hn::Set(U(), x)), hn::BitCast(F(), w), sum);
  }
  static HWY_INLINE VF finish(const Product& product, size_t, size_t column, Sum sum) {
    return hn::Add(sum, hn::Load(F(), product.weights->bias.get() + column));
  }
};

// Widened to f32: exact, so one more rounding per product is all that differs from vdpbf16ps.
struct Bf16 {
  using Sum = VF;
  static HWY_INLINE Sum start(const Product&, size_t) { return hn::Zero(F()); }
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
    const VU high = hn::Set(U(), 0xffff0000u);
    sum = hn::MulAdd(hn::BitCast(F(), hn::Set(U(), x << 16)),
                     hn::BitCast(F(), hn::ShiftLeft<16>(w)), sum);
    sum = hn::MulAdd(hn::BitCast(F(), hn::Set(U(), x & 0xffff0000u)),
                     hn::BitCast(F(), hn::And(w, high)), sum);
  }
  static HWY_INLINE VF finish(const Product& product, size_t row, size_t column, Sum sum) {
    return F32::finish(product, row, column, sum);
  }
};

// By way of wider integers: sums of two products of bytes do not fit 16 bits (vpmaddubsw
// saturates).
struct Int8 {
  using Sum = VI;
  static HWY_INLINE Sum start(const Product& product, size_t column) {
    const VI sums = hn::Load(I(), product.weights->sums.get() + column);
    return hn::Mul(sums, hn::Set(I(), -product.x_zero));
  }
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    const hn::Repartition<int16_t, I> halves;
    const auto bytes = hn::BitCast(halves, w);
    const VI even = hn::BitCast(I(), hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)));
    const VI odd = hn::BitCast(I(), hn::ShiftRight<8>(bytes));
    const VI x_even = hn::Set(I(), static_cast<int32_t>(x & 0x00ff00ffu));
    const VI x_odd = hn::Set(I(), static_cast<int32_t>((x >> 8) & 0x00ff00ffu));
    sum = hn::Add(sum, hn::Add(multiply_halves(x_even, even), multiply_halves(x_odd, odd)));
#else
    const VI bytes = hn::BitCast(I(), w);
    const auto byte_of_x = [x](int i) HWY_ATTR {
      return hn::Set(I(), static_cast<int32_t>((x >> (8 * i)) & 0xffu));
    };
    sum = hn::Add(sum, hn::Mul(byte_of_x(0), hn::ShiftRight<24>(hn::ShiftLeft<24>(bytes))));
    sum = hn::Add(sum, hn::Mul(byte_of_x(1), hn::ShiftRight<24>(hn::ShiftLeft<16>(bytes))));
    sum = hn::Add(sum, hn::Mul(byte_of_x(2), hn::ShiftRight<24>(hn::ShiftLeft<8>(bytes))));
    sum = hn::Add(sum, hn::Mul(byte_of_x(3), hn::ShiftRight<24>(bytes)));
#endif
  }
#if HWY_TARGET == HWY_AVX3
  // The sum of the two products of 16-bit halves, in every 32-bit lane.
  static HWY_INLINE VI multiply_halves(VI a, VI b) { return VI{_mm512_madd_epi16(a.raw, b.raw)}; }
#elif HWY_TARGET == HWY_AVX2
  static HWY_INLINE VI multiply_halves(VI a, VI b) { return VI{_mm256_madd_epi16(a.raw, b.raw)}; }
#endif
  static HWY_INLINE VF finish(const Product& product, size_t row, size_t column, Sum sum) {
    const VF unit = hn::Mul(hn::Set(F(), product.x_scales[row]),
                            hn::Load(F(), product.weights->scales.get() + column));
    return hn::MulAdd(hn::ConvertTo(F(), sum), unit,
                      hn::Load(F(), product.weights->bias.get() + column));
  }
};

HWY_INLINE void store(const Product& product, size_t row, size_t column, VF value) {
  float* y = product.y + row * product.y_stride + column;
  // In this order NaN stays NaN on x86: it shall be seen, not become 0.
  if (product.relu) value = hn::Max(hn::Zero(F()), value);
  const size_t width = product.weights->out_features - column;
  if (width >= kLanes) {
    if (product.add) value = hn::Add(hn::LoadU(F(), y), value);
    hn::StoreU(value, F(), y);
    return;
  }
  HWY_ALIGN float last[kLanes];
  hn::Store(value, F(), last);
  for (size_t i = 0; i < width; ++i) y[i] = product.add ? y[i] + last[i] : last[i];
}

// What a part of a tile asks the caches for: one thing, for every combination costs compile time.
enum class Ask { kNothing, kAhead, kOther };

// kRows rows times kVectors vectors of columns from `column` on, `offset` within their group.
template <class Type, size_t kRows, size_t kVectors, Ask kAsk>
HWY_INLINE void compute_part(const Product& product, const uint32_t* w, size_t row, size_t column,
                             const float* other) {
  const size_t row_cells = product.weights->row_cells;
  typename Type::Sum sums[kRows][kVectors];
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const auto start = Type::start(product, column + v * kLanes);
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) sums[r][v] = start;
  }
  const uint32_t* x = product.x + row * row_cells;
  for (size_t c = 0; c < row_cells; ++c, w += kGroupWidth) {
    VU columns[kVectors];
    if (kAsk == Ask::kOther) {
      hwy::Prefetch(other);
      other += PrefetchList::kLineFloats;
    }
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      if (kAsk == Ask::kAhead) hwy::Prefetch(w + kFetchAhead + v * kLanes);
      columns[v] = hn::Load(U(), w + v * kLanes);
    }
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const uint32_t cell = x[r * row_cells + c];
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) Type::add(sums[r][v], cell, columns[v]);
    }
  }
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    if (column + v * kLanes >= product.weights->out_features) break;
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      store(product, row + r, column + v * kLanes,
            Type::finish(product, row + r, column + v * kLanes, sums[r][v]));
    }
  }
}

// Few rows take more columns at once: the chains must be many to hide the latency of an addition.
template <class Type, size_t kRows, size_t kVectors>
void tile(const Product& product, size_t group, size_t row, const Fetch& fetch) {
  for (size_t v = 0; v < kGroupVectors; v += kVectors) {
    const size_t column = group * kGroupWidth + v * kLanes;
    if (column >= product.weights->out_features) return;
    const uint32_t* w = product.weights->group(group) + v * kLanes;
    // The next group is left to the hardware here.
    if (fetch.lines == Fetch::Lines::kAhead) {
      compute_part<Type, kRows, kVectors, Ask::kAhead>(product, w, row, column, nullptr);
    } else if (fetch.other != nullptr && v == 0) {
      compute_part<Type, kRows, kVectors, Ask::kOther>(product, w, row, column, fetch.other);
    } else {
      compute_part<Type, kRows, kVectors, Ask::kNothing>(product, w, row, column, nullptr);
    }
  }
}

template <class Type>
void run_all(const Product& product) {
  constexpr size_t kWide = std::min(kGroupVectors, 2 * kTileVectors);
  constexpr size_t kWidest = std::min(kGroupVectors, 4 * kTileVectors);
  run_tiles(product, {tile<Type, 6, kTileVectors>, tile<Type, 4, kTileVectors>,
                      tile<Type, 2, kWide>, tile<Type, 1, kWidest>});
}

// Sums that have everything but what start() and finish() add.
template <class Type>
void finish_all(const Product& product, const uint32_t* raw) {
  const size_t out_features = product.weights->out_features;
  for (size_t row = 0; row < product.rows; ++row) {
    for (size_t column = 0; column < out_features; column += kLanes) {
      const size_t width = std::min(kLanes, out_features - column);
      HWY_ALIGN uint32_t padded[kLanes] = {};
      const uint32_t* sums = raw + row * out_features + column;
      if (width < kLanes) {
        for (size_t i = 0; i < width; ++i) padded[i] = sums[i];
        sums = padded;
      }
      const auto start = Type::start(product, column);
      const auto sum =
          hn::Add(start, hn::BitCast(hn::DFromV<decltype(start)>(), hn::LoadU(U(), sums)));
      store(product, row, column, Type::finish(product, row, column, sum));
    }
  }
}

void FinishFloats(const Product& product, const uint32_t* raw) { finish_all<F32>(product, raw); }
void FinishInt8(const Product& product, const uint32_t* raw) { finish_all<Int8>(product, raw); }

bool IsAvx512() { return HWY_TARGET == HWY_AVX3; }
void MultiplyF32(const Product& product) { run_all<F32>(product); }
void MultiplyBf16(const Product& product) { run_all<Bf16>(product); }
void MultiplyInt8(const Product& product) { run_all<Int8>(product); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {

HWY_EXPORT(FinishFloats);
HWY_EXPORT(FinishInt8);
HWY_EXPORT(IsAvx512);
HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyBf16);
HWY_EXPORT(MultiplyInt8);

// Where Highway is held below AVX-512, as tests do, so are the others.
const TileSet* special_tiles(WeightType type) {
  return HWY_DYNAMIC_DISPATCH(IsAvx512)() ? avx512_tiles(type) : nullptr;
}

std::uint32_t pack_cell(WeightType type, std::span<const float> row, std::size_t first,
                        float scale) {
  std::uint32_t cell = 0;
  const std::size_t count = inputs_per_cell(type);
  for (std::size_t i = 0; i < count && first + i < row.size(); ++i) {
    const float value = row[first + i];
    switch (type) {
      case WeightType::kF32:
        return std::bit_cast<std::uint32_t>(value);
      case WeightType::kBf16:
        cell |= std::uint32_t{f32_to_bf16(value)} << (16 * i);
        break;
      case WeightType::kInt8: {
        const auto level = static_cast<std::int8_t>(std::lrint(value / scale));
        cell |= std::uint32_t{static_cast<std::uint8_t>(level)} << (8 * i);
        break;
      }
    }
  }
  return cell;
}

// Symmetric: the largest weight of an output is 127 units.
float scale_of(std::span<const float> row) {
  float largest = 0.0f;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  return largest > 0.0f ? largest / 127.0f : 1.0f;
}

}  // namespace

std::size_t inputs_per_cell(WeightType type) {
  return type == WeightType::kF32 ? 1 : type == WeightType::kBf16 ? 2 : 4;
}

std::size_t num_cells(WeightType type, std::size_t in_features) {
  const std::size_t each = inputs_per_cell(type);
  return (in_features + each - 1) / each;
}

PackedWeights::PackedWeights(WeightType weight_type, std::span<const float> weight,
                             std::span<const float> bias_values, std::size_t in, std::size_t out)
    : type(weight_type),
      in_features(in),
      out_features(out),
      row_cells(num_cells(type, in)),
      cells(make_aligned<std::uint32_t>(num_groups() * row_cells * kGroupWidth)),
      bias(make_aligned<float>(num_groups() * kGroupWidth)) {
  assert(weight.size() == in * out && bias_values.size() == out);
  std::ranges::copy(bias_values, bias.get());
  if (type == WeightType::kInt8) {
    scales = make_aligned<float>(num_groups() * kGroupWidth);
    sums = make_aligned<std::int32_t>(num_groups() * kGroupWidth);
  }
  const auto row_of = [&](std::size_t n) { return weight.subspan(n * in, in); };
  const auto column_of = [this](std::size_t n) {
    return cells.get() + n / kGroupWidth * row_cells * kGroupWidth + n % kGroupWidth;
  };
  if (type == WeightType::kInt8) {
    for (std::size_t n = 0; n < out; ++n) scales[n] = scale_of(row_of(n));
  }
  // A few cells of all columns of a group, then the next few: what is written stays in the cache
  // until its lines are full.
  constexpr std::size_t kBlockCells = 16;
  const std::size_t each = inputs_per_cell(type);
  for (std::size_t first = 0; first < out; first += kGroupWidth) {
    const std::size_t last = std::min(first + kGroupWidth, out);
    for (std::size_t block = 0; block < row_cells; block += kBlockCells) {
      const std::size_t end = std::min(block + kBlockCells, row_cells);
      for (std::size_t n = first; n < last; ++n) {
        const float scale = type == WeightType::kInt8 ? scales[n] : 1.0f;
        const std::span<const float> row = row_of(n);
        std::uint32_t* const column = column_of(n);
        if (type == WeightType::kF32) {  // without a question for each value
          for (std::size_t c = block; c < end; ++c) {
            column[c * kGroupWidth] = std::bit_cast<std::uint32_t>(row[c]);
          }
          continue;
        }
        for (std::size_t c = block; c < end; ++c) {
          column[c * kGroupWidth] = pack_cell(type, row, c * each, scale);
        }
      }
    }
  }
  if (type != WeightType::kInt8) return;
  for (std::size_t n = 0; n < out; ++n) {
    const std::uint32_t* const column = column_of(n);
    for (std::size_t c = 0; c < row_cells; ++c) {
      for (int i = 0; i < 4; ++i) {
        sums[n] += static_cast<std::int8_t>(column[c * kGroupWidth] >> (8 * i));
      }
    }
  }
}

std::size_t PackedWeights::bytes() const {
  const std::size_t each_column = row_cells + (type == WeightType::kInt8 ? 3 : 1);
  return num_groups() * kGroupWidth * each_column * 4;
}

void multiply(const Product& product, bool portable) {
  const WeightType type = product.weights->type;
  if (const TileSet* tiles = portable ? nullptr : special_tiles(type)) {
    return run_tiles(product, *tiles);
  }
  switch (type) {
    case WeightType::kF32:
      return HWY_DYNAMIC_DISPATCH(MultiplyF32)(product);
    case WeightType::kBf16:
      return HWY_DYNAMIC_DISPATCH(MultiplyBf16)(product);
    case WeightType::kInt8:
      return HWY_DYNAMIC_DISPATCH(MultiplyInt8)(product);
  }
}

void finish_sums(const Product& product, const std::uint32_t* raw) {
  product.weights->type == WeightType::kInt8 ? HWY_DYNAMIC_DISPATCH(FinishInt8)(product, raw)
                                             : HWY_DYNAMIC_DISPATCH(FinishFloats)(product, raw);
}

bool has_special_tiles(WeightType type) { return special_tiles(type) != nullptr; }

std::string multiply_description(WeightType type) {
  if (!has_special_tiles(type)) return "highway (" + kernel_target() + ")";
  return type == WeightType::kInt8 ? "avx512_vnni" : "avx512_bf16";
}

}  // namespace lintel
#endif  // HWY_ONCE
