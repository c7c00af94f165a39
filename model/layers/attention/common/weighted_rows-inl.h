// SPDX-License-Identifier: Apache-2.0
// Weighted sums of rows, and products with columns: what softmax over positions is made of; and
// what rows of attention by sums share with it. Included by kernels once for every instruction set,
// after vector_loops-inl.h: the guard toggles with the set.
#if defined(LINTEL_ATTENTION_WEIGHTED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINTEL_ATTENTION_WEIGHTED_ROWS_INL_H_
#undef LINTEL_ATTENTION_WEIGHTED_ROWS_INL_H_
#else
#define LINTEL_ATTENTION_WEIGHTED_ROWS_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "model/core/vector_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// Columns come in multiples of this: a whole number of vectors of every set.
constexpr size_t kColumnMultiple = 16;

// exp(x) for x <= 0 of any size: 0 from where it is no number of f32 any more. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE HWY_MAYBE_UNUSED V exp_not_above_one(D d, V x) {
  const V least = hn::Set(d, -200.0f);
  return hn::Exp(d, hn::IfThenElse(hn::Lt(x, least), least, x));
}

// out = factor * out + sum over i < n of p[i] * row(i), for kVectors vectors of columns. Row i goes
// to one of several chains of additions, by i alone, so that they do not wait for each other.
template <size_t kVectors, class D, class RowOf>
HWY_INLINE HWY_MAYBE_UNUSED void add_weighted_columns(D d, const float* p, size_t n, RowOf&& row,
                                                      float factor, float* out) {
  constexpr size_t kChains = 8 / kVectors;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kChains][kVectors];
  LINTEL_UNROLL
  for (size_t c = 0; c < kChains; ++c) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) sum[c][j] = hn::Zero(d);
  }
  size_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    LINTEL_UNROLL
    for (size_t c = 0; c < kChains; ++c) {
      const auto weight = hn::Set(d, p[i + c]);
      const float* const values = row(i + c);
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        sum[c][j] = hn::MulAdd(weight, hn::LoadU(d, values + j * lanes), sum[c][j]);
      }
    }
  }
  LINTEL_UNROLL
  for (size_t c = 0; c < kChains; ++c) {
    if (i + c >= n) continue;
    const auto weight = hn::Set(d, p[i + c]);
    const float* const values = row(i + c);
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      sum[c][j] = hn::MulAdd(weight, hn::LoadU(d, values + j * lanes), sum[c][j]);
    }
  }
  LINTEL_UNROLL
  for (size_t j = 0; j < kVectors; ++j) {
    auto total = sum[0][j];
    LINTEL_UNROLL
    for (size_t c = 1; c < kChains; ++c) total = hn::Add(total, sum[c][j]);
    const auto before = hn::LoadU(d, out + j * lanes);
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), before, total), d, out + j * lanes);
  }
}

// The same for `width` columns.
template <class RowOf>
HWY_INLINE HWY_MAYBE_UNUSED void add_weighted_rows(const float* p, size_t n, size_t width,
                                                   RowOf&& row, float factor, float* out) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t m = 0;
  const auto from = [&row, &m](size_t i) { return row(i) + m; };
  for (; m + 4 * lanes <= width; m += 4 * lanes) {
    add_weighted_columns<4>(d, p, n, from, factor, out + m);
  }
  for (; m + 2 * lanes <= width; m += 2 * lanes) {
    add_weighted_columns<2>(d, p, n, from, factor, out + m);
  }
  for (; m + lanes <= width; m += lanes) {
    add_weighted_columns<1>(d, p, n, from, factor, out + m);
  }
  for (; m < width; ++m) add_weighted_columns<1>(OneLane(), p, n, from, factor, out + m);
}

// scores[i] = sum over c of q[c] columns[c][i], for kVectors vectors of i.
template <size_t kVectors, class D>
HWY_INLINE HWY_MAYBE_UNUSED void multiply_columns(D d, const float* q, size_t d_head,
                                                  const float* columns, size_t stride,
                                                  float* scores) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kVectors];
  LINTEL_UNROLL
  for (size_t j = 0; j < kVectors; ++j) sum[j] = hn::Zero(d);
  for (size_t c = 0; c < d_head; ++c) {
    const auto feature = hn::Set(d, q[c]);
    const float* const row = columns + c * stride;
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      sum[j] = hn::MulAdd(feature, hn::LoadU(d, row + j * lanes), sum[j]);
    }
  }
  LINTEL_UNROLL
  for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sum[j], d, scores + j * lanes);
}

