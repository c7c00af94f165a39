// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/block_product.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "model/ops/tiles-inl.h"
// clang-format on

#include "model/ops/block_product.h"

#include <algorithm>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "model/core/kernels.h"
#include "model/ops/amx_check.h"
#include "model/ops/dense_amx.h"
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
// Spans of inputs that share a scale (BlockInput::group_sums).
constexpr size_t kSharedSpans = 4;
// Levels are asked for so many bytes before they are read, scales kScalesAhead. Later rows find
// them in the cache: those of the largest tiles, which may be many, do not ask. A panel has one
// smaller tile of each size.
constexpr size_t kFetchAhead = 4096;
constexpr size_t kScalesAhead = 2048;
constexpr size_t kCacheLine = 64;
constexpr size_t kCacheLines = BlockMatrix::kLineBytes / kCacheLine;  // of a line of a panel
// On AVX2 a pass over a panel computes all of its outputs, some vectors at a time: it then reads
// whole lines, and prefetches them in the order of the memory, which is fastest.
constexpr bool kInOrder = kLanes == 8;
// 32 vector registers, not 16.
constexpr bool kHasManyRegisters = kLanes == 16 || HWY_ARCH_ARM_A64;
constexpr size_t kMostRows = kLanes == 16 ? 6 : 4;
// Float sums of a tile beside as many integer ones.
constexpr size_t kMostRegisterSums = 12;

// Without vectors a tile of several rows has no registers; it would take long to compile.
constexpr bool kRowsAlone = kLanes == 1;

// Adds the products of four levels of each lane, 0 to 2^kBits - 1, and four signed bytes. kCentred:
// of levels of 8 bits it subtracts 128 first, as its instruction takes signed levels, or as their
// products would not fit 16 bits.
struct Widened {
  static constexpr bool kCentred = false;

  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    for (int i = 0; i < 4; ++i) {
      const auto byte = static_cast<int8_t>(x >> (8 * i));
      const VU level = hn::And(hn::ShiftRightSame(levels, 8 * i), hn::Set(U(), 0xffu));
      sum = hn::Add(sum, hn::Mul(hn::BitCast(I(), level), hn::Set(I(), byte)));
    }
  }
};

#if HWY_TARGET == HWY_AVX2
// vpmaddubsw multiplies unsigned and signed bytes and adds two products in 16 bits. These hold two
// products of magnitudes up to 128 and 127, or, of fewer bits, those of several cells.
struct Avx2 {
  static constexpr bool kCentred = true;

  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    static_assert(kBits == 8);
    const VU level = hn::Xor(levels, hn::Set(U(), 0x80808080u));
    __m256i products;
    // Not intrinsics: GCC 12 multiplies a whole tile before it adds, and keeps sums on the stack.
    asm("vpsignb %[level], %[x], %[products]\n\t"
        "vpmaddubsw %[products], %[magnitude], %[products]\n\t"
        "vpmaddwd %[ones], %[products], %[products]\n\t"
        "vpaddd %[products], %[sum], %[sum]"
        : [sum] "+x"(sum.raw), [products] "=&x"(products)
        : [level] "x"(level.raw), [magnitude] "x"(_mm256_abs_epi8(level.raw)),
          [x] "x"(hn::Set(U(), x).raw), [ones] "x"(_mm256_set1_epi16(1)));
  }
  static constexpr size_t short_cells(int bits) { return 32'767 / (2 * 127 * ((1u << bits) - 1)); }
  static HWY_INLINE VI short_sums(VU levels, uint32_t x) {
    return VI{_mm256_maddubs_epi16(levels.raw, hn::Set(U(), x).raw)};
  }
  static HWY_INLINE void add_short(VI& sums, VU levels, uint32_t x) {
    __m256i products;
    asm("vpmaddubsw %[x], %[level], %[products]\n\t"
        "vpaddw %[products], %[sums], %[sums]"
        : [sums] "+x"(sums.raw), [products] "=&x"(products)
        : [level] "x"(levels.raw), [x] "x"(hn::Set(U(), x).raw));
  }
  static HWY_INLINE VI widened(VI sums) {
    return VI{_mm256_madd_epi16(sums.raw, _mm256_set1_epi16(1))};
  }
};

// vpdpbusd of AVX-VNNI, which is no part of the target.
struct AvxVnni {
  static constexpr bool kCentred = false;

  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(levels.raw), "x"(hn::Set(U(), x).raw));
  }
};
#endif

#if HWY_TARGET == HWY_AVX3
// vpdpbusd, which is no part of the target. Not the intrinsic: GCC 12 keeps its sums on the stack.
struct Vnni {
  static constexpr bool kCentred = false;

  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(levels.raw), "v"(hn::Set(U(), x).raw));
  }
};
#endif

#if HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
HWY_INLINE int8x16_t centred(VU levels, int bits) {
  const VU zero = hn::Set(U(), bits == 8 ? 0x80808080u : 0u);
  return vreinterpretq_s8_u32(hn::Xor(levels, zero).raw);
}

