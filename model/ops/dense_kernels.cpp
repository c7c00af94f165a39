// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/dense_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "model/ops/dense_outputs-inl.h"
// clang-format on

#include "model/ops/dense_kernels.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "model/core/kernels.h"
#include "model/ops/amx_check.h"
#include "model/ops/dense_amx.h"
#include "model/ops/dense_avx512.h"
#include "model/ops/dense_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroupVectors = kGroupWidth / kLanes;
// Vectors of columns of a tile of six rows: as many sums as registers allow beside the operands.
constexpr size_t kTileVectors = kLanes == 16 ? 4 : kLanes == 1 ? 1 : 2;
// Without vectors a tile of several rows has no registers; it would take long to compile.
constexpr bool kRowsAlone = kLanes == 1;

struct F32 : FloatOutput {
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
    sum = hn::MulAdd(hn::BitCast(F(), hn::Set(U(), x)), hn::BitCast(F(), w), sum);
  }
};

// Widened to f32: exact, so one more rounding per product is all that differs from vdpbf16ps.
struct Bf16 : FloatOutput {
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
    const VU high = hn::Set(U(), 0xffff0000u);
    const VU inputs = hn::Set(U(), x);
    sum = hn::MulAdd(hn::BitCast(F(), hn::ShiftLeft<16>(inputs)),
                     hn::BitCast(F(), hn::ShiftLeft<16>(w)), sum);
    sum = hn::MulAdd(hn::BitCast(F(), hn::And(inputs, high)), hn::BitCast(F(), hn::And(w, high)),
                     sum);
  }
};

// Uses wider integers: sums of two products of bytes do not fit 16 bits (vpmaddubsw saturates).
struct Int8 : Int8Output {
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    const hn::Repartition<int16_t, I> halves;
    const auto bytes = hn::BitCast(halves, w);
    const VI even = hn::BitCast(I(), hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)));
    const VI odd = hn::BitCast(I(), hn::ShiftRight<8>(bytes));
    const hn::Repartition<uint16_t, I> unsigned_halves;
    const VU inputs = hn::Set(U(), x);
    const VI x_even = hn::BitCast(I(), hn::And(inputs, hn::Set(U(), 0x00ff00ffu)));
    const VI x_odd = hn::BitCast(I(), hn::ShiftRight<8>(hn::BitCast(unsigned_halves, inputs)));
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
};

#if HWY_TARGET == HWY_AVX2 && HWY_ARCH_X86_64
// vpdpbusd of AVX-VNNI, which is no part of the target.
struct Int8ByAvxVnni : Int8Output {
  static HWY_INLINE void add(Sum& sum, uint32_t x, VU w) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(hn::Set(U(), x).raw), "x"(w.raw));
  }
};
#endif

// A cell of some rows, `x_stride` apart, times its columns of the weights.
template <class Type, size_t kRows, size_t kVectors>
HWY_INLINE void add_cell(typename Type::Sum (&sums)[kRows][kVectors], const uint32_t* x,
                         size_t x_stride, const VU (&columns)[kVectors]) {
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) Type::add(sums[r][v], x[r * x_stride], columns[v]);
  }
}

// The memory that a part of a tile prefetches: one kind, as every combination costs compile time.
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
  const uint32_t* x = product.x + row * product.x_stride;
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
    add_cell<Type>(sums, x + c, product.x_stride, columns);
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
  // One line with every cell, no more: of the product's `fetch`, or the next group.
  const float* other = fetch.other;
  if (other == nullptr) other = reinterpret_cast<const float*>(fetch.from);
  for (size_t v = 0; v < kGroupVectors; v += kVectors) {
    const size_t column = group * kGroupWidth + v * kLanes;
    if (column >= product.weights->out_features) return;
    const uint32_t* w = product.weights->group(group) + v * kLanes;
    if (fetch.lines == Fetch::Lines::kAhead) {
      compute_part<Type, kRows, kVectors, Ask::kAhead>(product, w, row, column, nullptr);
    } else if (other != nullptr && v == 0) {
      compute_part<Type, kRows, kVectors, Ask::kOther>(product, w, row, column, other);
    } else {
      compute_part<Type, kRows, kVectors, Ask::kNothing>(product, w, row, column, nullptr);
    }
  }
}