// The same for the whole vectors that hold n columns. Returns how many columns these are.
HWY_INLINE HWY_MAYBE_UNUSED size_t multiply_all_columns(const float* q, size_t d_head,
                                                        const float* columns, size_t stride,
                                                        size_t n, float* scores) {
  const hn::CappedTag<float, kColumnMultiple> d;
  const size_t lanes = hn::Lanes(d);
  const size_t end = (n + lanes - 1) / lanes * lanes;
  size_t i = 0;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    multiply_columns<4>(d, q, d_head, columns + i, stride, scores + i);
  }
  for (; i < end; i += lanes) {
    multiply_columns<1>(d, q, d_head, columns + i, stride, scores + i);
  }
  return end;
}

// p[i] = exp(p[i] - max) over n scores, a whole number of vectors; returns the sum.
HWY_INLINE HWY_MAYBE_UNUSED float exponentials(float* p, size_t n, float max) {
  return sum_of(n, [=](auto tag, size_t i) HWY_ATTR {
    const auto e = exp_not_above_one(tag, hn::Sub(hn::LoadU(tag, p + i), hn::Set(tag, max)));
    hn::StoreU(e, tag, p + i);
    return e;
  });
}

HWY_INLINE HWY_MAYBE_UNUSED float largest_of(const float* x, size_t n) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  float largest = std::numeric_limits<float>::lowest();
  if (n >= lanes) {
    auto vector = hn::LoadU(d, x);
    for (i = lanes; i + lanes <= n; i += lanes) vector = hn::Max(vector, hn::LoadU(d, x + i));
    largest = hn::GetLane(hn::MaxOfLanes(d, vector));
  }
  for (; i < n; ++i) largest = std::max(largest, x[i]);
  return largest;
}

// The largest of n floats that are a whole number of vectors.
HWY_INLINE HWY_MAYBE_UNUSED float largest_of_vectors(const float* x, size_t n) {
  const hn::CappedTag<float, kColumnMultiple> d;
  auto largest = hn::Set(d, std::numeric_limits<float>::lowest());
  for (size_t i = 0; i < n; i += hn::Lanes(d)) largest = hn::Max(largest, hn::LoadU(d, x + i));
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// A block of an online softmax: n scores in p, of `computed` >= n floats that are a whole number of
// vectors, and as many rows of values. `max` and `sum` are what the blocks before have left, `out`
// [width] the sum of exp(score - max) * row.
template <class RowOf>
HWY_INLINE HWY_MAYBE_UNUSED void add_softmax_block(float* p, size_t n, size_t computed,
                                                   size_t width, RowOf&& row, float* max,
                                                   float* sum, float* out) {
  // Padding beyond the scores: its weights become exactly 0.
  for (size_t i = n; i < computed; ++i) p[i] = std::numeric_limits<float>::lowest();
  const float largest = largest_of_vectors(p, computed);
  float factor = 1.0f;
  if (largest > *max) {
    const Lanes d;
    factor = hn::GetLane(exp_not_above_one(d, hn::Set(d, *max - largest)));
    *max = largest;
  }
  *sum = *sum * factor + exponentials(p, computed, *max);
  add_weighted_rows(p, n, width, row, factor, out);
}

HWY_INLINE HWY_MAYBE_UNUSED float dot(const float* a, const float* b, size_t n) {
  return sum_of(n, [=](auto tag, size_t i)
                       HWY_ATTR { return hn::Mul(hn::LoadU(tag, a + i), hn::LoadU(tag, b + i)); });
}

// x += delta
HWY_INLINE HWY_MAYBE_UNUSED void add_to(const float* delta, float* x, size_t n) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, delta + i)), d, x + i);
  });
}

HWY_INLINE HWY_MAYBE_UNUSED void scale_row(const float* x, size_t n, float factor, float* y) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, y + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#endif  // toggle
