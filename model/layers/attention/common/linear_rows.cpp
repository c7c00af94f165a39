// SPDX-License-Identifier: Apache-2.0
// Several tokens of one sequence at once, by sum_kernels.h.
//
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/linear_rows.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include <algorithm>
#include <cassert>

#include "model/layers/attention/common/sum_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// One head of some tokens: what they share.
struct Head {
  const LinearAttentionRow* rows;
  size_t count, num_unread, num_kept;
  size_t feature, at;   // the beginnings of the head's features and of its columns of v and out
  const float* scales;  // [count]
};

// Rows of S that stay in registers while all tokens pass by.
constexpr size_t kMostFeatures = hn::MaxLanes(Lanes()) == 16 ? 8 : 4;
// Vectors of their columns. As many of both as registers allow, 32 of them with AVX-512.
constexpr size_t kMostVectors = hn::MaxLanes(Lanes()) == 1 ? 1 : 2;

// kFeatures rows and kVectors vectors of columns of S. Each token does what update_and_read does;
// its sum waits in `out`, unrounded, for the next rows of S.
template <size_t kFeatures, size_t kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void pass_rows(D d, const Head& head, size_t begin, size_t end, size_t c, size_t column,
                          bool is_last, V (&s)[kFeatures][kVectors]) {
  for (size_t r = begin; r < end; ++r) {
    const LinearAttentionRow& row = head.rows[r];
    const float* const k = row.phi_k + head.feature + c;
    const float* const q = row.phi_q + head.feature + c;
    float* const out = row.out + head.at + column;
    V value[kVectors];
    V sum[kVectors];
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      value[j] = hn::LoadU(d, row.v + head.at + column + j * hn::Lanes(d));
      sum[j] = c == 0 ? hn::Zero(d) : hn::LoadU(d, out + j * hn::Lanes(d));
    }
    LINTEL_UNROLL
    for (size_t f = 0; f < kFeatures; ++f) {
      const V phi_k = hn::Set(d, k[f]);
      const V phi_q = hn::Set(d, q[f]);
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        s[f][j] = hn::MulAdd(phi_k, value[j], s[f][j]);
        sum[j] = hn::MulAdd(phi_q, s[f][j], sum[j]);
      }
    }
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      if (is_last) sum[j] = hn::Mul(sum[j], hn::Set(d, head.scales[r]));
      hn::StoreU(sum[j], d, out + j * hn::Lanes(d));
    }
  }
}

// The same of tokens without an output.
template <size_t kFeatures, size_t kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void pass_unread(D d, const Head& head, size_t c, size_t column,
                            V (&s)[kFeatures][kVectors]) {
  for (size_t r = 0; r < head.num_unread; ++r) {
    const LinearAttentionRow& row = head.rows[r];
    const float* const k = row.phi_k + head.feature + c;
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      const V value = hn::LoadU(d, row.v + head.at + column + j * hn::Lanes(d));
      LINTEL_UNROLL
      for (size_t f = 0; f < kFeatures; ++f) {
        s[f][j] = hn::MulAdd(hn::Set(d, k[f]), value, s[f][j]);
      }
    }
  }
}

// S, [n_features, d_head], is read once, and written once unless no token stays.
template <size_t kFeatures, size_t kVectors, class D>
HWY_INLINE void update_and_read_rows(D d, const SumShape& shape, const Head& head, size_t c,
                                     size_t column, float* s) {
  const bool is_last = c + kFeatures == shape.n_features;
  float* const from = s + c * shape.d_head + column;
  hn::Vec<D> sums[kFeatures][kVectors];
  LINTEL_UNROLL
  for (size_t f = 0; f < kFeatures; ++f) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      sums[f][j] = hn::LoadU(d, from + f * shape.d_head + j * hn::Lanes(d));
    }
  }
  if (head.num_kept > 0) {
    pass_unread(d, head, c, column, sums);
    pass_rows(d, head, head.num_unread, head.num_kept, c, column, is_last, sums);
    LINTEL_UNROLL
    for (size_t f = 0; f < kFeatures; ++f) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        hn::StoreU(sums[f][j], d, from + f * shape.d_head + j * hn::Lanes(d));
      }
    }
  }
  pass_rows(d, head, head.num_kept, head.count, c, column, is_last, sums);
}

template <size_t kVectors, class D>
HWY_INLINE void update_and_read_columns(D d, const SumShape& shape, const Head& head, size_t column,
                                        float* s) {
  size_t c = 0;
  for (; c + kMostFeatures <= shape.n_features; c += kMostFeatures) {
    update_and_read_rows<kMostFeatures, kVectors>(d, shape, head, c, column, s);
  }
  for (; c < shape.n_features; ++c) {
    update_and_read_rows<1, kVectors>(d, shape, head, c, column, s);
  }
}

void AttendRows(const SumShape& shape, const LinearAttentionRows& all, float* s, float* z,
                float* work) {
  const Lanes d;
  const LinearAttentionRow* const rows = all.rows;
  const size_t count = all.num_rows;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float scales_of_rows[kMostLinearRows];
  float* const scales = scales_of_rows;
  Head head{.rows = rows,
            .count = count,
            .num_unread = all.num_unread,
            .num_kept = all.num_kept,
            .feature = 0,
            .at = 0,
            .scales = scales};
  for (size_t h = 0; h < shape.n_heads; ++h) {
    head.feature = h * shape.n_features;
    head.at = h * shape.d_head;
    float* sums = z + head.feature;
    for (size_t r = 0; r < all.num_unread; ++r) {
      add_to(rows[r].phi_k + head.feature, sums, shape.n_features);
      scales[r] = 1.0f;
    }
    for (size_t r = all.num_unread; r < count; ++r) {
      if (r == all.num_kept) {
        std::copy_n(sums, shape.n_features, work);
        sums = work;
      }
      add_to(rows[r].phi_k + head.feature, sums, shape.n_features);
      scales[r] = shape.eps + dot(rows[r].phi_q + head.feature, sums, shape.n_features);
    }
    for_each_vector(count, [=](auto v, size_t r) HWY_ATTR {
      hn::StoreU(hn::Div(hn::Set(v, 1.0f), hn::LoadU(v, scales + r)), v, scales + r);
    });
    float* const s_of_head = s + head.feature * shape.d_head;
    size_t m = 0;
    for (; m + kMostVectors * lanes <= shape.d_head; m += kMostVectors * lanes) {
      update_and_read_columns<kMostVectors>(d, shape, head, m, s_of_head);
    }
    for (; m + lanes <= shape.d_head; m += lanes) {
      update_and_read_columns<1>(d, shape, head, m, s_of_head);
    }
    for (; m < shape.d_head; ++m) update_and_read_columns<1>(OneLane(), shape, head, m, s_of_head);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(AttendRows);
}  // namespace

void linear_attention_rows(const SumShape& shape, const LinearAttentionRows& rows, float* s,
                           float* z, float* work) {
  assert(rows.num_unread <= rows.num_kept && rows.num_kept <= rows.num_rows);
  assert(rows.num_rows <= kMostLinearRows);
  HWY_DYNAMIC_DISPATCH(AttendRows)(shape, rows, s, z, work);
}

std::size_t linear_rows_floats(const SumShape& shape) { return shape.n_features; }

}  // namespace lintel
#endif  // HWY_ONCE