// Two products of a level less 128 and a byte fit 16 bits.
struct Neon {
  static constexpr bool kCentred = true;

  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    const int8x16_t a = centred(levels, kBits);
    const int8x16_t b = vreinterpretq_s8_u32(vdupq_n_u32(x));
    const int16x8_t pairs =
        vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
    sum = VI(vpadalq_s16(sum.raw, pairs));
  }
};

// sdot, which is no part of the target: the directive lets the assembler accept it from here on.
struct NeonDot {
  static constexpr bool kCentred = true;

  template <int kBits>
  static HWY_INLINE void add(VI& sum, VU levels, uint32_t x) {
    asm(".arch armv8.2-a+crypto+dotprod\n\tsdot %0.4s, %1.16b, %2.16b"
        : "+w"(sum.raw)
        : "w"(centred(levels, kBits)), "w"(vdupq_n_u32(x)));
  }
};
#endif

// Cells whose products an instruction set adds up in 16 bits before it does in 32; 0: none.
template <class Dot>
constexpr size_t short_cells_of(int bits) {
  if constexpr (requires { Dot::short_cells(bits); }) return Dot::short_cells(bits);
  return 0;
}

// The zero to subtract from each level, as levels are stored unsigned.
template <class Dot>
constexpr int zero_of(const BlockFormat& format) {
  return Dot::kCentred && format.bits == 8 ? 0 : format.zero;
}

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

