// Several tokens of one sequence at once, by sum_kernels.h.
//
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/attention/parts/linear_rows.cpp"
#include "model/simd/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/attention/parts/weighted_rows-inl.h"
// clang-format on

#include <algorithm>
#include <cassert>

#include "model/attention/parts/sum_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// kRows tokens and kVectors vectors of columns from `column` on: a row of S is read once for all of
// them, and written once unless `to` is null. Each token does what update_and_read does.
template <size_t kRows, size_t kVectors, class D>
HWY_INLINE void update_and_read_rows(D d, size_t column, const SumShape& shape, size_t feature,
                                     size_t at, const LinearAttentionRow* rows, const float* scales,
                                     const float* from, float* to) {
  using V = hn::Vec<D>;
  V value[kRows][kVectors];
  V sum[kRows][kVectors];
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      value[r][j] = hn::LoadU(d, rows[r].v + at + column + j * hn::Lanes(d));
      sum[r][j] = hn::Zero(d);
    }
  }
  const float* q[kRows];
  const float* k[kRows];
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    q[r] = rows[r].phi_q + feature;
    k[r] = rows[r].phi_k + feature;
  }
  for (size_t c = 0; c < shape.n_features; ++c) {
    const size_t of_s = c * shape.d_head + column;
    V updated[kVectors];
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      updated[j] = hn::LoadU(d, from + of_s + j * hn::Lanes(d));
    }
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const V phi_k = hn::Set(d, k[r][c]);
      const V phi_q = hn::Set(d, q[r][c]);
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        updated[j] = hn::MulAdd(phi_k, value[r][j], updated[j]);
        sum[r][j] = hn::MulAdd(phi_q, updated[j], sum[r][j]);
      }
    }
    if (to == nullptr) continue;
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      hn::StoreU(updated[j], d, to + of_s + j * hn::Lanes(d));
    }
  }
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      hn::StoreU(hn::Mul(sum[r][j], hn::Set(d, scales[r])), d,
                 rows[r].out + at + column + j * hn::Lanes(d));
    }
  }
}

template <size_t kRows>
HWY_INLINE void update_and_read_all_rows(const SumShape& shape, size_t feature, size_t at,
                                         const LinearAttentionRow* rows, const float* scales,
                                         const float* from, float* to) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  // As many sums as registers allow beside the values: 32 of them with AVX-512.
  constexpr size_t kVectors = hn::MaxLanes(Lanes()) == 16 ? 2 : 1;
  size_t m = 0;
  for (; m + kVectors * lanes <= shape.d_head; m += kVectors * lanes) {
    update_and_read_rows<kRows, kVectors>(d, m, shape, feature, at, rows, scales, from, to);
  }
  for (; m + lanes <= shape.d_head; m += lanes) {
    update_and_read_rows<kRows, 1>(d, m, shape, feature, at, rows, scales, from, to);
  }
  for (; m < shape.d_head; ++m) {
    update_and_read_rows<kRows, 1>(OneLane(), m, shape, feature, at, rows, scales, from, to);
  }
}

constexpr size_t kRowsAtOnce = 4;

// One head of up to kRowsAtOnce tokens, whose Z is added up and read first.
HWY_INLINE void linear_rows_of_head(const SumShape& shape, size_t h, const LinearAttentionRow* rows,
                                    size_t count, float* z, const float* from, float* to) {
  const size_t feature = h * shape.n_features;
  const size_t at = h * shape.d_head;
  float scales[kRowsAtOnce];
  for (size_t r = 0; r < count; ++r) {
    add_to(rows[r].phi_k + feature, z, shape.n_features);
    scales[r] = 1.0f / (shape.eps + dot(rows[r].phi_q + feature, z, shape.n_features));
  }
  switch (count) {
    case 1:
      return update_and_read_all_rows<1>(shape, feature, at, rows, scales, from, to);
    case 2:
      return update_and_read_all_rows<2>(shape, feature, at, rows, scales, from, to);
    case 3:
      return update_and_read_all_rows<3>(shape, feature, at, rows, scales, from, to);
    default:
      return update_and_read_all_rows<kRowsAtOnce>(shape, feature, at, rows, scales, from, to);
  }
}

// `work` holds the S and the Z of one head while tokens are fed that leave nothing.
void LinearAttentionRows(const SumShape& shape, const LinearAttentionRow* rows, size_t count,
                         size_t num_kept, float* s, float* z, float* work) {
  const size_t block = shape.n_features * shape.d_head;
  float* const z_of_work = work + block;
  for (size_t h = 0; h < shape.n_heads; ++h) {
    float* const s_of_head = s + h * block;
    float* const z_of_head = z + h * shape.n_features;
    size_t r = 0;
    for (size_t fed = 0; r < num_kept; r += fed) {
      fed = std::min(kRowsAtOnce, num_kept - r);
      linear_rows_of_head(shape, h, rows + r, fed, z_of_head, s_of_head, s_of_head);
    }
    if (r == count) continue;
    std::copy_n(z_of_head, shape.n_features, z_of_work);
    const float* from = s_of_head;
    for (size_t fed = 0; r < count; r += fed, from = work) {
      fed = std::min(kRowsAtOnce, count - r);
      float* const to = r + fed < count ? work : nullptr;
      linear_rows_of_head(shape, h, rows + r, fed, z_of_work, from, to);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(LinearAttentionRows);
}  // namespace

void linear_attention_rows(const SumShape& shape, std::span<const LinearAttentionRow> rows,
                           std::size_t num_kept, float* s, float* z, float* work) {
  assert(num_kept <= rows.size());
  HWY_DYNAMIC_DISPATCH(LinearAttentionRows)(shape, rows.data(), rows.size(), num_kept, s, z, work);
}

std::size_t linear_rows_floats(const SumShape& shape) {
  return shape.n_features * (shape.d_head + 1);
}

}  // namespace lintel
#endif  // HWY_ONCE
