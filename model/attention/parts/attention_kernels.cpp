// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/attention/parts/attention_kernels.cpp"
#include "model/simd/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "model/simd/vector_loops-inl.h"
// clang-format on

#include "model/attention/parts/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// exp(x) for x <= 0 of any size: 0 from where it is no number of f32 any more. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_not_above_one(D d, V x) {
  const V least = hn::Set(d, -200.0f);
  return hn::Exp(d, hn::IfThenElse(hn::Lt(x, least), least, x));
}

// out = factor * out + sum over i < n of p[i] * row(i), for kVectors vectors of columns. Row i goes
// to one of several chains of additions, by i alone, so that they do not wait for each other.
template <size_t kVectors, class D, class RowOf>
HWY_INLINE void add_weighted_columns(D d, const float* p, size_t n, RowOf&& row, float factor,
                                     float* out) {
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
HWY_INLINE void add_weighted_rows(const float* p, size_t n, size_t width, RowOf&& row, float factor,
                                  float* out) {
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
HWY_INLINE void multiply_columns(D d, const float* q, size_t d_head, const float* columns,
                                 size_t stride, float* scores) {
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
HWY_INLINE size_t multiply_all_columns(const float* q, size_t d_head, const float* columns,
                                       size_t stride, size_t n, float* scores) {
  const hn::CappedTag<float, kPlaneMultiple> d;
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
HWY_INLINE float exponentials(float* p, size_t n, float max) {
  return sum_of(n, [=](auto tag, size_t i) HWY_ATTR {
    const auto e = exp_not_above_one(tag, hn::Sub(hn::LoadU(tag, p + i), hn::Set(tag, max)));
    hn::StoreU(e, tag, p + i);
    return e;
  });
}

HWY_INLINE float largest_of(const float* x, size_t n) {
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

// One head of one row over n positions of a page.
HWY_INLINE void add_block(const float* q, size_t d_head, const float* keys, const float* values,
                          size_t n, float* max, float* sum, float* out) {
  HWY_ALIGN float p[kSoftmaxPage];
  const size_t computed = multiply_all_columns(q, d_head, keys, kSoftmaxPage, n, p);
  // Positions that are not seen: their weight becomes exactly 0.
  for (size_t i = n; i < computed; ++i) p[i] = std::numeric_limits<float>::lowest();
  const float largest = largest_of(p, computed);
  float factor = 1.0f;
  if (largest > *max) {
    const Lanes d;
    factor = hn::GetLane(exp_not_above_one(d, hn::Set(d, *max - largest)));
    *max = largest;
  }
  *sum = *sum * factor + exponentials(p, computed, *max);
  add_weighted_rows(
      p, n, d_head, [values, d_head](size_t i) { return values + i * d_head; }, factor, out);
}

void AddPage(const SoftmaxShape& shape, const SoftmaxRows& rows, const float* page,
             size_t visible) {
  const size_t d_head = shape.d_head;
  for (size_t h = 0; h < shape.n_heads; ++h) {
    const float* const keys = page + h * 2 * kSoftmaxPage * d_head;
    const float* const values = keys + kSoftmaxPage * d_head;
    for (size_t r = 0; r < rows.count; ++r) {
      const size_t at = r * shape.n_heads + h;
      add_block(rows.q + at * d_head, d_head, keys, values, std::min(visible + r, kSoftmaxPage),
                rows.max + at, rows.sum + at, rows.out + r * rows.out_stride + h * d_head);
    }
  }
}

void Scale(const float* x, size_t n, float factor, float* y) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, y + i);
  });
}

void Normalize(const float* x, size_t n, float* k) {
  const float square = sum_of(n, [x](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    return hn::Mul(value, value);
  });
  Scale(x, n, square == 0.0f ? 0.0f : 1.0f / std::sqrt(square), k);
}

void Project(const float* k, size_t d_head, const float* planes, size_t width, float* projected) {
  multiply_all_columns(k, d_head, planes, width, width, projected);
}

// The first i with x[i] == wanted, or `end`.
template <class D>
HWY_INLINE size_t find_first(D d, const float* x, size_t end, float wanted) {
  for (size_t i = 0; i < end; i += hn::Lanes(d)) {
    const auto found = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), hn::Set(d, wanted)));
    if (found >= 0) return i + static_cast<size_t>(found);
  }
  return end;
}

