// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/lora/low_rank.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "model/lora/low_rank.h"

#include <algorithm>
#include <cassert>

#include "model/lora/adapter.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using OfRanks = hn::CappedTag<float, LowRankInput::kBlockRanks>;
using OfColumns = hn::CappedTag<float, 16>;

constexpr size_t kRankLanes = hn::MaxLanes(OfRanks());
constexpr size_t kColumnLanes = hn::MaxLanes(OfColumns());
// The number of sums that registers allow beside the operands: AVX2 has 16 of them, AVX-512 32.
constexpr size_t kColumnVectors = kColumnLanes == 16 ? 4 : 2;

// Numbers of the rows that are computed together.
struct Numbers {
  alignas(64) float h[4][kMaxAdapterRank];
};

// h = scaling A x, of kRows rows.
template <size_t kRows>
void multiply_a(const LowRank& m, const float* const* x, Numbers& numbers) {
  const OfRanks d;
  const size_t in = m.a.in;
  for (size_t block = 0; block < m.a.num_blocks(); ++block) {
    for (size_t first = 0; first < LowRankInput::kBlockRanks; first += kRankLanes) {
      const float* a = m.a.cells.get() + block * in * LowRankInput::kBlockRanks + first;
      hn::Vec<OfRanks> even[kRows];
      hn::Vec<OfRanks> odd[kRows];
      LINTEL_UNROLL for (size_t r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
      size_t i = 0;
      for (; i + 2 <= in; i += 2, a += 2 * LowRankInput::kBlockRanks) {
        const auto a_even = hn::Load(d, a);
        const auto a_odd = hn::Load(d, a + LowRankInput::kBlockRanks);
        LINTEL_UNROLL for (size_t r = 0; r < kRows; ++r) {
          even[r] = hn::MulAdd(hn::Set(d, x[r][i]), a_even, even[r]);
          odd[r] = hn::MulAdd(hn::Set(d, x[r][i + 1]), a_odd, odd[r]);
        }
      }
      for (size_t r = 0; r < kRows; ++r) {
        if (i < in) even[r] = hn::MulAdd(hn::Set(d, x[r][i]), hn::Load(d, a), even[r]);
        const auto sum = hn::Mul(hn::Add(even[r], odd[r]), hn::Set(d, m.scaling));
        hn::Store(sum, d, numbers.h[r] + block * LowRankInput::kBlockRanks + first);
      }
    }
  }
}

// y += B h, of kRows rows and kVectors vectors of columns from `column` on, `width` columns of the
// group's being left.
template <size_t kRows, size_t kVectors>
HWY_INLINE void add_columns(const float* b, size_t rank, const float* const* h, float* const* y,
                            size_t column, size_t width) {
  const OfColumns d;
  hn::Vec<OfColumns> sums[kRows][kVectors];
  LINTEL_UNROLL for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (size_t j = 0; j < rank; ++j, b += LowRankOutput::kGroupWidth) {
    LINTEL_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      const auto cells = hn::Load(d, b + v * kColumnLanes);
      LINTEL_UNROLL for (size_t r = 0; r < kRows; ++r) {
        sums[r][v] = hn::MulAdd(hn::Set(d, h[r][j]), cells, sums[r][v]);
      }
    }
  }
  LINTEL_UNROLL for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      float* const to = y[r] + column + v * kColumnLanes;
      if (width >= (v + 1) * kColumnLanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, to), sums[r][v]), d, to);
        continue;
      }
      alignas(64) float rest[kColumnLanes];
      hn::Store(sums[r][v], d, rest);
      for (size_t i = 0; i + v * kColumnLanes < width; ++i) to[i] += rest[i];
    }
  }
}

template <size_t kRows>
void multiply_b(const LowRankOutput& m, const float* const* h, float* const* y) {
  constexpr size_t kWide = kColumnVectors * kColumnLanes;
  for (size_t g = 0; g < m.num_groups(); ++g) {
    const float* const group = m.cells.get() + g * m.rank * LowRankOutput::kGroupWidth;
    const size_t first = g * LowRankOutput::kGroupWidth;
    const size_t width = std::min(m.out - first, LowRankOutput::kGroupWidth);
    size_t c = 0;
    for (; c + kWide <= width; c += kWide) {
      add_columns<kRows, kColumnVectors>(group + c, m.rank, h, y, first + c, kWide);
    }
    for (; c < width; c += kColumnLanes) {
      add_columns<kRows, 1>(group + c, m.rank, h, y, first + c, width - c);
    }
  }
}

