// SPDX-License-Identifier: Apache-2.0
// Softmax over members wherever they lie, as an online softmax (Milakov and Gimelshein 2018). SIMD
// by Highway, chosen at run time. The rules are those of softmax_kernels.h.
#pragma once

#include <cstddef>
#include <span>

namespace lintel {

// Members of a block. Where blocks begin fixes the order of every sum.
inline constexpr std::size_t kMemberBlock = 64;

// One head's query, in the midst of its sums. Before the first block: members_least(), 0, and out
// all zeros.
struct MemberSums {
  const float* q = nullptr;  // [D], already scaled
  std::size_t d_head = 0;    // D = M
  float max = 0.0f;          // largest score so far
  float sum = 0.0f;          // of exp(score - max)
  float* out = nullptr;      // [M] sum of exp(score - max) * v
};
float members_least();

// Adds one block to the sums. A member is k [D], then v [M]. REQUIRES: 1 to kMemberBlock of them.
void add_members(MemberSums& sums, std::span<const float* const> members);

// out /= sum.
void finish_members(const MemberSums& sums);

}  // namespace lintel
