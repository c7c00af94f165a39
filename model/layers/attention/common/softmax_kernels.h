// SPDX-License-Identifier: Apache-2.0
// Softmax over pages of positions, as an online softmax (Milakov and Gimelshein 2018): a page at a
// time, with the largest score so far and what was summed relative to it. SIMD by Highway, chosen
// at run time.
//
// As in model/core/kernels.h: pure functions whose bits depend on the values read and the
// instruction set, not on what else shares the call. Nothing allocates. Pointers need no alignment
// unless it is said.
#pragma once

#include <cstddef>

namespace lintel {

// Positions of a page. A multiple of every vector's length; the borders of pages lie at multiples
// of it, so that the order of every sum is fixed by positions alone.
inline constexpr std::size_t kSoftmaxPage = 64;

struct SoftmaxShape {
  std::size_t n_heads = 0;  // H
  std::size_t d_head = 0;   // D = M
};

// One page of history: for each head its keys [D, kSoftmaxPage], so that a vector holds one feature
// of several positions, then its values [kSoftmaxPage, M]. 64-byte aligned.
std::size_t softmax_page_floats(const SoftmaxShape& shape);

// Writes the keys and values [H*D] of one position to `slot` of its page.
void softmax_append(const SoftmaxShape& shape, const float* k, const float* v, std::size_t slot,
                    float* page);
// Reads them.
void softmax_read(const SoftmaxShape& shape, std::size_t slot, const float* page, float* k,
                  float* v);
// Zeroes them.
void softmax_erase(const SoftmaxShape& shape, std::size_t slot, float* page);

// Queries of one sequence at consecutive positions, in the midst of their sums. Before the first
// page: out and sum all zeros, max all softmax_least().
struct SoftmaxRows {
  std::size_t count = 0;
  const float* q = nullptr;  // [count, H*D], without gaps, already scaled
  float* max = nullptr;      // [count, H] largest score so far
  float* sum = nullptr;      // [count, H] sum of exp(score - max)
  float* out = nullptr;      // [count, H*M] sum of exp(score - max) * v
  std::size_t out_stride = 0;
};
float softmax_least();

// Adds one page to the sums. `visible` positions of it, from its first on, are seen by the first
// row, one more by each row after it, until the page is full. REQUIRES: visible >= 1.
void softmax_add_page(const SoftmaxShape& shape, const SoftmaxRows& rows, const float* page,
                      std::size_t visible);

// out /= sum.
void softmax_finish(const SoftmaxShape& shape, const SoftmaxRows& rows);

}  // namespace lintel
