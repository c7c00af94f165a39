// SPDX-License-Identifier: Apache-2.0
// Linformer's sums: rows that are projected to a few slots. SIMD by Highway, chosen at run time.
// The rules are those of model/core/kernels.h. Everything is of one head.
//
// Slots lie as the pages of softmax_kernels.h do, without gaps: keys [D, rank], so that a vector
// holds one feature of several slots, and values [rank, D].
#pragma once

#include <cstddef>

namespace lintel {

struct LinformerSlots {
  std::size_t d_head = 0;   // D
  std::size_t rank = 0;     // slots
  float* keys = nullptr;    // [D, rank]
  float* values = nullptr;  // [rank, D]
};

// Adds one position: keys[c][m] += of_key[m] k[c], values[m] += of_value[m] v.
// of_key, of_value: [rank]; k, v: [D].
void linformer_add(const LinformerSlots& slots, const float* of_key, const float* of_value,
                   const float* k, const float* v);

// The same, and then out = sum over m of w_m values[m], w = softmax(q . keys). The slots are read
// once. q, out: [D]; weights: linformer_weights(rank) floats of working memory.
void linformer_add_and_read(const LinformerSlots& slots, const float* of_key, const float* of_value,
                            const float* k, const float* v, const float* q, float* weights,
                            float* out);
std::size_t linformer_weights(std::size_t rank);

// Adds `count` positions, one after the other. of_keys, of_values: [count, rank]; keys: [D,
// stride], of which the first `count` columns; values: [count, D].
void linformer_add_block(const LinformerSlots& slots, const float* of_keys, const float* of_values,
                         const float* keys, std::size_t stride, const float* values,
                         std::size_t count);

}  // namespace lintel
