// SPDX-License-Identifier: Apache-2.0
// Grouped softmax attention over pages of a KV cache, as an online softmax (Milakov and Gimelshein
// 2018): a block of pages at a time, with the largest score so far and what was summed relative to
// it. SIMD by Highway, chosen at run time.
//
// As in model/core/kernels.h: pure functions. The bits of a query depend on the keys and values up
// to its own position and on the instruction set, not on what else shares the call. Nothing
// allocates. Pointers need no alignment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "model/ops/kv_type.h"

namespace lintel {

// Positions of a page: a whole number of vectors of every instruction set.
inline constexpr std::size_t kKvPage = 16;
// Positions that enter the sums of a query together. A block begins at a multiple of it.
inline constexpr std::size_t kKvBlock = 64;

struct KvShape {
  std::size_t heads = 0;  // HKV
  std::size_t width = 0;  // D of keys and of values
  KvType type = KvType::kF32;
};

// A page: of each head its keys [D, kKvPage], so that a vector holds one feature of several
// positions, then its values [kKvPage, D], in cells of the type. In int8 the scales follow: f32
// [HKV, 2, kKvPage], of each head those of keys, then those of values.
std::size_t kv_page_bytes(const KvShape& shape);

// Writes the keys and values [HKV D] of one position to `slot` of its page. bf16: to nearest, ties
// to even. int8: round(x / scale), scale = max |x| / 127 over a head; where a value is not finite,
// the scale is NaN, and so is what is computed from it.
void kv_append(const KvShape& shape, const float* k, const float* v, std::size_t slot,
               std::byte* page);
// Reads the values that the cells of one position stand for.
void kv_read(const KvShape& shape, const std::byte* page, std::size_t slot, float* k, float* v);
// Zeroes them.
void kv_erase(const KvShape& shape, std::size_t slot, std::byte* page);
// True if all values of a page are finite, and no scale is negative.
bool kv_is_finite(const KvShape& shape, const std::byte* page);

// Queries of one sequence at consecutive positions, in the midst of their sums.
struct KvQueries {
  std::size_t count = 0;           // rows
  std::size_t first_position = 0;  // of the first row
  std::size_t members = 0;         // G: query heads h G .. h G + G - 1 read head h
  std::size_t window = SIZE_MAX;   // positions that a query sees, its own among them; at least 1
  float scale = 1.0f;              // of the scores
  const float* q = nullptr;        // [count, HKV G D]
  std::size_t q_stride = 0;        // floats from row to row
  float* max = nullptr;            // [count, HKV G] largest score so far
  float* sum = nullptr;            // [count, HKV G] sum of exp(score - max)
  float* out = nullptr;            // [count, HKV G D] sum of exp(score - max) * v
  std::size_t out_stride = 0;
};

// The heads of keys that a call works on: several threads may share those of one KvQueries.
struct KvHeads {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The pages of a block, of positions `first` .. `first` + kKvBlock - 1.
struct KvBlock {
  std::size_t first = 0;
  std::array<const std::byte*, kKvBlock / kKvPage> pages{};  // null: no query sees any of it
};

// Before the first block.
void kv_begin(const KvShape& shape, KvHeads heads, const KvQueries& queries);
// Adds the block to the sums of those queries that see some of it. Blocks in ascending order.
void kv_add_block(const KvShape& shape, KvHeads heads, const KvQueries& queries,
                  const KvBlock& block);
// out /= sum.
void kv_finish(const KvShape& shape, KvHeads heads, const KvQueries& queries);

}  // namespace lintel