// All levels of a span of a panel. cells: [8, 64].
template <int kBits>
HWY_INLINE void unpack_levels(const uint8_t* from, uint32_t* cells) {
  const uint8_t* lines[kPanelVectors];
  for (size_t v = 0; v < kPanelVectors; ++v) lines[v] = from + v * kLanes * 4;
  for (size_t p = 0; p < kSpanCells / 2; ++p) {
    VU even[kPanelVectors];
    VU odd[kPanelVectors];
    load_pair<kBits, /*kFetches=*/false>(lines, p, even, odd);
    uint32_t* const of_pair = cells + 2 * p * BlockMatrix::kPanel;
    for (size_t v = 0; v < kPanelVectors; ++v) {
      hn::Store(even[v], U(), of_pair + v * kLanes);
      hn::Store(odd[v], U(), of_pair + BlockMatrix::kPanel + v * kLanes);
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

// Asks for what vector v of outputs will have of an array, once for each cache line.
template <typename T>
HWY_INLINE void fetch(const T* of_panel, size_t v) {
  if (v * kLanes * sizeof(T) % kCacheLine == 0) {
    hwy::Prefetch(of_panel + v * kLanes + kScalesAhead / sizeof(T));
  }
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

// kRows rows times kVectors vectors of outputs from `vector` on, within their panel, kTogether of
// them at a time. kShares: four spans share the scale of their inputs, which multiplies the sum of
// all four.
template <class Dot, DType kType, bool kShares, size_t kRows, size_t kVectors, size_t kTogether,
          bool kFetches>
HWY_INLINE void compute_tile(const BlockProduct& product, size_t panel, size_t row, size_t vector) {
  constexpr BlockFormat kFormat = block_format(kType);
  constexpr size_t kLines = BlockMatrix::lines_of(kFormat);
  constexpr size_t kSpansPerBlock = static_cast<size_t>(kFormat.values) / BlockMatrix::kSpan;
  constexpr size_t kHalves = kFormat.has_minima ? 2 : 1;
  constexpr int kZero = zero_of<Dot>(kFormat);
  constexpr size_t kGroups = BlockMatrix::kSpan / static_cast<size_t>(kFormat.group);  // of a span
  constexpr size_t kPairs = kSpanCells / 2 / kGroups;  // pairs of cells of a group
  constexpr size_t kFetched = kLines * kCacheLines * kTogether / kVectors;  // a part
  constexpr size_t kShortPairs = short_cells_of<Dot>(kFormat.bits) / 2;
  static_assert(kShortPairs == 0 || kPairs % kShortPairs == 0);
  const BlockMatrix& weights = *product.weights;
  const size_t spans = weights.num_spans();
  const size_t column = vector * kLanes;
  const uint8_t* levels =
      weights.levels() + panel * spans * kLines * BlockMatrix::kLineBytes + column * 4;
  const uint16_t* d =
      weights.d() + panel * (spans / kSpansPerBlock) * kHalves * BlockMatrix::kPanel + column;
  const uint8_t* scales = weights.scales() + panel * spans * 2 * BlockMatrix::kPanel + column;
  const uint32_t* x = product.x.cells + row * product.x.cell_stride;
  const float* x_scales = product.x.scales + row * product.x.scale_stride;
  const int32_t* x_sums = product.x.sums + row * product.x.scale_stride * 2;

  // Float sums: in registers, or in memory where a tile has too many. A group adds to them once.
  constexpr bool kInMemory = kVectors != kTogether || kRows * kVectors > kMostRegisterSums;
  HWY_ALIGN float memory[kInMemory ? kRows * kVectors * kLanes : 1];
  VF registers[kRows][kVectors];
  HWY_ALIGN float totals[kShares ? kRows * kVectors * kLanes : 1];
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
    for (size_t v = 0; v < kVectors; ++v) {
      keep_sum(hn::Zero(F()), r, v);
      if (kShares) hn::Store(hn::Zero(F()), F(), totals + (r * kVectors + v) * kLanes);
    }
  }
  for (size_t s = 0; s < spans; ++s) {
    for (size_t first = 0; first < kVectors; first += kTogether) {
      const uint8_t* const fetched = levels + kFetchAhead + first * kLanes * 4 * kLines;
      const uint8_t* lines[kTogether];
      LINTEL_UNROLL
      for (size_t v = 0; v < kTogether; ++v) lines[v] = levels + (first + v) * kLanes * 4;
      LINTEL_UNROLL
      for (size_t g = 0; g < kGroups; ++g) {
        VI exact[kRows][kTogether];
        [[maybe_unused]] VI short_sums[kRows][kTogether];
        LINTEL_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          const int32_t* const of_span = x_sums + r * product.x.scale_stride * 2 + 2 * s;
          const int32_t sum = kGroups == 2 ? of_span[g] : of_span[0] + of_span[1];
          LINTEL_UNROLL
          for (size_t v = 0; v < kTogether; ++v) {
            exact[r][v] = kZero == 0 ? hn::Zero(I()) : hn::Set(I(), -kZero * sum);
          }
        }
        LINTEL_UNROLL
        for (size_t p = g * kPairs; p < (g + 1) * kPairs; ++p) {
          VU even[kTogether];
          VU odd[kTogether];
          load_pair<kFormat.bits, kFetches && !kInOrder>(lines, p, even, odd);
          LINTEL_UNROLL
          for (size_t i = p * kFetched / 4; kFetches && kInOrder && i < (p + 1) * kFetched / 4;
               ++i) {
            hwy::Prefetch(fetched + i * kCacheLine);
          }
          LINTEL_UNROLL
          for (size_t r = 0; r < kRows; ++r) {
            const uint32_t* const cells = x + r * product.x.cell_stride + s * kSpanCells + 2 * p;
            LINTEL_UNROLL
            for (size_t v = 0; v < kTogether; ++v) {
              VI sum = exact[r][v];  // a copy, or GCC 12 keeps the array in memory
              if constexpr (kShortPairs != 0) {
                const size_t of_short = p % kShortPairs;
                VI sums = short_sums[r][v];
                if (of_short == 0) sums = Dot::short_sums(even[v], cells[0]);
                if (of_short != 0) Dot::add_short(sums, even[v], cells[0]);
                Dot::add_short(sums, odd[v], cells[1]);
                if (of_short + 1 == kShortPairs) sum = hn::Add(sum, Dot::widened(sums));
                short_sums[r][v] = sums;
              } else {
                Dot::template add<kFormat.bits>(sum, even[v], cells[0]);
                Dot::template add<kFormat.bits>(sum, odd[v], cells[1]);
              }
              exact[r][v] = sum;
            }
          }
        }
        LINTEL_UNROLL
        for (size_t v = 0; v < kTogether; ++v) {
          if (kFetches && kSpansPerBlock == 1) fetch(d, first + v);
          if (kFetches && kSpansPerBlock > 1 && g == 0) {
            fetch(scales, first + v);
            fetch(scales + BlockMatrix::kPanel, first + v);
          }
          VF scale = load_half(d + (first + v) * kLanes);
          VF minimum = hn::Zero(F());
          if (kFormat.has_minima) {
            scale = hn::Mul(scale, load_bytes<uint8_t>(scales + (first + v) * kLanes));
            minimum =
                hn::Mul(load_half(d + BlockMatrix::kPanel + (first + v) * kLanes),
                        load_bytes<uint8_t>(scales + BlockMatrix::kPanel + (first + v) * kLanes));
          } else if (kFormat.has_group_scales) {
            scale = hn::Mul(
                scale, load_bytes<int8_t>(scales + g * BlockMatrix::kPanel + (first + v) * kLanes));
          }
          LINTEL_UNROLL
          for (size_t r = 0; r < kRows; ++r) {
            if constexpr (kShares) {
              keep_sum(hn::MulAdd(hn::ConvertTo(F(), exact[r][v]), scale, sum_of(r, first + v)), r,
                       first + v);
              continue;
            }
            const float x_scale = x_scales[r * product.x.scale_stride + s];
            const VF unit = hn::Mul(scale, hn::Set(F(), x_scale));
            VF sum = hn::MulAdd(hn::ConvertTo(F(), exact[r][v]), unit, sum_of(r, first + v));
            if (kFormat.has_minima) {
              const int32_t* const of_span = x_sums + r * product.x.scale_stride * 2 + 2 * s;
              const float inputs = x_scale * static_cast<float>(of_span[0] + of_span[1]);
              sum = hn::NegMulAdd(minimum, hn::Set(F(), inputs), sum);
            }
            keep_sum(sum, r, first + v);
          }
        }
      }
    }
    levels += kLines * BlockMatrix::kLineBytes;
    scales += 2 * BlockMatrix::kPanel;
    if ((s + 1) % kSpansPerBlock == 0) d += kHalves * BlockMatrix::kPanel;
    if (!kShares || ((s + 1) % kSharedSpans != 0 && s + 1 < spans)) continue;
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const VF x_scale = hn::Set(F(), x_scales[r * product.x.scale_stride + s]);
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        float* const total = totals + (r * kVectors + v) * kLanes;
        hn::Store(hn::MulAdd(sum_of(r, v), x_scale, hn::Load(F(), total)), F(), total);
        keep_sum(hn::Zero(F()), r, v);
      }
    }
  }

  const size_t first = panel * BlockMatrix::kPanel + column;
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const VF sum = kShares ? hn::Load(F(), totals + (r * kVectors + v) * kLanes) : sum_of(r, v);
      store_outputs(product, row + r, first + v * kLanes, sum);
    }
  }
}