constexpr size_t kWide = std::min(kGroupVectors, 2 * kTileVectors);
constexpr size_t kWidest = std::min(kGroupVectors, 4 * kTileVectors);

template <class Type, size_t kRows>
void rows_alone(const Product& product, size_t group, size_t row, const Fetch& fetch) {
  for (size_t r = 0; r < kRows; ++r) tile<Type, 1, kWidest>(product, group, row + r, fetch);
}

template <class Type>
void run_all(const Product& product) {
  if constexpr (kRowsAlone) {
    run_tiles(product,
              {rows_alone<Type, 6>, rows_alone<Type, 4>, rows_alone<Type, 2>, rows_alone<Type, 1>});
  } else {
    run_tiles(product, {tile<Type, 6, kTileVectors>, tile<Type, 4, kTileVectors>,
                        tile<Type, 2, kWide>, tile<Type, 1, kWidest>});
  }
}

// ---- f32, many rows

// Weights of so many cells of a group stay in the first cache while all rows pass by; what is
// added up until the last of them waits outside the registers, unrounded, so the bits are those of
// one pass over all cells.
constexpr size_t kBlockCells = 64;
constexpr size_t kBlockRows = 66;  // the rows whose sums wait at a time

struct Block {
  const uint32_t* weights;  // of the group's first column
  size_t first_cell, cells;
  bool is_first, is_last;
  float* sums;  // [rows from `row` on, kGroupWidth]
};

// Lines to prefetch: one of the weights that come next with every cell whose number has no bit of
// `rarer`, so that all tiles share them, and one of the product's `fetch` with each.
struct Asked {
  const uint32_t* weights = nullptr;
  size_t rarer = 0;
  const float* other = nullptr;
};

// Prefetches are decided with every cell: a variant of the loop for each case gains 1 %, and takes
// a sanitizer minutes to compile.
template <size_t kRows, size_t kVectors>
HWY_INLINE void add_block(const Product& product, const Block& block, size_t row, size_t column,
                          size_t vector, Asked asked) {
  VF sums[kRows][kVectors];
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = block.is_first
                       ? hn::Zero(F())
                       : hn::Load(F(), block.sums + r * kGroupWidth + (vector + v) * kLanes);
    }
  }
  const uint32_t* x = product.x + row * product.x_stride + block.first_cell;
  const uint32_t* w = block.weights + vector * kLanes;
  for (size_t c = 0; c < block.cells; ++c, w += kGroupWidth) {
    if (asked.weights != nullptr && (c & asked.rarer) == 0) {
      hwy::Prefetch(asked.weights);
      asked.weights += kLineCells;
    }
    if (asked.other != nullptr) {
      hwy::Prefetch(asked.other);
      asked.other += PrefetchList::kLineFloats;
    }
    VU columns[kVectors];
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) columns[v] = hn::Load(U(), w + v * kLanes);
    add_cell<F32>(sums, x + c, product.x_stride, columns);
  }
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t first = column + (vector + v) * kLanes;
    if (block.is_last && first >= product.weights->out_features) break;
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      if (block.is_last) {
        store(product, row + r, first, F32::finish(product, row + r, first, sums[r][v]));
      } else {
        hn::Store(sums[r][v], F(), block.sums + r * kGroupWidth + (vector + v) * kLanes);
      }
    }
  }
}

template <size_t kRows, size_t kVectors>
void add_block_of_group(const Product& product, const Block& block, size_t row, size_t column,
                        const Asked& asked) {
  for (size_t v = 0; v < kGroupVectors; v += kVectors) {
    if (column + v * kLanes >= product.weights->out_features) return;
    add_block<kRows, kVectors>(product, block, row, column, v, v == 0 ? asked : Asked());
  }
}

