// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/block_product.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
// clang-format on

#include "model/ops/block_product.h"

#include <algorithm>

#include "model/core/kernels.h"
#include "model/ops/dense_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;
using Half = hn::Rebind<hwy::float16_t, F>;
using VF = hn::Vec<F>;
using VU = hn::Vec<U>;
using VI = hn::Vec<I>;

constexpr size_t kLanes = hn::MaxLanes(F());
constexpr size_t kPanelVectors = BlockMatrix::kPanel / kLanes;
constexpr size_t kSpanCells = BlockMatrix::kSpan / 4;
// Levels are asked for so many bytes before they are read. Later rows find them in the cache: those
// of the largest tiles, which may be many, do not ask. A panel has one smaller tile of each size.
constexpr size_t kFetchAhead = 4096;
constexpr size_t kMostRows = kLanes == 16 ? 6 : 4;
// Float sums of a tile beside as many integer ones.
constexpr size_t kMostRegisterSums = 12;

// Without vectors a tile of several rows has no registers; it would take long to compile.
constexpr bool kRowsAlone = kLanes == 1;

// Adds the products of four levels of each lane, 0 to 2^kBits - 1, and four signed bytes.
struct Widened {
  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
#if HWY_TARGET == HWY_AVX2
    if (kBits < 8) {  // two products fit 16 bits
      sum = hn::Add(sum, add_pairs(multiply_bytes(levels, hn::Set(U(), x))));
      return;
    }
    const hn::Repartition<int16_t, I> halves;
    const auto inputs = hn::BitCast(halves, hn::Set(U(), x));
    const VI x_even = hn::BitCast(I(), hn::ShiftRight<8>(hn::ShiftLeft<8>(inputs)));
    const VI x_odd = hn::BitCast(I(), hn::ShiftRight<8>(inputs));
    const VU even = hn::And(levels, hn::Set(U(), 0x00ff00ffu));
    const VU odd = hn::And(hn::ShiftRight<8>(levels), hn::Set(U(), 0x00ff00ffu));
    sum = hn::Add(sum, hn::Add(multiply_halves(hn::BitCast(I(), even), x_even),
                               multiply_halves(hn::BitCast(I(), odd), x_odd)));
#else
    for (int i = 0; i < 4; ++i) {
      const auto byte = static_cast<int8_t>(x >> (8 * i));
      const VU level = hn::And(hn::ShiftRightSame(levels, 8 * i), hn::Set(U(), 0xffu));
      sum = hn::Add(sum, hn::Mul(hn::BitCast(I(), level), hn::Set(I(), byte)));
    }
#endif
  }
#if HWY_TARGET == HWY_AVX2
  static HWY_INLINE VI multiply_bytes(VU levels, VU x) {
    return VI{_mm256_maddubs_epi16(levels.raw, x.raw)};
  }
  static HWY_INLINE VI multiply_halves(VI a, VI b) { return VI{_mm256_madd_epi16(a.raw, b.raw)}; }
  static HWY_INLINE VI add_pairs(VI a) {
    return VI{_mm256_madd_epi16(a.raw, _mm256_set1_epi16(1))};
  }
#endif
};

#if HWY_TARGET == HWY_AVX3
// vpdpbusd, which is no part of the target. Not the intrinsic: GCC 12 keeps its sums on the stack.
struct Vnni {
  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(levels.raw), "v"(hn::Set(U(), x).raw));
  }
};
#endif