template <size_t kRows>
void add_rows(const LowRank& m, const uint32_t* rows, MatrixView<const float> x,
              MatrixView<float> y, Numbers& numbers) {
  const float* from[kRows];
  const float* h[kRows];
  float* to[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    from[r] = x.data() + rows[r] * x.stride();
    h[r] = numbers.h[r];
    to[r] = y.data() + rows[r] * y.stride();
  }
  multiply_a<kRows>(m, from, numbers);
  multiply_b<kRows>(m.b, h, to);
}

void AddLowRank(const LowRank& m, const uint32_t* rows, size_t count, MatrixView<const float> x,
                MatrixView<float> y) {
  Numbers numbers;
  size_t r = 0;
  for (; r + 4 <= count; r += 4) add_rows<4>(m, rows + r, x, y, numbers);
  if (r + 2 <= count) {
    add_rows<2>(m, rows + r, x, y, numbers);
    r += 2;
  }
  if (r < count) add_rows<1>(m, rows + r, x, y, numbers);
}

void AddNumbers(const LowRankOutput& b, float scaling, const float* h, float* y) {
  Numbers numbers;
  for (size_t j = 0; j < b.rank; ++j) numbers.h[0][j] = scaling * h[j];
  const float* const of_row[] = {numbers.h[0]};
  multiply_b<1>(b, of_row, &y);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(AddLowRank);
HWY_EXPORT(AddNumbers);

std::size_t padded_ranks(std::size_t rank) {
  constexpr std::size_t kBlock = LowRankInput::kBlockRanks;
  return (rank + kBlock - 1) / kBlock * kBlock;
}

std::size_t padded_columns(std::size_t out) {
  constexpr std::size_t kGroup = LowRankOutput::kGroupWidth;
  return (out + kGroup - 1) / kGroup * kGroup;
}

}  // namespace

LowRankInput::LowRankInput(std::size_t in_features, std::size_t of_rank)
    : in(in_features), rank(of_rank), cells(make_aligned<float>(padded_ranks(rank) * in)) {}

std::size_t LowRankInput::bytes_of(std::size_t in_features, std::size_t of_rank) {
  return padded_ranks(of_rank) * in_features * sizeof(float);
}

void LowRankInput::assign(std::span<const float> a) {
  assert(a.size() == rank * in);
  for (std::size_t j = 0; j < rank; ++j) {
    float* const block = cells.get() + j / kBlockRanks * in * kBlockRanks + j % kBlockRanks;
    for (std::size_t i = 0; i < in; ++i) block[i * kBlockRanks] = a[j * in + i];
  }
}

LowRankOutput::LowRankOutput(std::size_t out_features, std::size_t of_rank)
    : out(out_features), rank(of_rank), cells(make_aligned<float>(padded_columns(out) * rank)) {}

std::size_t LowRankOutput::bytes_of(std::size_t out_features, std::size_t of_rank) {
  return padded_columns(out_features) * of_rank * sizeof(float);
}

void LowRankOutput::assign(std::span<const float> b) {
  assert(b.size() == out * rank);
  for (std::size_t i = 0; i < out; ++i) {
    float* const column = cells.get() + i / kGroupWidth * rank * kGroupWidth + i % kGroupWidth;
    for (std::size_t j = 0; j < rank; ++j) column[j * kGroupWidth] = b[i * rank + j];
  }
}

void LowRank::add(std::span<const std::uint32_t> rows, MatrixView<const float> x,
                  MatrixView<float> y) const {
  assert(x.cols() == a.in && y.cols() == b.out && a.rank == b.rank);
  HWY_DYNAMIC_DISPATCH(AddLowRank)(*this, rows.data(), rows.size(), x, y);
}

void add_low_rank(const LowRankOutput& b, float scaling, std::span<const float> h,
                  std::span<float> y) {
  assert(h.size() == b.rank && y.size() == b.out);
  HWY_DYNAMIC_DISPATCH(AddNumbers)(b, scaling, h.data(), y.data());
}

}  // namespace lintel
#endif  // HWY_ONCE