// Output scales: one integer sum for each 128 inputs. The float sums are kept in memory, as both in
// registers are too many; a group adds to them once.
template <class Dot, size_t kRows, size_t kVectors, size_t kTogether, bool kFetches>
HWY_INLINE void compute_output_tile(const BlockProduct& product, size_t panel, size_t row,
                                    size_t vector) {
  constexpr int kZero = zero_of<Dot>(block_format(DType::kQ8_0));
  constexpr size_t kFetched = kCacheLines * kTogether / kVectors;  // a cell
  // A part reads from every line of a group: the whole next group, 8 KB, is prefetched.
  constexpr size_t kAhead = kVectors == kTogether ? kFetchAhead : 2 * kFetchAhead;
  const BlockMatrix& weights = *product.weights;
  const size_t spans = weights.num_spans();
  const uint8_t* lines =
      weights.levels() + panel * spans * kSpanCells * BlockMatrix::kLineBytes + vector * kLanes * 4;
  const uint32_t* x = product.x.cells + row * product.x.cell_stride;
  const float* x_scales = product.x.scales + row * product.x.scale_stride;
  const size_t sum_stride = (product.x.scale_stride + kSharedSpans - 1) / kSharedSpans;
  const int32_t* x_sums = product.x.group_sums + row * sum_stride;

  HWY_ALIGN float totals[kRows * kVectors * kLanes];
  LINTEL_UNROLL
  for (size_t i = 0; i < kRows * kVectors; ++i) hn::Store(hn::Zero(F()), F(), totals + i * kLanes);
  for (size_t s = 0; s < spans; s += kSharedSpans, ++x_sums) {
    const size_t cells = std::min(kSharedSpans, spans - s) * kSpanCells;
    for (size_t first = 0; first < kVectors; first += kTogether) {
      VI exact[kRows][kTogether];
      LINTEL_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        const VI start = hn::Set(I(), -kZero * x_sums[r * sum_stride]);
        LINTEL_UNROLL
        for (size_t v = 0; v < kTogether; ++v) exact[r][v] = start;
      }
      const uint8_t* line = lines + first * kLanes * 4;
      const uint8_t* fetched = lines + kAhead + first * kLanes * 4 * cells;
      for (size_t c = 0; c < cells; ++c, line += BlockMatrix::kLineBytes) {
        LINTEL_UNROLL
        for (size_t i = 0; kFetches && kInOrder && i < kFetched; ++i, fetched += kCacheLine) {
          hwy::Prefetch(fetched);
        }
        VU levels[kTogether];
        LINTEL_UNROLL
        for (size_t v = 0; v < kTogether; ++v) {
          const uint8_t* const from = line + v * kLanes * 4;
          if (kFetches && !kInOrder) hwy::Prefetch(from + kFetchAhead);
          levels[v] = hn::Load(U(), reinterpret_cast<const uint32_t*>(from));
        }
        LINTEL_UNROLL
        for (size_t r = 0; r < kRows; ++r) {
          LINTEL_UNROLL
          for (size_t v = 0; v < kTogether; ++v) {
            VI sum = exact[r][v];  // a copy, or GCC 12 keeps the array in memory
            Dot::template add<8>(sum, levels[v], x[r * product.x.cell_stride + c]);
            exact[r][v] = sum;
          }
        }
      }
      LINTEL_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        const VF scale = hn::Set(F(), x_scales[r * product.x.scale_stride + s]);
        LINTEL_UNROLL
        for (size_t v = 0; v < kTogether; ++v) {
          float* const total = totals + (r * kVectors + first + v) * kLanes;
          hn::Store(hn::MulAdd(hn::ConvertTo(F(), exact[r][v]), scale, hn::Load(F(), total)), F(),
                    total);
        }
      }
    }
    lines += cells * BlockMatrix::kLineBytes;
    x += cells;
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

constexpr size_t pass_vectors(size_t together) { return kInOrder ? kPanelVectors : together; }

