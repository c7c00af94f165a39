// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/softmax_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/softmax_kernels.h"

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// One head of one row over n positions of a page.
HWY_INLINE void add_block(const float* q, size_t d_head, const float* keys, const float* values,
                          size_t n, float* max, float* sum, float* out) {
  HWY_ALIGN float p[kSoftmaxPage];
  const size_t computed = multiply_all_columns(q, d_head, keys, kSoftmaxPage, n, p);
  add_softmax_block(
      p, n, computed, d_head, [values, d_head](size_t i) { return values + i * d_head; }, max, sum,
      out);
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

void Scale(const float* x, size_t n, float factor, float* y) { scale_row(x, n, factor, y); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(AddPage);
HWY_EXPORT(Scale);
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

void softmax_read(const SoftmaxShape& shape, std::size_t slot, const float* page, float* k,
                  float* v) {
  const std::size_t d_head = shape.d_head;
  for (std::size_t h = 0; h < shape.n_heads; ++h) {
    const float* const keys = page + h * 2 * kSoftmaxPage * d_head;
    const float* const values = keys + kSoftmaxPage * d_head;
    for (std::size_t c = 0; c < d_head; ++c) k[h * d_head + c] = keys[c * kSoftmaxPage + slot];
    std::copy_n(values + slot * d_head, d_head, v + h * d_head);
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

}  // namespace lintel
#endif  // HWY_ONCE
