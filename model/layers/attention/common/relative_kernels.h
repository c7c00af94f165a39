// SPDX-License-Identifier: Apache-2.0
// Softmax over a window of positions whose scores have a second term, which depends on how far away
// a position is (Dai et al. 2019). SIMD by Highway, chosen at run time. The rules are those of
// model/core/kernels.h.
#pragma once

#include <cstddef>
#include <vector>

#include "model/core/tensor.h"

namespace lintel {

struct RelativeShape {
  std::size_t n_heads = 0;    // H
  std::size_t d_head = 0;     // D = M
  std::size_t ring = 0;       // positions that are kept: position s is in slot s % ring
  std::size_t distances = 0;  // different ones: one further away counts as distances - 1
};

// The ring of all heads, [H, 2 * D * ring]. Of a head the slots lie in tiles of 64, the last of
// them shorter: keys [D, slots of the tile], so that a vector holds one feature of several slots,
// then values [slots of the tile, M].
std::size_t relative_ring_floats(const RelativeShape& shape);
// Writes, and reads, one head's key and value [D] of a slot.
void relative_store(const RelativeShape& shape, std::size_t head, std::size_t slot, const float* k,
                    const float* v, float* ring);
void relative_fetch(const RelativeShape& shape, std::size_t head, std::size_t slot,
                    const float* ring, float* k, float* v);

// r_d = r_net R_d of all distances, R_d = [sin(d f_0) .., cos(d f_0) ..], f_i = 10000^(-2i/E): E/2
// of each, angles in double. r_net: [H*D, E]. Of a head, tiles [D, 64] of distances that fall: the
// last column of the last tile is distance 0, columns before the first distance are 0.
std::vector<float> relative_table(const RelativeShape& shape, const Matrix& r_net);
std::size_t relative_table_floats(const RelativeShape& shape);

// One head of one row at position `last`, which sees positions first .. last:
//   score_s = content . k_s + position . r_{last - s}      out = softmax(score) . v
// content, position: [D], q with the biases, already scaled; scores: relative_scores(shape) floats
// of working memory; out: [D]. Sums are cut where positions are multiples of 64, wherever the ring
// begins. REQUIRES: first <= last < first + ring.
void relative_attend(const RelativeShape& shape, std::size_t head, const float* content,
                     const float* position, std::size_t first, std::size_t last, const float* ring,
                     const float* table, float* scores, float* out);
std::size_t relative_scores(const RelativeShape& shape);

}  // namespace lintel
