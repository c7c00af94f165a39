// SPDX-License-Identifier: Apache-2.0
// The steps after a sum: bias, scale, activation, and where it is stored. Included by kernels once
// for every instruction set, after Highway's own headers: the guard toggles with the set.
#if defined(LINTEL_MODEL_DENSE_OUTPUTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINTEL_MODEL_DENSE_OUTPUTS_INL_H_
#undef LINTEL_MODEL_DENSE_OUTPUTS_INL_H_
#else
#define LINTEL_MODEL_DENSE_OUTPUTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "model/core/bf16-inl.h"
#include "model/core/relu-inl.h"
#include "model/core/simd_targets.h"
#include "model/ops/dense_kernels.h"

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

// f32 and bf16: y = sum + b.
struct FloatOutput {
  using Sum = VF;
  static HWY_INLINE Sum start(const Product&, size_t) { return hn::Zero(F()); }
  static HWY_INLINE VF finish(const Product& product, size_t, size_t column, Sum sum) {
    return hn::Add(sum, hn::Load(F(), product.weights->bias.get() + column));
  }

  // Values that start() and finish() read for a vector of columns, and for a row. (A constructor
  // that is not written lacks the instruction set's attributes: GCC for Arm cannot inline vectors'
  // there.)
  struct Columns {
    HWY_INLINE Columns() {}
    HWY_INLINE void load(const Product& product, size_t column) {
      bias = hn::Load(F(), product.weights->bias.get() + column);
    }
    HWY_INLINE VF finish(VF zero, VU sum) const {
      return hn::Add(hn::Add(zero, hn::BitCast(F(), sum)), bias);
    }
    VF bias;
  };
  static HWY_INLINE VF of_row(const Product&, size_t) { return hn::Zero(F()); }
};

// int8: inputs are off by x_zero, so the sums are off by x_zero times the sum of the weights.
struct Int8Output {
  using Sum = VI;
  static HWY_INLINE Sum start(const Product& product, size_t column) {
    const VI sums = hn::Load(I(), product.weights->sums.get() + column);
    return hn::Mul(sums, hn::Set(I(), -product.x_zero));
  }
  static HWY_INLINE VF finish(const Product& product, size_t row, size_t column, Sum sum) {
    const VF unit = hn::Mul(hn::Set(F(), product.x_scales[row]),
                            hn::Load(F(), product.weights->scales.get() + column));
    return hn::MulAdd(hn::ConvertTo(F(), sum), unit,
                      hn::Load(F(), product.weights->bias.get() + column));
  }

  struct Columns {
    HWY_INLINE Columns() {}
    HWY_INLINE void load(const Product& product, size_t column) {
      begin = start(product, column);
      scale = hn::Load(F(), product.weights->scales.get() + column);
      bias = hn::Load(F(), product.weights->bias.get() + column);
    }
    HWY_INLINE VF finish(VF row_scale, VU sum) const {
      const VF exact = hn::ConvertTo(F(), hn::Add(begin, hn::BitCast(I(), sum)));
      return hn::MulAdd(exact, hn::Mul(row_scale, scale), bias);
    }
    VI begin;
    VF scale, bias;
  };
  static HWY_INLINE VF of_row(const Product& product, size_t row) {
    return hn::Set(F(), product.x_scales[row]);
  }
};

HWY_INLINE void store(const Product& product, size_t row, size_t column, VF value) {
  float* y = product.y + row * product.y_stride + column;
  if (product.relu) value = relu_of(value);
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

template <class Output>
HWY_INLINE void finish_lanes(const Product& product, size_t row, size_t column,
                             const uint32_t* sums) {
  const auto start = Output::start(product, column);
  const auto sum = hn::Add(start, hn::BitCast(hn::DFromV<decltype(start)>(), hn::LoadU(U(), sums)));
  store(product, row, column, Output::finish(product, row, column, sum));
}

// Columns first .. first + count - 1 of a row, of sums that have everything but what start() and
// finish() add. REQUIRES: `first` is a multiple of 16; a count that is none ends the row.
template <class Output>
HWY_INLINE HWY_MAYBE_UNUSED void finish_row(const Product& product, size_t row, size_t first,
                                            size_t count, const uint32_t* sums) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) finish_lanes<Output>(product, row, first + i, sums + i);
  if (i == count) return;
  HWY_ALIGN uint32_t last[kLanes] = {};
  std::copy(sums + i, sums + count, last);
  finish_lanes<Output>(product, row, first + i, last);
}