// Levels of cells 2 p and 2 p + 1 of kVectors vectors of outputs.
template <int kBits, bool kFetches, size_t kVectors>
HWY_INLINE void load_pair(const uint8_t* const (&lines)[kVectors], size_t p, VU (&even)[kVectors],
                          VU (&odd)[kVectors]) {
  const auto line = [&](size_t v, size_t number) HWY_ATTR {
    const uint8_t* const from = lines[v] + number * BlockMatrix::kLineBytes;
    if (kFetches) hwy::Prefetch(from + kFetchAhead);
    return hn::Load(U(), reinterpret_cast<const uint32_t*>(from));
  };
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    if (kBits == 8) {
      even[v] = line(v, 2 * p);
      odd[v] = line(v, 2 * p + 1);
      continue;
    }
    const VU low = hn::Set(U(), 0x0f0f0f0fu);
    const VU both = line(v, p);
    even[v] = hn::And(both, low);
    odd[v] = hn::And(hn::ShiftRight<4>(both), low);
    if (kBits == 5) {
      const VU bit = hn::Set(U(), 0x10101010u);
      const VU fifth = line(v, 4);
      const int shift = static_cast<int>(2 * p);
      even[v] = hn::Or(even[v], hn::And(hn::ShiftLeft<4>(hn::ShiftRightSame(fifth, shift)), bit));
      odd[v] = hn::Or(odd[v], hn::And(hn::ShiftLeft<4>(hn::ShiftRightSame(fifth, shift + 1)), bit));
    }
    if (kBits == 6) {
      const VU bits = hn::Set(U(), 0x30303030u);
      const VU high = line(v, 4 + p / 2);
      const int shift = static_cast<int>(p % 2 * 4);
      even[v] = hn::Or(even[v], hn::And(hn::ShiftLeft<4>(hn::ShiftRightSame(high, shift)), bits));
      odd[v] = hn::Or(odd[v], hn::And(hn::ShiftLeft<4>(hn::ShiftRightSame(high, shift + 2)), bits));
    }
  }
}

HWY_INLINE VF load_half(const uint16_t* from) {
  return hn::PromoteTo(F(), hn::Load(Half(), reinterpret_cast<const hwy::float16_t*>(from)));
}

template <typename Byte>
HWY_INLINE VF load_bytes(const uint8_t* from) {
  const hn::Rebind<Byte, F> bytes;
  return hn::ConvertTo(F(),
                       hn::PromoteTo(I(), hn::Load(bytes, reinterpret_cast<const Byte*>(from))));
}

// A vector of outputs from `column` on of a row.
HWY_INLINE void store_outputs(const BlockProduct& product, size_t row, size_t column, VF sum) {
  const size_t outputs = product.weights->out_features();
  if (column >= outputs) return;
  float* const y = product.y.row(row).data() + column;
  if (column + kLanes <= outputs) {
    VF bias = hn::Zero(F());
    if (product.bias != nullptr) bias = hn::LoadU(F(), product.bias + column);
    const VF value = hn::Add(sum, bias);
    hn::StoreU(product.add ? hn::Add(hn::LoadU(F(), y), value) : value, F(), y);
    return;
  }
  HWY_ALIGN float last[kLanes];
  hn::Store(sum, F(), last);
  for (size_t i = 0; i < outputs - column; ++i) {
    const float value = last[i] + (product.bias != nullptr ? product.bias[column + i] : 0.0f);
    y[i] = product.add ? y[i] + value : value;
  }
}