template <class Dot, size_t kRows, size_t kTogether>
HWY_NOINLINE void output_tile(const BlockProduct& product, size_t panel, size_t row) {
  constexpr size_t kVectors = pass_vectors(kTogether);
  for (size_t vector = 0; vector < kPanelVectors; vector += kVectors) {
    if (panel * BlockMatrix::kPanel + vector * kLanes >= product.weights->out_features()) return;
    if (kRows == kMostRows && row > 0) {
      compute_output_tile<Dot, kRows, kVectors, kTogether, false>(product, panel, row, vector);
    } else {
      compute_output_tile<Dot, kRows, kVectors, kTogether, true>(product, panel, row, vector);
    }
  }
}

template <class Dot>
void run_outputs(const BlockProduct& product) {
  constexpr size_t kOfMost = kHasManyRegisters ? 4 : std::min<size_t>(2, kPanelVectors);
  constexpr size_t kOfFew = kRowsAlone ? 1 : std::min<size_t>(kLanes == 8 ? 8 : 4, kPanelVectors);
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

template <class Dot, DType kType, bool kShares, size_t kRows, size_t kVectors, size_t kTogether,
          bool kFetches>
HWY_INLINE void compute_tiles(const BlockProduct& product, size_t panel, size_t row) {
  for (size_t vector = 0; vector < kPanelVectors; vector += kVectors) {
    if (panel * BlockMatrix::kPanel + vector * kLanes >= product.weights->out_features()) return;
    compute_tile<Dot, kType, kShares, kRows, kVectors, kTogether, kFetches>(product, panel, row,
                                                                            vector);
  }
}

// Later tiles of the most rows find the panel in the cache, where parts of its lines are faster.
template <class Dot, DType kType, bool kShares, size_t kRows, size_t kTogether>
HWY_NOINLINE void tile(const BlockProduct& product, size_t panel, size_t row) {
  constexpr size_t kPart = kTogether;
  if constexpr (kRows == kMostRows) {
    if (row > 0) {
      return compute_tiles<Dot, kType, kShares, kRows, kPart, kPart, false>(product, panel, row);
    }
  }
  compute_tiles<Dot, kType, kShares, kRows, pass_vectors(kPart), kPart, true>(product, panel, row);
}

// Panel by panel, whose levels stay in the cache. A tile of few rows has more vectors at a time.
template <class Dot, DType kType, bool kShares = false>
void run(const BlockProduct& product) {
  constexpr bool kIsQ4_0 = kType == DType::kQ4_0;  // its tiles need the fewest registers
  constexpr size_t kOfMost = kRowsAlone ? 1 : 2;
  constexpr size_t kOfFour = kHasManyRegisters && kIsQ4_0 ? 4 : 2;
  constexpr size_t kOfTwo = kHasManyRegisters || kIsQ4_0 ? 4 : 2;
  constexpr size_t kOfOne = kRowsAlone ? 1 : std::min<size_t>(4, kPanelVectors);
  const size_t rows = product.y.rows();
  // Bytes begin with a tile of two rows.
  constexpr bool kTwoFirst = block_format(kType).bits == 8;
  for (size_t panel = product.first_panel; panel < product.end_panel; ++panel) {
    size_t row = 0;
    if constexpr (!kRowsAlone) {
      if (kTwoFirst && rows >= 2) {
        tile<Dot, kType, kShares, 2, kOfTwo>(product, panel, row);
        row += 2;
      }
      for (; row + kMostRows <= rows; row += kMostRows) {
        tile<Dot, kType, kShares, kMostRows, kOfMost>(product, panel, row);
      }
      if (row + 4 <= rows) {
        tile<Dot, kType, kShares, 4, kOfFour>(product, panel, row);
        row += 4;
      }
      if (row + 2 <= rows) {
        tile<Dot, kType, kShares, 2, kOfTwo>(product, panel, row);
        row += 2;
      }
    }
    for (; row < rows; ++row) tile<Dot, kType, kShares, 1, kOfOne>(product, panel, row);
  }
}

template <class Dot>
void run(const BlockProduct& product) {
  if (product.weights->has_output_scales()) return run_outputs<Dot>(product);
  switch (product.weights->type()) {
    case DType::kQ8_0:
      return run<Dot, DType::kQ8_0>(product);
    case DType::kQ4_0:
      if (product.x.group_sums != nullptr) return run<Dot, DType::kQ4_0, true>(product);
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

// ---- Products on AMX's tiles (tiles-inl.h).

struct SignedInt8OnTiles {
  template <int kSums, int kA, int kB, class Tiles>
  static HWY_INLINE void add(Tiles& tiles) {
    tiles.template add_signed_int8<kSums, kA, kB>();
  }
};

// Some rows of outputs of one panel. Inputs are taken a few groups at a time; the exact sums of a
// group leave the tiles and are scaled and added up as compute_tile and compute_output_tile do it,
// while the tiles compute the next sums.
//
// A tile has 64 inputs. Where a group has 32, its weights fill one half of a tile and the other
// half is zero.
template <class Tiles, DType kType, bool kOutputScales, bool kShares = false>
class PanelOnTiles {
  static constexpr BlockFormat kFormat = block_format(kType);
  static constexpr size_t kGroups = 2;  // at a time
  static constexpr size_t kGroupSpans = kOutputScales ? kSharedSpans : 1;
  static constexpr size_t kTileSpans = kTileCells / kSpanCells;
  static_assert(kOutputScales || kFormat.group == BlockMatrix::kSpan);

 public:
  static constexpr size_t kMostTileRows = 64;

  HWY_INLINE explicit PanelOnTiles(const BlockProduct& product) : product_(product) {}

  // REQUIRES: rows <= kMostTileRows.
  void compute(size_t panel, size_t first_row, size_t rows) {
    panel_ = panel;
    first_row_ = first_row;
    const size_t rest = rows % Square::kRows;
    const size_t in_squares = rest > kTileRows ? rows : rows - rest;
    const size_t columns = std::min(BlockMatrix::kPanel,
                                    product_.weights->out_features() - panel * BlockMatrix::kPanel);
    std::fill_n(totals_, rows * BlockMatrix::kPanel, 0.0f);
    if (kShares) std::fill_n(shared_, rows * BlockMatrix::kPanel, 0.0f);
    const size_t spans = product_.weights->num_spans();
    for (size_t span = 0; span < spans; span += kGroups * kGroupSpans) {
      if constexpr (!kOutputScales) unpack(span);
      for (size_t column = 0; column < columns; column += Square::kColumns) {
        for (size_t row = 0; row < in_squares; row += Square::kRows) {
          compute_block<Square>(span, row, std::min(Square::kRows, rows - row), column);
        }
      }
      if (in_squares < rows) compute_block<Wide>(span, in_squares, rows - in_squares, 0);
    }
    sums_[1 - current_].finish_some(*this, Square::kRows);
    for (size_t r = 0; r < rows; ++r) store_row(r);
  }

 private:
  struct Scales {  // of a panel's outputs, for each group
    alignas(64) float scales[kGroups][BlockMatrix::kPanel];
    alignas(64) float minima[kGroups][BlockMatrix::kPanel];
  };

  // Exact sums of a block of outputs.
  struct Sums {
    // Adds those of some rows to the totals.
    HWY_NOINLINE void finish_some(PanelOnTiles& of, size_t most) {
      const size_t end = std::min(next + most, rows);
      for (; next < end; ++next) of.finish_row(*this, next);
    }

    size_t span = 0, groups = 0;
    size_t row = 0, rows = 0, column = 0, width = 0;
    size_t next = 0;  // row to finish
    const Scales* scales = nullptr;
    alignas(64) uint32_t values[kGroups][Square::kRows * Square::kColumns];
  };
  static_assert(Square::kRows * Square::kColumns == Wide::kRows * Wide::kColumns);

  // Levels and scales of two spans of the panel.
  HWY_NOINLINE void unpack(size_t span) {
    constexpr size_t kLines = BlockMatrix::lines_of(kFormat);
    constexpr size_t kSpansPerBlock = static_cast<size_t>(kFormat.values) / BlockMatrix::kSpan;
    constexpr size_t kHalves = kFormat.has_minima ? 2 : 1;
    const BlockMatrix& weights = *product_.weights;
    const size_t spans = weights.num_spans();
    current_scales_ = 1 - current_scales_;
    Scales& to = scales_[current_scales_];
    for (size_t g = 0; g < kGroups; ++g) {
      const size_t s = panel_ * spans + span + g;
      unpack_levels<kFormat.bits>(weights.levels() + s * kLines * BlockMatrix::kLineBytes,
                                  levels_[g] + g * kSpanCells * kGroupWidth);
      const size_t block = (panel_ * spans + span + g) / kSpansPerBlock;
      const uint16_t* const d = weights.d() + block * kHalves * BlockMatrix::kPanel;
      const uint8_t* const factors = weights.scales() + s * 2 * BlockMatrix::kPanel;
      for (size_t i = 0; i < BlockMatrix::kPanel; i += kLanes) {
        VF scale = load_half(d + i);
        if constexpr (kFormat.has_minima) {
          scale = hn::Mul(scale, load_bytes<uint8_t>(factors + i));
          const VF minimum = hn::Mul(load_half(d + BlockMatrix::kPanel + i),
                                     load_bytes<uint8_t>(factors + BlockMatrix::kPanel + i));
          hn::Store(minimum, F(), to.minima[g] + i);
        }
        hn::Store(scale, F(), to.scales[g] + i);
      }
    }
  }

  template <class Block>
  HWY_INLINE void compute_block(size_t span, size_t row, size_t rows, size_t column) {
    const size_t spans = std::min(kGroups * kGroupSpans, product_.weights->num_spans() - span);
    Sums& last = sums_[1 - current_];
    Sums& own = sums_[current_];
    own.span = span;
    own.groups = (spans + kGroupSpans - 1) / kGroupSpans;
    own.row = row;
    own.rows = rows;
    own.column = column;
    own.width = Block::kColumns;
    own.next = 0;
    own.scales = &scales_[current_scales_];
    const size_t steps = kOutputScales ? spans / kTileSpans : own.groups;
    const size_t rows_a_step = (last.rows + steps - 1) / steps;
    const uint32_t* const x = product_.x.cells + (first_row_ + row) * product_.x.cell_stride;
    TileOperands at{.x = x + span * kSpanCells, .x_stride = product_.x.cell_stride * 4};
    if constexpr (kOutputScales) {
      at.w = reinterpret_cast<const uint32_t*>(product_.weights->levels()) +
             (panel_ * product_.weights->num_spans() + span) * kSpanCells * kGroupWidth + column;
    }
    for (size_t g = 0; g < own.groups; ++g) {
      tiles_.template zero<0>();
      tiles_.template zero<1>();
      tiles_.template zero<2>();
      tiles_.template zero<3>();
      if constexpr (kOutputScales) {
        const size_t end = std::min((g + 1) * kGroupSpans, spans);
        for (size_t s = g * kGroupSpans; s < end; s += kTileSpans, at.next()) {
          Block::template step<SignedInt8OnTiles>(at, tiles_);
          last.finish_some(*this, rows_a_step);
        }
      } else {
        at.w = levels_[g] + column;
        Block::template step<SignedInt8OnTiles>(at, tiles_);
        last.finish_some(*this, rows_a_step);
      }
      Block::store(tiles_, own.values[g]);
    }
    current_ = 1 - current_;
  }

  HWY_INLINE void finish_row(const Sums& sums, size_t r) {
    const BlockInput& x = product_.x;
    const size_t row = first_row_ + sums.row + r;
    float x_scales[kGroups] = {};
    int32_t x_sums[kGroups] = {};
    for (size_t g = 0; g < sums.groups; ++g) {
      const size_t s = sums.span + g * kGroupSpans;
      x_scales[g] = x.scales[row * x.scale_stride + s];
      if constexpr (kOutputScales) {
        x_sums[g] = x.group_sums[row * ((x.scale_stride + 3) / 4) + s / kGroupSpans];
      } else {
        const int32_t* const of_span = x.sums + (row * x.scale_stride + s) * 2;
        x_sums[g] = of_span[0] + of_span[1];
      }
    }
    const size_t at = (sums.row + r) * BlockMatrix::kPanel + sums.column;
    float* const totals = totals_ + at;
    const size_t end = sums.span + sums.groups * kGroupSpans;
    const bool ends = end % kSharedSpans == 0 || end == product_.weights->num_spans();
    for (size_t i = 0; i < sums.width; i += kLanes) {
      VF total = hn::Load(F(), (kShares ? shared_ + at : totals) + i);
      for (size_t g = 0; g < sums.groups; ++g) {
        VI exact = hn::BitCast(I(), hn::Load(U(), sums.values[g] + r * sums.width + i));
        if constexpr (kFormat.zero != 0) {
          exact = hn::Sub(exact, hn::Set(I(), kFormat.zero * x_sums[g]));
        }
        const VF x_scale = hn::Set(F(), x_scales[g]);
        if constexpr (kOutputScales) {
          total = hn::MulAdd(hn::ConvertTo(F(), exact), x_scale, total);
          continue;
        }
        const size_t column = sums.column + i;
        const VF scale = hn::Load(F(), sums.scales->scales[g] + column);
        const VF unit = kShares ? scale : hn::Mul(scale, x_scale);
        total = hn::MulAdd(hn::ConvertTo(F(), exact), unit, total);
        if constexpr (kFormat.has_minima) {
          const float inputs = x_scales[g] * static_cast<float>(x_sums[g]);
          total = hn::NegMulAdd(hn::Load(F(), sums.scales->minima[g] + column),
                                hn::Set(F(), inputs), total);
        }
      }
      if constexpr (kShares) {
        hn::Store(ends ? hn::Zero(F()) : total, F(), shared_ + at + i);
        if (!ends) continue;
        total = hn::MulAdd(total, hn::Set(F(), x_scales[0]), hn::Load(F(), totals + i));
      }
      hn::Store(total, F(), totals + i);
    }
  }

  void store_row(size_t r) const {
    const size_t first = panel_ * BlockMatrix::kPanel;
    for (size_t i = 0; i < BlockMatrix::kPanel; i += kLanes) {
      VF sum = hn::Load(F(), totals_ + r * BlockMatrix::kPanel + i);
      if constexpr (kOutputScales) {
        sum = hn::Mul(sum, hn::Load(F(), product_.weights->output_scales() + first + i));
      }
      store_outputs(product_, first_row_ + r, first + i, sum);
    }
  }

  const BlockProduct& product_;
  Tiles tiles_;
  size_t panel_ = 0;
  size_t first_row_ = 0;
  int current_ = 0;
  int current_scales_ = 0;
  Sums sums_[2];
  Scales scales_[2];
  alignas(64) float totals_[kMostTileRows * BlockMatrix::kPanel];  // [rows, 64]
  // The same of the inputs that share the current scale.
  alignas(64) float shared_[kShares ? kMostTileRows * BlockMatrix::kPanel : 1];
  // Cells of a tile's 16 lines, for each group: those of the other group stay 0.
  alignas(64) uint32_t levels_[kGroups][kTileCells * kGroupWidth] = {};
};

template <class Tiles, DType kType, bool kOutputScales, bool kShares = false>
HWY_NOINLINE void run_on_tiles(const BlockProduct& product) {
  using Panel = PanelOnTiles<Tiles, kType, kOutputScales, kShares>;
  Panel on_tiles(product);
  const size_t rows = product.y.rows();
  for (size_t panel = product.first_panel; panel < product.end_panel; ++panel) {
    for (size_t row = 0; row < rows; row += Panel::kMostTileRows) {
      on_tiles.compute(panel, row, std::min(Panel::kMostTileRows, rows - row));
    }
  }
}

template <class Tiles>
void run_on(const BlockProduct& product) {
  if (product.weights->has_output_scales()) {
    return run_on_tiles<Tiles, DType::kQ8_0, true>(product);
  }
  switch (product.weights->type()) {
    case DType::kQ8_0:
      return run_on_tiles<Tiles, DType::kQ8_0, false>(product);
    case DType::kQ4_0:
      if (product.x.group_sums != nullptr) {
        return run_on_tiles<Tiles, DType::kQ4_0, false, true>(product);
      }
      return run_on_tiles<Tiles, DType::kQ4_0, false>(product);
    case DType::kQ4_K:
      return run_on_tiles<Tiles, DType::kQ4_K, false>(product);
    case DType::kQ5_K:
      return run_on_tiles<Tiles, DType::kQ5_K, false>(product);
    default:
      return;
  }
}

void MultiplyBlocksOnTwinTiles(const BlockProduct& product) { run_on<TwinTiles>(product); }

void MultiplyBlocksOnAmx([[maybe_unused]] const BlockProduct& product) {
#if HWY_TARGET == HWY_AVX3
  run_on<AmxTiles>(product);
#endif
}

#if HWY_TARGET == HWY_AVX3
void MultiplyBlocks(const BlockProduct& product) { run<Vnni>(product); }
#elif HWY_TARGET == HWY_AVX2
void MultiplyBlocks(const BlockProduct& product) { run<Avx2>(product); }
void MultiplyBlocksByAvxVnni(const BlockProduct& product) { run<AvxVnni>(product); }
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
void MultiplyBlocks(const BlockProduct& product) { run<Neon>(product); }
void MultiplyBlocksByDot(const BlockProduct& product) { run<NeonDot>(product); }
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
HWY_EXPORT(MultiplyBlocksOnAmx);
HWY_EXPORT(MultiplyBlocksOnTwinTiles);

#if HWY_ARCH_ARM_A64 && defined(__linux__)
bool has_dot() {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return has;
}
#elif HWY_ARCH_ARM_A64
bool has_dot() { return false; }
#endif

// Fewer rows wait for memory with any kernel.
constexpr std::size_t kLeastTileRows = 8;

}  // namespace

bool fits_tiles(const BlockMatrix& weights) {
  return weights.num_spans() % 2 == 0 && weights.type() != DType::kQ6_K;
}

void multiply_blocks_on_amx(const BlockProduct& product) {
  const TileScope scope;
  HWY_DYNAMIC_DISPATCH(MultiplyBlocksOnAmx)(product);
}

void multiply_blocks_on_twin_tiles(const BlockProduct& product) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlocksOnTwinTiles)(product);
}