size_t SignedArgmax(const float* x, size_t n) {
  const hn::CappedTag<float, kPlaneMultiple> d;
  const size_t lanes = hn::Lanes(d);
  const size_t end = (n + lanes - 1) / lanes * lanes;
  auto magnitude = hn::Zero(d);
  for (size_t i = 0; i < end; i += lanes) {
    magnitude = hn::Max(magnitude, hn::Abs(hn::LoadU(d, x + i)));
  }
  // The zeros after x are found only when all is zero, and then x[0] is first.
  const float largest = hn::GetLane(hn::MaxOfLanes(d, magnitude));
  const size_t positive = find_first(d, x, end, largest);
  if (positive < end) return positive;
  const size_t negative = find_first(d, x, end, -largest);
  return negative < end ? n + negative : 0;
}

float AttendMembers(const float* q, size_t d_head, const float* const* members, size_t n,
                    float first_bias, float* weights, float* out) {
  for (size_t i = 0; i < n; ++i) {
    const float* const k = members[i];
    weights[i] = sum_of(d_head, [q, k](auto d, size_t c) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, q + c), hn::LoadU(d, k + c));
    });
  }
  weights[0] += first_bias;
  const float max = largest_of(weights, n);
  const float sum = exponentials(weights, n, max);
  for (size_t c = 0; c < d_head; ++c) out[c] = 0.0f;
  add_weighted_rows(
      weights, n, d_head, [members, d_head](size_t i) { return members[i] + d_head; }, 0.0f, out);
  Scale(out, d_head, 1.0f / sum, out);
  return max + std::log(sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(AddPage);
HWY_EXPORT(Scale);
HWY_EXPORT(Normalize);
HWY_EXPORT(Project);
HWY_EXPORT(SignedArgmax);
HWY_EXPORT(AttendMembers);
}  // namespace

std::size_t softmax_page_floats(const SoftmaxShape& shape) {
  return shape.n_heads * shape.d_head * 2 * kSoftmaxPage;
}

void softmax_append(const SoftmaxShape& shape, const float* k, const float* v, std::size_t slot,
                    float* page) {
  const std::size_t d_head = shape.d_head;
  for (std::size_t h = 0; h < shape.n_heads; ++h) {
    float* const keys = page + h * 2 * kSoftmaxPage * d_head;
    float* const values = keys + kSoftmaxPage * d_head;
    for (std::size_t c = 0; c < d_head; ++c) keys[c * kSoftmaxPage + slot] = k[h * d_head + c];
    std::copy_n(v + h * d_head, d_head, values + slot * d_head);
  }
}

void softmax_erase(const SoftmaxShape& shape, std::size_t slot, float* page) {
  const std::size_t d_head = shape.d_head;
  for (std::size_t h = 0; h < shape.n_heads; ++h) {
    float* const keys = page + h * 2 * kSoftmaxPage * d_head;
    for (std::size_t c = 0; c < d_head; ++c) keys[c * kSoftmaxPage + slot] = 0.0f;
    std::fill_n(keys + kSoftmaxPage * d_head + slot * d_head, d_head, 0.0f);
  }
}

float softmax_least() { return std::numeric_limits<float>::lowest(); }

void softmax_add_page(const SoftmaxShape& shape, const SoftmaxRows& rows, const float* page,
                      std::size_t visible) {
  HWY_DYNAMIC_DISPATCH(AddPage)(shape, rows, page, visible);
}

void softmax_finish(const SoftmaxShape& shape, const SoftmaxRows& rows) {
  for (std::size_t r = 0; r < rows.count; ++r) {
    for (std::size_t h = 0; h < shape.n_heads; ++h) {
      float* const out = rows.out + r * rows.out_stride + h * shape.d_head;
      HWY_DYNAMIC_DISPATCH(Scale)
      (out, shape.d_head, 1.0f / rows.sum[r * shape.n_heads + h], out);
    }
  }
}

void normalize(std::span<const float> x, float* k) {
  HWY_DYNAMIC_DISPATCH(Normalize)(x.data(), x.size(), k);
}

void project(std::span<const float> k, const float* planes, std::size_t width, float* projected) {
  HWY_DYNAMIC_DISPATCH(Project)(k.data(), k.size(), planes, width, projected);
}

std::size_t signed_argmax(const float* x, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(SignedArgmax)(x, n);
}

float attend_members(std::span<const float> q, std::span<const float* const> members,
                     float first_bias, float* weights, float* out) {
  return HWY_DYNAMIC_DISPATCH(AttendMembers)(q.data(), q.size(), members.data(), members.size(),
                                             first_bias, weights, out);
}

}  // namespace lintel
#endif  // HWY_ONCE