// kRows rows times kVectors vectors of outputs from `vector` on, within their panel.
template <class Dot, DType kType, size_t kRows, size_t kVectors, bool kFetches>
HWY_INLINE void compute_tile(const BlockProduct& product, size_t panel, size_t row, size_t vector) {
  constexpr BlockFormat kFormat = block_format(kType);
  constexpr size_t kLines = BlockMatrix::lines_of(kFormat);
  constexpr size_t kSpansPerBlock = static_cast<size_t>(kFormat.values) / BlockMatrix::kSpan;
  constexpr size_t kHalves = kFormat.has_minima ? 2 : 1;
  constexpr size_t kGroups = BlockMatrix::kSpan / static_cast<size_t>(kFormat.group);  // of a span
  constexpr size_t kPairs = kSpanCells / 2 / kGroups;  // pairs of cells of a group
  const BlockMatrix& weights = *product.weights;
  const size_t spans = weights.num_spans();
  const uint8_t* lines[kVectors];
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    lines[v] = weights.levels() + panel * spans * kLines * BlockMatrix::kLineBytes +
               (vector + v) * kLanes * 4;
  }
  const size_t column = vector * kLanes;
  const uint16_t* d =
      weights.d() + panel * (spans / kSpansPerBlock) * kHalves * BlockMatrix::kPanel + column;
  const uint8_t* scales = weights.scales() + panel * spans * 2 * BlockMatrix::kPanel + column;
  const uint32_t* x = product.x.cells + row * product.x.cell_stride;
  const float* x_scales = product.x.scales + row * product.x.scale_stride;
  const int32_t* x_sums = product.x.sums + row * product.x.scale_stride * 2;

  // In registers, or, where a tile has too many of them, in memory, where a group adds to them
  // once.
  constexpr bool kInMemory = kRows * kVectors > kMostRegisterSums;
  HWY_ALIGN float memory[kInMemory ? kRows * kVectors * kLanes : 1];
  VF registers[kRows][kVectors];
  const auto sum_of = [&](size_t r, size_t v) HWY_ATTR {
    if constexpr (kInMemory) return hn::Load(F(), memory + (r * kVectors + v) * kLanes);
    return registers[r][v];
  };
  const auto keep_sum = [&](VF sum, size_t r, size_t v) HWY_ATTR {
    if constexpr (kInMemory) {
      hn::Store(sum, F(), memory + (r * kVectors + v) * kLanes);
    } else {
      registers[r][v] = sum;
    }
  };
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) keep_sum(hn::Zero(F()), r, v);
  }
  for (size_t s = 0; s < spans; ++s) {
    LINTEL_UNROLL
    for (size_t g = 0; g < kGroups; ++g) {
      VI exact[kRows][kVectors];
      LINTEL_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        const int32_t* const of_span = x_sums + r * product.x.scale_stride * 2 + 2 * s;
        const int32_t sum = kGroups == 2 ? of_span[g] : of_span[0] + of_span[1];
        LINTEL_UNROLL
        for (size_t v = 0; v < kVectors; ++v) {
          exact[r][v] = kFormat.zero == 0 ? hn::Zero(I()) : hn::Set(I(), -kFormat.zero * sum);
        }
      }
      LINTEL_UNROLL
      for (size_t p = g * kPairs; p < (g + 1) * kPairs; ++p) {
        VU even[kVectors];
        VU odd[kVectors];
        load_pair<kFormat.bits, kFetches>(lines, p, even, odd);
        LINTEL_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          const uint32_t* const cells = x + r * product.x.cell_stride + s * kSpanCells + 2 * p;
          LINTEL_UNROLL
          for (size_t v = 0; v < kVectors; ++v) {
            VI sum = exact[r][v];  // a copy, or GCC 12 keeps the array in memory
            Dot::template add<kFormat.bits>(sum, even[v], cells[0]);
            Dot::template add<kFormat.bits>(sum, odd[v], cells[1]);
            exact[r][v] = sum;
          }
        }
      }
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        VF scale = load_half(d + v * kLanes);
        VF minimum = hn::Zero(F());
        if (kFormat.has_minima) {
          scale = hn::Mul(scale, load_bytes<uint8_t>(scales + v * kLanes));
          minimum = hn::Mul(load_half(d + BlockMatrix::kPanel + v * kLanes),
                            load_bytes<uint8_t>(scales + BlockMatrix::kPanel + v * kLanes));
        } else if (kFormat.has_group_scales) {
          scale = hn::Mul(scale, load_bytes<int8_t>(scales + g * BlockMatrix::kPanel + v * kLanes));
        }
        LINTEL_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          const float x_scale = x_scales[r * product.x.scale_stride + s];
          const VF unit = hn::Mul(scale, hn::Set(F(), x_scale));
          VF sum = hn::MulAdd(hn::ConvertTo(F(), exact[r][v]), unit, sum_of(r, v));
          if (kFormat.has_minima) {
            const int32_t* const of_span = x_sums + r * product.x.scale_stride * 2 + 2 * s;
            const float inputs = x_scale * static_cast<float>(of_span[0] + of_span[1]);
            sum = hn::NegMulAdd(minimum, hn::Set(F(), inputs), sum);
          }
          keep_sum(sum, r, v);
        }
      }
    }
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) lines[v] += kLines * BlockMatrix::kLineBytes;
    scales += 2 * BlockMatrix::kPanel;
    if ((s + 1) % kSpansPerBlock == 0) d += kHalves * BlockMatrix::kPanel;
  }

  const size_t first = panel * BlockMatrix::kPanel + column;
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      store_outputs(product, row + r, first + v * kLanes, sum_of(r, v));
    }
  }
}

