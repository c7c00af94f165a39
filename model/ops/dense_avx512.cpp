// SPDX-License-Identifier: Apache-2.0
#include "model/ops/dense_avx512.h"

#include "hwy/base.h"
#include "model/core/simd_targets.h"

#if HWY_ARCH_X86_64

#include <immintrin.h>

// GCC 12 takes the "undefined" operand inside unmasked intrinsics for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")
namespace lintel {
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = kGroupWidth / kLanes;

// vpdpbusd: four products of an unsigned and a signed byte, added to 32 bits without saturating.
struct Int8 {
  using Sum = __m512i;

  // Inputs are off by x_zero, so the products are off by x_zero times the sum of the weights.
  static HWY_INLINE Sum start(const Product& product, std::size_t column) {
    const __m512i sums = _mm512_load_si512(product.weights->sums.get() + column);
    return _mm512_mullo_epi32(sums, _mm512_set1_epi32(-product.x_zero));
  }

  static HWY_INLINE void add(Sum& sum, __m512i x, __m512i w) {
    // Not the intrinsic: GCC 12 keeps its sums on the stack.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
  }

  // The constants that turn a sum of a column into an output.
  struct Column {
    HWY_INLINE Column(const Product& product, std::size_t column)
        : scale(_mm512_load_ps(product.weights->scales.get() + column)),
          bias(_mm512_load_ps(product.weights->bias.get() + column)) {}
    HWY_INLINE __m512 finish(const Product& product, std::size_t row, Sum sum) const {
      const __m512 unit = _mm512_mul_ps(_mm512_set1_ps(product.x_scales[row]), scale);
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), unit, bias);
    }
    __m512 scale;
    __m512 bias;
  };
};

// vdpbf16ps: two products, added to an f32.
struct Bf16 {
  using Sum = __m512;

  static HWY_INLINE Sum start(const Product&, std::size_t) { return _mm512_setzero_ps(); }

  static HWY_INLINE void add(Sum& sum, __m512i x, __m512i w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
  }

  struct Column {
    HWY_INLINE Column(const Product& product, std::size_t column)
        : bias(_mm512_load_ps(product.weights->bias.get() + column)) {}
    HWY_INLINE __m512 finish(const Product&, std::size_t, Sum sum) const {
      return _mm512_add_ps(sum, bias);
    }
    __m512 bias;
  };
};

enum class After { kNothing, kRelu, kAdd };

// The last group of columns may be a part of one: kPart, of `left` columns.
template <class Type, int kRows, bool kPart, After kAfter>
HWY_INLINE void store_tile(const Product& product, std::size_t row, std::size_t first_column,
                           std::size_t left, const typename Type::Sum (&sums)[kRows][kVectors]) {
  float* const first = product.y + row * product.y_stride + first_column;
  const std::size_t stride = product.y_stride;
  LINTEL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const std::size_t before = static_cast<std::size_t>(v) * kLanes;
    if (kPart && left <= before) break;
    const __mmask16 mask = !kPart || left >= before + kLanes
                               ? 0xffff
                               : static_cast<__mmask16>((1u << (left - before)) - 1u);
    const typename Type::Column column(product, first_column + before);
    LINTEL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float* const y = first + r * stride + before;
      __m512 value = column.finish(product, row + r, sums[r][v]);
      // This order of operands keeps NaN.
      if (kAfter == After::kRelu) value = _mm512_max_ps(_mm512_setzero_ps(), value);
      if (kAfter == After::kAdd) {
        value = _mm512_add_ps(kPart ? _mm512_maskz_loadu_ps(mask, y) : _mm512_loadu_ps(y), value);
      }
      kPart ? _mm512_mask_storeu_ps(y, mask, value) : _mm512_storeu_ps(y, value);
    }
  }
}

template <class Type, int kRows, bool kPart>
HWY_INLINE void store_tile(const Product& product, std::size_t row, std::size_t first_column,
                           std::size_t left, const typename Type::Sum (&sums)[kRows][kVectors]) {
  if (product.relu) {
    store_tile<Type, kRows, kPart, After::kRelu>(product, row, first_column, left, sums);
  } else if (product.add) {
    store_tile<Type, kRows, kPart, After::kAdd>(product, row, first_column, left, sums);
  } else {
    store_tile<Type, kRows, kPart, After::kNothing>(product, row, first_column, left, sums);
  }
}

