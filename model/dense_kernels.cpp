// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/dense_kernels.cpp"
#include "model/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "model/dense_kernels.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using PanelTag = hn::CappedTag<float, kPanelWidth>;
using PanelVector = hn::Vec<PanelTag>;

constexpr size_t kLanes = hn::MaxLanes(PanelTag());
constexpr size_t kVectors = kPanelWidth / kLanes;  // of one panel

// Accumulators of a tile, as many as registers allow beside the operands, and rows of the widest:
// 12 x 2 vectors of 32 registers, 6 x 2 vectors of 16, else one row of one panel.
constexpr size_t kAccumulators = kVectors == 1 ? 24 : kVectors == 2 ? 12 : kVectors;
constexpr size_t kMostRows = kVectors == 1 ? 12 : kVectors == 2 ? 6 : 1;

// x and y of a tile of rows, with their strides.
struct Rows {
  const float* x;
  size_t x_stride;
  float* y;
  size_t y_stride;
};

// kRows rows times kPanels panels from `first` on.
template <size_t kRows, size_t kPanels>
HWY_INLINE void multiply_tile(const PackedPanels& weights, size_t first, const Rows& rows) {
  const PanelTag d;
  constexpr size_t kColumns = kPanels * kVectors;
  const size_t k_end = weights.in_features();
  PanelVector sum[kRows][kColumns];
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL
    for (size_t c = 0; c < kColumns; ++c) sum[r][c] = hn::Zero(d);
  }
  const float* panel = weights.panel(first);
  const size_t panel_floats = k_end * kPanelWidth;
  for (size_t k = 0; k < k_end; ++k) {
    PanelVector w[kColumns];
    LINTEL_UNROLL
    for (size_t c = 0; c < kColumns; ++c) {
      w[c] = hn::Load(
          d, panel + (c / kVectors) * panel_floats + k * kPanelWidth + (c % kVectors) * kLanes);
    }
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const PanelVector x = hn::Set(d, rows.x[r * rows.x_stride + k]);
      LINTEL_UNROLL
      for (size_t c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(x, w[c], sum[r][c]);
    }
  }
  LINTEL_UNROLL
  for (size_t p = 0; p < kPanels; ++p) {
    const size_t column = (first + p) * kPanelWidth;
    const size_t width = std::min(kPanelWidth, weights.out_features() - column);
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      HWY_ALIGN float padded[kPanelWidth];
      float* y = rows.y + r * rows.y_stride + column;
      float* target = width == kPanelWidth ? y : padded;
      LINTEL_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        const PanelVector bias = hn::Load(d, weights.bias(first + p) + v * kLanes);
        hn::StoreU(hn::Add(sum[r][p * kVectors + v], bias), d, target + v * kLanes);
      }
      if (target == padded) std::memcpy(y, padded, width * sizeof(float));
    }
  }
}

// `count` rows, a multiple of kRows, times every panel. The panels of the inner loop stay in cache
// while the rows pass by.
template <size_t kRows>
void multiply_rows(const PackedPanels& weights, const Rows& rows, size_t count) {
  // Few rows take more panels at once: the chains of additions must be many to hide their latency.
  constexpr size_t kPanels =
      std::max<size_t>(1, std::min<size_t>(8, kAccumulators / (kRows * kVectors)));
  const auto tile_rows = [&rows](size_t r) HWY_ATTR {
    return Rows{rows.x + r * rows.x_stride, rows.x_stride, rows.y + r * rows.y_stride,
                rows.y_stride};
  };
  size_t p = 0;
  for (; p + kPanels <= weights.num_panels(); p += kPanels) {
    for (size_t r = 0; r < count; r += kRows) {
      multiply_tile<kRows, kPanels>(weights, p, tile_rows(r));
    }
  }
  for (; p < weights.num_panels(); ++p) {
    for (size_t r = 0; r < count; r += kRows) multiply_tile<kRows, 1>(weights, p, tile_rows(r));
  }
}

void MultiplyPanels(const PackedPanels& weights, const float* x, size_t x_stride, size_t num_rows,
                    float* y, size_t y_stride) {
  size_t done = 0;
  const auto rest = [&]() HWY_ATTR {
    return Rows{x + done * x_stride, x_stride, y + done * y_stride, y_stride};
  };
  const auto take = [&](auto rows_constant) HWY_ATTR {
    constexpr size_t kRows = decltype(rows_constant)::value;
    const size_t count = (num_rows - done) / kRows * kRows;
    if (count != 0) multiply_rows<kRows>(weights, rest(), count);
    done += count;
  };
  take(std::integral_constant<size_t, kMostRows>());
  take(std::integral_constant<size_t, 4>());
  take(std::integral_constant<size_t, 2>());
  take(std::integral_constant<size_t, 1>());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(MultiplyPanels);
}

PackedPanels::PackedPanels(std::span<const float> weight, std::span<const float> bias,
                           std::size_t in_features, std::size_t out_features)
    : in_features_(in_features),
      out_features_(out_features),
      panels_(make_aligned<float>(num_panels() * in_features * kPanelWidth)),
      bias_(make_aligned<float>(num_panels() * kPanelWidth)) {
  for (std::size_t n = 0; n < out_features; ++n) {
    float* column = panels_.get() + (n / kPanelWidth) * in_features * kPanelWidth + n % kPanelWidth;
    for (std::size_t k = 0; k < in_features; ++k) {
      column[k * kPanelWidth] = weight[n * in_features + k];
    }
  }
  std::copy(bias.begin(), bias.end(), bias_.get());
}

void multiply_panels(const PackedPanels& weights, MatrixView<const float> x, MatrixView<float> y) {
  assert(x.cols() == weights.in_features() && y.cols() == weights.out_features());
  assert(x.rows() == y.rows());
  HWY_DYNAMIC_DISPATCH(MultiplyPanels)
  (weights, x.data(), x.stride(), x.rows(), y.data(), y.stride());
}

}  // namespace lintel
#endif  // HWY_ONCE