// The kernels for AVX-512 take vpdpbusd, which its first machines have not.
void multiply(const BlockProduct& product, bool portable) {
  if (!portable && product.y.rows() >= kLeastTileRows && fits_tiles(*product.weights) &&
      runs_on_tiles(WeightType::kBlocks)) {
    return uses_twin_tiles() ? multiply_blocks_on_twin_tiles(product)
                             : multiply_blocks_on_amx(product);
  }
#if HWY_ARCH_X86
  if (portable || !has_vnni()) {
    if (!portable && has_avx_vnni()) return N_AVX2::MultiplyBlocksByAvxVnni(product);
    return has_avx2() ? N_AVX2::MultiplyBlocks(product)
                      : HWY_STATIC_DISPATCH(MultiplyBlocks)(product);
  }
#endif
#if HWY_ARCH_ARM_A64
  if (!portable && has_dot()) return N_NEON::MultiplyBlocksByDot(product);
#endif
  HWY_DYNAMIC_DISPATCH(MultiplyBlocks)(product);
}

bool has_byte_products() {
#if HWY_ARCH_X86
  return has_avx2() || has_vnni();
#else
  return HWY_ARCH_ARM_A64 != 0;
#endif
}

std::string block_product_description() {
  std::string few = "highway (" + kernel_target() + ")";
#if HWY_ARCH_X86
  if (has_avx2()) few = has_avx_vnni() ? "avx_vnni" : "highway (AVX2)";
  if (has_vnni()) few = "avx512_vnni";
#endif
#if HWY_ARCH_ARM_A64
  if (has_dot()) few = "neon_dotprod";
#endif
  if (!runs_on_tiles(WeightType::kBlocks)) return few;
  return std::string("amx_int8") + (uses_twin_tiles() ? " (twin)" : "") + ", below " +
         std::to_string(kLeastTileRows) + " rows " + few;
}

}  // namespace lintel
#endif  // HWY_ONCE