template <class Type, int kRows, Fetch::Lines kFetch, bool kOther>
HWY_INLINE void compute_tile(const Product& product, std::size_t group, std::size_t row,
                             const std::uint32_t* fetch, const float* other) {
  const PackedWeights& weights = *product.weights;
  const std::size_t row_cells = weights.row_cells;
  const std::size_t first_column = group * kGroupWidth;
  typename Type::Sum sums[kRows][kVectors];
  LINTEL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const auto start = Type::start(product, first_column + v * kLanes);
    LINTEL_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r][v] = start;
  }
  const std::uint32_t* x = product.x + row * product.x_stride;
  const std::uint32_t* w = weights.group(group);
  for (std::size_t c = 0; c < row_cells; ++c, w += kGroupWidth) {
    __m512i columns[kVectors];
    LINTEL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (kFetch == Fetch::Lines::kAhead) _mm_prefetch(w + kFetchAhead + v * kLanes, _MM_HINT_T0);
      columns[v] = _mm512_load_si512(w + v * kLanes);
    }
    if (kOther) {
      _mm_prefetch(other, _MM_HINT_T1);
      other += PrefetchList::kLineFloats;
    }
    if (kFetch == Fetch::Lines::kOne || kFetch == Fetch::Lines::kTwo) {
      _mm_prefetch(fetch, _MM_HINT_T1);
      fetch += kLineCells;
    }
    if (kFetch == Fetch::Lines::kTwo) {
      _mm_prefetch(fetch, _MM_HINT_T1);
      fetch += kLineCells;
    }
    LINTEL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512i cell = _mm512_set1_epi32(static_cast<int>(x[r * product.x_stride + c]));
      LINTEL_UNROLL
      for (int v = 0; v < kVectors; ++v) Type::add(sums[r][v], cell, columns[v]);
    }
  }
  const std::size_t left = weights.out_features - first_column;
  left >= kGroupWidth ? store_tile<Type, kRows, false>(product, row, first_column, left, sums)
                      : store_tile<Type, kRows, true>(product, row, first_column, left, sums);
}

template <class Type, int kRows, bool kOther>
HWY_INLINE void fetching_tile(const Product& product, std::size_t group, std::size_t row,
                              const Fetch& fetch) {
  using enum Fetch::Lines;
  switch (fetch.lines) {
    case kNone:
      return compute_tile<Type, kRows, kNone, kOther>(product, group, row, fetch.from, fetch.other);
    case kOne:
      return compute_tile<Type, kRows, kOne, kOther>(product, group, row, fetch.from, fetch.other);
    case kTwo:
      return compute_tile<Type, kRows, kTwo, kOther>(product, group, row, fetch.from, fetch.other);
    case kAhead:
      return compute_tile<Type, kRows, kAhead, kOther>(product, group, row, fetch.from,
                                                       fetch.other);
  }
}

template <class Type, int kRows>
void tile(const Product& product, std::size_t group, std::size_t row, const Fetch& fetch) {
  fetch.other != nullptr ? fetching_tile<Type, kRows, true>(product, group, row, fetch)
                         : fetching_tile<Type, kRows, false>(product, group, row, fetch);
}

template <class Type>
constexpr TileSet kTiles = {tile<Type, 6>, tile<Type, 4>, tile<Type, 2>, tile<Type, 1>};

}  // namespace
}  // namespace lintel
HWY_POP_ATTRIBUTES

namespace lintel {

const TileSet* avx512_tiles(WeightType type) {
  static const bool has_base = __builtin_cpu_supports("avx512f") &&
                               __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512vl");
  static const bool has_vnni = has_base && __builtin_cpu_supports("avx512vnni");
  static const bool has_bf16 = has_base && __builtin_cpu_supports("avx512bf16");
  if (type == WeightType::kInt8 && has_vnni) return &kTiles<Int8>;
  if (type == WeightType::kBf16 && has_bf16) return &kTiles<Bf16>;
  return nullptr;
}

}  // namespace lintel

#else

namespace lintel {
const TileSet* avx512_tiles(WeightType) { return nullptr; }
}  // namespace lintel

#endif