// The results that finish_rows computes from sums: y, a term added to y, max(y, 0), or that as bf16
// (Product::y_bf16).
enum class Outputs { kPlain, kAdd, kRelu, kReluAsBf16 };

HWY_INLINE HWY_MAYBE_UNUSED Outputs outputs_of(const Product& product) {
  if (product.add) return Outputs::kAdd;
  if (!product.relu) return Outputs::kPlain;
  return product.y_bf16 != nullptr ? Outputs::kReluAsBf16 : Outputs::kRelu;
}

// kVectors whole vectors of columns of many rows: what belongs to the columns is loaded once. The
// bits are those of finish_row.
template <class Output, size_t kVectors, Outputs kOutputs>
HWY_INLINE void finish_block(const Product& product, size_t row, size_t count, size_t column,
                             const uint32_t* sums, size_t width) {
  typename Output::Columns columns[kVectors];
  LINTEL_UNROLL
  for (size_t v = 0; v < kVectors; ++v) columns[v].load(product, column + v * kLanes);
  for (size_t r = row; r < row + count; ++r, sums += width) {
    const auto of_row = Output::of_row(product, r);
    float* const y = product.y + r * product.y_stride + column;
    LINTEL_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      VF value = columns[v].finish(of_row, hn::LoadU(U(), sums + v * kLanes));
      if (kOutputs == Outputs::kAdd) {
        value = hn::Add(hn::LoadU(F(), y + v * kLanes), value);
      } else if (kOutputs != Outputs::kPlain) {
        value = relu_of(value);
      }
      if (kOutputs == Outputs::kReluAsBf16) {
        store_bf16(value, product.y_bf16 + r * product.y_bf16_stride + column + v * kLanes);
      } else {
        hn::StoreU(value, F(), y + v * kLanes);
      }
    }
  }
}

// The last columns of a row, of which there are fewer than a block has.
template <class Output, Outputs kOutputs>
HWY_NOINLINE void finish_last_columns(const Product& product, size_t row, size_t first,
                                      size_t columns, const uint32_t* sums) {
  if (kOutputs != Outputs::kReluAsBf16) {
    return finish_row<Output>(product, row, first, columns, sums);
  }
  HWY_ALIGN float floats[kGroupWidth] = {};
  HWY_ALIGN uint16_t halves[kGroupWidth];
  Product to_floats = product;
  to_floats.y = floats - first;
  to_floats.y_stride = 0;
  finish_row<Output>(to_floats, row, first, columns, sums);
  for (size_t i = 0; i < kGroupWidth; i += kLanes) {
    store_bf16(hn::Load(F(), floats + i), halves + i);
  }
  std::copy_n(halves, columns, product.y_bf16 + row * product.y_bf16_stride + first);
}

// Rows row .. row + count - 1 of columns first .. first + columns - 1, of sums kWidth apart.
template <class Output, size_t kWidth, Outputs kOutputs>
HWY_INLINE HWY_MAYBE_UNUSED void finish_rows(const Product& product, size_t row, size_t count,
                                             size_t first, size_t columns, const uint32_t* sums) {
  if (columns == kWidth) {
    return finish_block<Output, kWidth / kLanes, kOutputs>(product, row, count, first, sums,
                                                           kWidth);
  }
  for (size_t r = 0; r < count; ++r) {
    finish_last_columns<Output, kOutputs>(product, row + r, first, columns, sums + r * kWidth);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