// Output scales: one integer sum for each 128 inputs. The float sums are kept in memory, as both in
// registers are too many; a group adds to them once.
template <class Dot, size_t kRows, size_t kVectors, bool kFetches>
HWY_INLINE void compute_output_tile(const BlockProduct& product, size_t panel, size_t row,
                                    size_t vector) {
  constexpr size_t kGroupSpans = 4;
  constexpr int32_t kZero = block_format(DType::kQ8_0).zero;
  const BlockMatrix& weights = *product.weights;
  const size_t spans = weights.num_spans();
  const uint8_t* lines =
      weights.levels() + panel * spans * kSpanCells * BlockMatrix::kLineBytes + vector * kLanes * 4;
  const uint32_t* x = product.x.cells + row * product.x.cell_stride;
  const float* x_scales = product.x.scales + row * product.x.scale_stride;
  const size_t sum_stride = (product.x.scale_stride + kGroupSpans - 1) / kGroupSpans;
  const int32_t* x_sums = product.x.group_sums + row * sum_stride;

  HWY_ALIGN float totals[kRows * kVectors * kLanes];
  LINTEL_UNROLL
  for (size_t i = 0; i < kRows * kVectors; ++i) hn::Store(hn::Zero(F()), F(), totals + i * kLanes);
  for (size_t s = 0; s < spans; s += kGroupSpans, ++x_sums) {
    const size_t cells = std::min(kGroupSpans, spans - s) * kSpanCells;
    VI exact[kRows][kVectors];
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const VI start = hn::Set(I(), -kZero * x_sums[r * sum_stride]);
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) exact[r][v] = start;
    }
    for (size_t c = 0; c < cells; ++c, lines += BlockMatrix::kLineBytes, ++x) {
      VU levels[kVectors];
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        const uint8_t* const from = lines + v * kLanes * 4;
        if (kFetches) hwy::Prefetch(from + kFetchAhead);
        levels[v] = hn::Load(U(), reinterpret_cast<const uint32_t*>(from));
      }
      LINTEL_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        LINTEL_UNROLL
        for (size_t v = 0; v < kVectors; ++v) {
          VI sum = exact[r][v];  // a copy, or GCC 12 keeps the array in memory
          Dot::template add<8>(sum, levels[v], x[r * product.x.cell_stride]);
          exact[r][v] = sum;
        }
      }
    }
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const VF scale = hn::Set(F(), x_scales[r * product.x.scale_stride + s]);
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        float* const total = totals + (r * kVectors + v) * kLanes;
        hn::Store(hn::MulAdd(hn::ConvertTo(F(), exact[r][v]), scale, hn::Load(F(), total)), F(),
                  total);
      }
    }
  }
  const size_t first = panel * BlockMatrix::kPanel + vector * kLanes;
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const VF scale = hn::Load(F(), weights.output_scales() + first + v * kLanes);
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      store_outputs(product, row + r, first + v * kLanes,
                    hn::Mul(hn::Load(F(), totals + (r * kVectors + v) * kLanes), scale));
    }
  }
}

template <class Dot, size_t kRows, size_t kVectors>
HWY_NOINLINE void output_tile(const BlockProduct& product, size_t panel, size_t row) {
  for (size_t vector = 0; vector < kPanelVectors; vector += kVectors) {
    if (panel * BlockMatrix::kPanel + vector * kLanes >= product.weights->out_features()) return;
    if (kRows == kMostRows && row > 0) {
      compute_output_tile<Dot, kRows, kVectors, false>(product, panel, row, vector);
    } else {
      compute_output_tile<Dot, kRows, kVectors, true>(product, panel, row, vector);
    }
  }
}

template <class Dot>
void run_outputs(const BlockProduct& product) {
  constexpr bool kHasManyRegisters = kLanes == 16;
  constexpr size_t kOfMost = kHasManyRegisters ? 4 : std::min<size_t>(2, kPanelVectors);
  constexpr size_t kOfFew = kRowsAlone ? 1 : std::min<size_t>(4, kPanelVectors);
  const size_t rows = product.y.rows();
  for (size_t panel = product.first_panel; panel < product.end_panel; ++panel) {
    size_t row = 0;
    if constexpr (!kRowsAlone) {
      for (; row + kMostRows <= rows; row += kMostRows) {
        output_tile<Dot, kMostRows, kOfMost>(product, panel, row);
      }
      if (row + 4 <= rows) {
        output_tile<Dot, 4, kOfMost>(product, panel, row);
        row += 4;
      }
      if (row + 2 <= rows) {
        output_tile<Dot, 2, kOfMost>(product, panel, row);
        row += 2;
      }
    }
    for (; row < rows; ++row) output_tile<Dot, 1, kOfFew>(product, panel, row);
  }
}