// Six rows at a time, then what is left.
HWY_INLINE void add_block_of_rows(const Product& product, Block block, size_t row, size_t count,
                                  size_t column, Asked asked) {
  asked.rarer = count >= 8 * 6 ? 1 : 0;
  const size_t lines = block.cells / (asked.rarer + 1);
  size_t left = 4 * block.cells;  // lines of the weights that come next
  const auto next = [&](size_t rows) {
    row += rows;
    count -= rows;
    block.sums += rows * kGroupWidth;
    if (asked.weights == nullptr) return;
    left -= std::min(left, lines);
    asked.weights = left > 0 ? asked.weights + lines * kLineCells : nullptr;
  };
  const auto with_other = [&] {
    asked.other = product.prefetch ? product.prefetch->take(block.cells) : nullptr;
    return asked;
  };
  if constexpr (!kRowsAlone) {
    for (; count >= 6; next(6)) {
      add_block_of_group<6, kTileVectors>(product, block, row, column, with_other());
    }
    if (count >= 4) {
      add_block_of_group<4, kTileVectors>(product, block, row, column, with_other());
      next(4);
    }
    if (count >= 2) {
      add_block_of_group<2, kWide>(product, block, row, column, with_other());
      next(2);
    }
  }
  for (; count > 0; next(1)) {
    add_block_of_group<1, kWidest>(product, block, row, column, with_other());
  }
}

void run_f32(const Product& product) {
  // Few rows read the weights once or twice, wherever these lie.
  if (product.rows <= 12) return run_all<F32>(product);
  HWY_ALIGN float sums[kBlockRows * kGroupWidth];
  const size_t row_cells = product.weights->row_cells;
  for (size_t g = product.first_group; g < product.groups_end(); ++g) {
    for (size_t row = 0; row < product.rows; row += kBlockRows) {
      const size_t count = std::min(kBlockRows, product.rows - row);
      for (size_t c = 0; c < row_cells; c += kBlockCells) {
        const uint32_t* const weights = product.weights->group(g) + c * kGroupWidth;
        const size_t cells = std::min(kBlockCells, row_cells - c);
        const Block block{.weights = weights,
                          .first_cell = c,
                          .cells = cells,
                          .is_first = c == 0,
                          .is_last = c + cells == row_cells,
                          .sums = sums};
        // The first rows bring what comes next; it lies behind.
        const Asked asked{.weights = row == 0 ? weights + cells * kGroupWidth : nullptr};
        add_block_of_rows(product, block, row, count, g * kGroupWidth, asked);
      }
    }
  }
}

template <class Output>
void finish_all(const Product& product, const uint32_t* raw) {
  for (size_t row = 0; row < product.rows; ++row) {
    finish_row<Output>(product, row, 0, product.weights->out_features,
                       raw + row * product.weights->out_features);
  }
}

void FinishFloats(const Product& product, const uint32_t* raw) {
  finish_all<FloatOutput>(product, raw);
}
void FinishInt8(const Product& product, const uint32_t* raw) {
  finish_all<Int8Output>(product, raw);
}

bool IsAvx512() { return HWY_TARGET == HWY_AVX3; }
// A lower value is a better target.
bool IsAvx2() { return HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86; }
void MultiplyF32(const Product& product) { run_f32(product); }
void MultiplyBf16(const Product& product) { run_all<Bf16>(product); }
void MultiplyInt8(const Product& product) { run_all<Int8>(product); }
#if HWY_TARGET == HWY_AVX2 && HWY_ARCH_X86_64
void MultiplyInt8ByAvxVnni(const Product& product) { run_all<Int8ByAvxVnni>(product); }
#endif

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
HWY_EXPORT(IsAvx2);
HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyBf16);
HWY_EXPORT(MultiplyInt8);

std::atomic<InstructionSet> most_allowed{InstructionSet::kAmx};
std::atomic<bool> on_twin_tiles{false};

