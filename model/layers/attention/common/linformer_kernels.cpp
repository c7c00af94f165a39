// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/linformer_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/linformer_kernels.h"

#include <algorithm>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// Calls tile(d, m, kVectors as a constant) for all of n columns: four vectors at a time, then one,
// then lane by lane. Every column sees the same operations.
template <typename Tile>
HWY_INLINE void for_each_tile(size_t n, Tile&& tile) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t m = 0;
  for (; m + 4 * lanes <= n; m += 4 * lanes) {
    tile(d, m, std::integral_constant<size_t, 4>());
  }
  for (; m + lanes <= n; m += lanes) tile(d, m, std::integral_constant<size_t, 1>());
  for (; m < n; ++m) tile(OneLane(), m, std::integral_constant<size_t, 1>());
}

// keys[c][m] += of_key[m] k[c]; with kReads also scores[m] = sum over c of q[c] keys[c][m].
template <bool kReads>
HWY_INLINE void add_to_keys(const LinformerSlots& slots, const float* of_key, const float* k,
                            const float* q, float* scores) {
  for_each_tile(slots.rank, [&](auto d, size_t m, auto vectors) HWY_ATTR {
    constexpr size_t kVectors = decltype(vectors)::value;
    using V = hn::Vec<decltype(d)>;
    const size_t lanes = hn::Lanes(d);
    V weight[kVectors];
    V score[kVectors];
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      weight[j] = hn::LoadU(d, of_key + m + j * lanes);
      score[j] = hn::Zero(d);
    }
    float* row = slots.keys + m;
    for (size_t c = 0; c < slots.d_head; ++c, row += slots.rank) {
      const V feature = hn::Set(d, k[c]);
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        const V sum = hn::MulAdd(weight[j], feature, hn::LoadU(d, row + j * lanes));
        hn::StoreU(sum, d, row + j * lanes);
        if constexpr (kReads) score[j] = hn::MulAdd(hn::Set(d, q[c]), sum, score[j]);
      }
    }
    if constexpr (kReads) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) hn::StoreU(score[j], d, scores + m + j * lanes);
    }
  });
}

// values[m] += of_value[m] v; with kReads also out = sum over m of weights[m] values[m], in four
// chains of additions, by m alone, that do not wait for each other.
template <bool kReads>
HWY_INLINE void add_to_values(const LinformerSlots& slots, const float* of_value, const float* v,
                              const float* weights, float* out) {
  const size_t d_head = slots.d_head;
  const auto columns = [&](auto d, size_t at) HWY_ATTR {
    constexpr size_t kChains = 4;
    using V = hn::Vec<decltype(d)>;
    const V value = hn::LoadU(d, v + at);
    V sum[kChains];
    LINTEL_UNROLL
    for (size_t i = 0; i < kChains; ++i) sum[i] = hn::Zero(d);
    float* row = slots.values + at;
    const auto add = [&](size_t m, V& chain) HWY_ATTR {
      const V updated = hn::MulAdd(hn::Set(d, of_value[m]), value, hn::LoadU(d, row));
      hn::StoreU(updated, d, row);
      if constexpr (kReads) chain = hn::MulAdd(hn::Set(d, weights[m]), updated, chain);
      row += d_head;
    };
    size_t m = 0;
    for (; m + kChains <= slots.rank; m += kChains) {
      LINTEL_UNROLL
      for (size_t i = 0; i < kChains; ++i) add(m + i, sum[i]);
    }
    for (; m < slots.rank; ++m) add(m, sum[0]);
    if constexpr (kReads) {
      hn::StoreU(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])), d, out + at);
    }
  };
  for_each_vector(d_head, columns);
}

void AddPosition(const LinformerSlots& slots, const float* of_key, const float* of_value,
                 const float* k, const float* v) {
  add_to_keys<false>(slots, of_key, k, nullptr, nullptr);
  add_to_values<false>(slots, of_value, v, nullptr, nullptr);
}

void AddAndRead(const LinformerSlots& slots, const float* of_key, const float* of_value,
                const float* k, const float* v, const float* q, float* weights, float* out) {
  add_to_keys<true>(slots, of_key, k, q, weights);
  const size_t whole = linformer_weights(slots.rank);
  std::fill(weights + slots.rank, weights + whole, std::numeric_limits<float>::lowest());
  const float sum = exponentials(weights, whole, largest_of_vectors(weights, whole));
  add_to_values<true>(slots, of_value, v, weights, out);
  scale_row(out, slots.d_head, 1.0f / sum, out);
}

void AddBlock(const LinformerSlots& slots, const float* of_keys, const float* of_values,
              const float* keys, size_t stride, const float* values, size_t count) {
  const size_t d_head = slots.d_head;
  const size_t rank = slots.rank;
  for (size_t c = 0; c < d_head; ++c) {
    for_each_tile(rank, [&](auto d, size_t m, auto vectors) HWY_ATTR {
      constexpr size_t kVectors = decltype(vectors)::value;
      const size_t lanes = hn::Lanes(d);
      float* const row = slots.keys + c * rank + m;
      hn::Vec<decltype(d)> sum[kVectors];
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) sum[j] = hn::LoadU(d, row + j * lanes);
      for (size_t u = 0; u < count; ++u) {
        const auto feature = hn::Set(d, keys[c * stride + u]);
        LINTEL_UNROLL
        for (size_t j = 0; j < kVectors; ++j) {
          sum[j] = hn::MulAdd(hn::LoadU(d, of_keys + u * rank + m + j * lanes), feature, sum[j]);
        }
      }
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sum[j], d, row + j * lanes);
    });
  }
  for (size_t m = 0; m < rank; ++m) {
    float* const row = slots.values + m * d_head;
    for_each_vector(d_head, [&](auto d, size_t at) HWY_ATTR {
      auto sum = hn::LoadU(d, row + at);
      for (size_t u = 0; u < count; ++u) {
        const auto weight = hn::Set(d, of_values[u * rank + m]);
        sum = hn::MulAdd(weight, hn::LoadU(d, values + u * d_head + at), sum);
      }
      hn::StoreU(sum, d, row + at);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(AddPosition);
HWY_EXPORT(AddAndRead);
HWY_EXPORT(AddBlock);
}  // namespace

void linformer_add(const LinformerSlots& slots, const float* of_key, const float* of_value,
                   const float* k, const float* v) {
  HWY_DYNAMIC_DISPATCH(AddPosition)(slots, of_key, of_value, k, v);
}

void linformer_add_and_read(const LinformerSlots& slots, const float* of_key, const float* of_value,
                            const float* k, const float* v, const float* q, float* weights,
                            float* out) {
  HWY_DYNAMIC_DISPATCH(AddAndRead)(slots, of_key, of_value, k, v, q, weights, out);
}

std::size_t linformer_weights(std::size_t rank) {
  constexpr std::size_t kWhole = 16;  // lanes of the longest vector
  return (rank + kWhole - 1) / kWhole * kWhole;
}

void linformer_add_block(const LinformerSlots& slots, const float* of_keys, const float* of_values,
                         const float* keys, std::size_t stride, const float* values,
                         std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddBlock)
  (slots, of_keys, of_values, keys, stride, values, count);
}

}  // namespace lintel
#endif  // HWY_ONCE