template <class Dot, DType kType, size_t kRows, size_t kVectors>
HWY_NOINLINE void tile(const BlockProduct& product, size_t panel, size_t row) {
  for (size_t vector = 0; vector < kPanelVectors; vector += kVectors) {
    if (panel * BlockMatrix::kPanel + vector * kLanes >= product.weights->out_features()) return;
    if constexpr (kRows == kMostRows) {
      if (row > 0) {
        compute_tile<Dot, kType, kRows, kVectors, false>(product, panel, row, vector);
        continue;
      }
    }
    compute_tile<Dot, kType, kRows, kVectors, true>(product, panel, row, vector);
  }
}

// Panel by panel, so that its levels stay in the cache while the rows pass by. Few rows read whole
// lines of a panel, as memory has them best; with more of them the multiplications take longer.
template <class Dot, DType kType>
void run(const BlockProduct& product) {
  constexpr bool kHasManyRegisters = kLanes == 16;
  constexpr size_t kOfMost = kHasManyRegisters ? 2 : 1;
  constexpr size_t kOfFour = !kHasManyRegisters ? 1 : kType == DType::kQ4_0 ? 4 : 2;
  constexpr size_t kOfTwo = kHasManyRegisters ? 4 : std::min<size_t>(2, kPanelVectors);
  constexpr size_t kOfOne = kRowsAlone ? 1 : std::min<size_t>(4, kPanelVectors);
  const size_t rows = product.y.rows();
  // Of bytes two rows come first.
  constexpr bool kTwoFirst = block_format(kType).bits == 8;
  for (size_t panel = product.first_panel; panel < product.end_panel; ++panel) {
    size_t row = 0;
    if constexpr (!kRowsAlone) {
      if (kTwoFirst && rows >= 2) {
        tile<Dot, kType, 2, kOfTwo>(product, panel, row);
        row += 2;
      }
      for (; row + kMostRows <= rows; row += kMostRows) {
        tile<Dot, kType, kMostRows, kOfMost>(product, panel, row);
      }
      if (row + 4 <= rows) {
        tile<Dot, kType, 4, kOfFour>(product, panel, row);
        row += 4;
      }
      if (row + 2 <= rows) {
        tile<Dot, kType, 2, kOfTwo>(product, panel, row);
        row += 2;
      }
    }
    for (; row < rows; ++row) tile<Dot, kType, 1, kOfOne>(product, panel, row);
  }
}

template <class Dot>
void run(const BlockProduct& product) {
  if (product.weights->has_output_scales()) return run_outputs<Dot>(product);
  switch (product.weights->type()) {
    case DType::kQ8_0:
      return run<Dot, DType::kQ8_0>(product);
    case DType::kQ4_0:
      return run<Dot, DType::kQ4_0>(product);
    case DType::kQ4_K:
      return run<Dot, DType::kQ4_K>(product);
    case DType::kQ5_K:
      return run<Dot, DType::kQ5_K>(product);
    case DType::kQ6_K:
      return run<Dot, DType::kQ6_K>(product);
    default:
      return;
  }
}

#if HWY_TARGET == HWY_AVX3
void MultiplyBlocks(const BlockProduct& product) { run<Vnni>(product); }
#else
void MultiplyBlocks(const BlockProduct& product) { run<Widened>(product); }
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {

HWY_EXPORT(MultiplyBlocks);

#if HWY_ARCH_X86
bool has_avx2() { return (hwy::SupportedTargets() & HWY_AVX2) != 0; }
#endif

}  // namespace

// The kernels for AVX-512 take vpdpbusd, which its first machines have not.
void multiply(const BlockProduct& product, [[maybe_unused]] bool portable) {
#if HWY_ARCH_X86
  if (portable || !has_vnni()) {
    return has_avx2() ? N_AVX2::MultiplyBlocks(product) : N_SCALAR::MultiplyBlocks(product);
  }
#endif
  HWY_DYNAMIC_DISPATCH(MultiplyBlocks)(product);
}

std::string block_product_description() {
  return has_vnni() ? "avx512_vnni" : "highway (" + kernel_target() + ")";
}

}  // namespace lintel
#endif  // HWY_ONCE