// A limit on Highway below AVX-512, as tests set it, applies to the other kernels, too.
bool may_use(InstructionSet set) {
  return HWY_DYNAMIC_DISPATCH(IsAvx512)() && set <= most_allowed.load(std::memory_order_relaxed);
}

const TileSet* special_tiles(WeightType type) {
  const bool allowed = may_use(type == WeightType::kBf16 ? InstructionSet::kAvx512Bf16
                                                         : InstructionSet::kAvx512Vnni);
  return allowed ? avx512_tiles(type) : nullptr;
}

}  // namespace

void limit_instruction_set(InstructionSet most) {
  if (most < InstructionSet::kAvx512) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  most_allowed.store(most, std::memory_order_relaxed);
}

bool uses_twin_tiles() { return on_twin_tiles.load(std::memory_order_relaxed); }

bool runs_on_tiles(WeightType type) {
  if (type == WeightType::kF32) return false;
  return uses_twin_tiles() ||
         (may_use(InstructionSet::kAmx) && amx_available() && amx_is_right(type));
}

void use_twin_tiles(bool use) { on_twin_tiles.store(use, std::memory_order_relaxed); }

void multiply(const Product& product, bool portable) {
  const WeightType type = product.weights->type;
  if (!portable && runs_on_tiles(type)) {
    return uses_twin_tiles() ? multiply_on_twin_tiles(product) : multiply_on_amx(product);
  }
  if (const TileSet* tiles = portable ? nullptr : special_tiles(type)) {
    return run_tiles(product, *tiles);
  }
  switch (type) {
    case WeightType::kF32:
      return HWY_DYNAMIC_DISPATCH(MultiplyF32)(product);
    case WeightType::kBf16:
      return HWY_DYNAMIC_DISPATCH(MultiplyBf16)(product);
    case WeightType::kInt8:
#if HWY_ARCH_X86_64
      if (!portable && has_avx_vnni()) return N_AVX2::MultiplyInt8ByAvxVnni(product);
#endif
      return HWY_DYNAMIC_DISPATCH(MultiplyInt8)(product);
    default:
      assert(false);  // see block_product.h
  }
}

void finish_sums(const Product& product, const std::uint32_t* raw) {
  product.weights->type == WeightType::kInt8 ? HWY_DYNAMIC_DISPATCH(FinishInt8)(product, raw)
                                             : HWY_DYNAMIC_DISPATCH(FinishFloats)(product, raw);
}

bool writes_bf16(WeightType type) { return type == WeightType::kBf16 && runs_on_tiles(type); }

bool has_vnni() { return special_tiles(WeightType::kInt8) != nullptr; }

// Not hwy::SupportedTargets, which asks the processor each time: 5 us in a virtual machine.
bool has_avx2() { return HWY_DYNAMIC_DISPATCH(IsAvx2)(); }

bool has_avx_vnni() {
#if HWY_ARCH_X86_64
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
           (eax & 1u << 4) != 0;
  }();
  return has && has_avx2() && !HWY_DYNAMIC_DISPATCH(IsAvx512)() &&
         most_allowed.load(std::memory_order_relaxed) >= InstructionSet::kAvxVnni;
#else
  return false;
#endif
}

bool has_special_tiles(WeightType type) {
  return runs_on_tiles(type) || special_tiles(type) != nullptr;
}

std::string multiply_description(WeightType type) {
  if (runs_on_tiles(type)) {
    const std::string name = type == WeightType::kInt8 ? "amx_int8" : "amx_bf16";
    return uses_twin_tiles() ? name + " (twin)" : name;
  }
  if (type == WeightType::kInt8 && has_avx_vnni()) return "avx_vnni";
  if (special_tiles(type) == nullptr) return "highway (" + kernel_target() + ")";
  return type == WeightType::kInt8 ? "avx512_vnni" : "avx512_bf16";
}

}  // namespace lintel
#endif  // HWY_ONCE
