// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/relative_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/relative_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Defined once for all instruction sets.
#ifndef LINTEL_ATTENTION_RELATIVE_TILES_
#define LINTEL_ATTENTION_RELATIVE_TILES_
namespace lintel {
namespace {

constexpr std::size_t kTile = 64;  // slots, distances, and positions between the borders of sums

// The place of a slot in one head's ring.
struct RelativeSlot {
  RelativeSlot(const RelativeShape& shape, std::size_t slot)
      : column(slot % kTile),
        width(std::min(kTile, shape.ring - slot / kTile * kTile)),
        tile(slot / kTile * kTile * 2 * shape.d_head),
        key(tile + column),
        value(tile + (width + column) * shape.d_head) {}

  std::size_t column;  // of its tile
  std::size_t width;   // columns of that tile: what a key's features are apart
  std::size_t tile;    // its beginning
  std::size_t key;     // feature 0
  std::size_t value;
};

std::size_t head_ring_floats(const RelativeShape& shape) { return 2 * shape.d_head * shape.ring; }
std::size_t table_columns(const RelativeShape& shape) {
  return (shape.distances + kTile - 1) / kTile * kTile;
}

}  // namespace
}  // namespace lintel
#endif

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// scores[i] = sum over c of q[c] columns[c][i] for n columns, at least a vector of kLanes: whole
// vectors, of which the last may compute some columns of the one before it again.
template <size_t kLanes>
HWY_INLINE void multiply_overlapping(const float* q, size_t d_head, const float* columns,
                                     size_t stride, size_t n, float* scores) {
  const hn::CappedTag<float, kLanes> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    multiply_columns<4>(d, q, d_head, columns + i, stride, scores + i);
  }
  for (; i + lanes <= n; i += lanes) {
    multiply_columns<1>(d, q, d_head, columns + i, stride, scores + i);
  }
  if (i < n) multiply_columns<1>(d, q, d_head, columns + n - lanes, stride, scores + n - lanes);
}

// The same for any number of columns. Nothing beyond them is read, and what computes a column does
// not change its bits.
HWY_INLINE void multiply_exactly(const float* q, size_t d_head, const float* columns, size_t stride,
                                 size_t n, float* scores) {
  if (n >= 16) {
    multiply_overlapping<16>(q, d_head, columns, stride, n, scores);
  } else if (n >= 8) {
    multiply_overlapping<8>(q, d_head, columns, stride, n, scores);
  } else if (n >= 4) {
    multiply_overlapping<4>(q, d_head, columns, stride, n, scores);
  } else {
    multiply_overlapping<1>(q, d_head, columns, stride, n, scores);
  }
}

// Writes position . r_d of distances 0 .. furthest: of distance d to the element -d of what is
// returned.
HWY_INLINE const float* score_distances(const RelativeShape& shape, const float* position,
                                        const float* table, size_t furthest, float* scores) {
  const size_t columns = table_columns(shape);
  float* const of_columns = scores + (shape.ring - std::min(shape.ring, shape.distances));
  float* const nearest = of_columns + columns - 1;
  const size_t last = std::min(furthest, shape.distances - 1);
  for (size_t i = (columns - 1 - last) / kTile * kTile; i < columns; i += kTile) {
    multiply_all_columns(position, shape.d_head, table + i * shape.d_head, kTile, kTile,
                         of_columns + i);
  }
  for (size_t d = last + 1; d <= furthest; ++d) *(nearest - d) = *(nearest - last);
  return nearest;
}

void Attend(const RelativeShape& shape, size_t head, const float* content, const float* position,
            size_t first, size_t last, const float* ring, const float* table, float* scores,
            float* out) {
  const size_t d_head = shape.d_head;
  const float* const of_head = ring + head * head_ring_floats(shape);
  const float* const nearest = score_distances(
      shape, position, table + head * table_columns(shape) * d_head, last - first, scores);
  float max = std::numeric_limits<float>::lowest();
  float sum = 0.0f;
  std::fill_n(out, d_head, 0.0f);
  HWY_ALIGN float p[kTile];
  const float* values[kTile];
  for (size_t begin = first; begin <= last;) {
    const size_t end = std::min((begin / kTile + 1) * kTile, last + 1);
    const size_t n = end - begin;
    for (size_t i = 0; i < n;) {  // runs of slots of one tile
      const RelativeSlot slot(shape, (begin + i) % shape.ring);
      const size_t run = std::min(n - i, slot.width - slot.column);
      multiply_exactly(content, d_head, of_head + slot.key, slot.width, run, p + i);
      for (size_t j = 0; j < run; ++j) values[i + j] = of_head + slot.value + j * d_head;
      i += run;
    }
    const float* const of_distance = nearest - (last - begin);
    for_each_vector(n, [&](auto d, size_t i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, p + i), hn::LoadU(d, of_distance + i)), d, p + i);
    });
    const size_t whole = (n + kColumnMultiple - 1) / kColumnMultiple * kColumnMultiple;
    add_softmax_block(
        p, n, whole, d_head, [&values](size_t i) { return values[i]; }, &max, &sum, out);
    begin = end;
  }
  scale_row(out, d_head, 1.0f / sum, out);
}

// sum over i of weights[i] values[i], in double.
double Dot(const float* weights, const double* values, size_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::MulAdd(hn::PromoteTo(d, hn::LoadU(narrow, weights + i)), hn::LoadU(d, values + i),
                      even);
    odd = hn::MulAdd(hn::PromoteTo(d, hn::LoadU(narrow, weights + i + lanes)),
                     hn::LoadU(d, values + i + lanes), odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < n; ++i) sum += static_cast<double>(weights[i]) * values[i];
  return sum;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(Attend);
HWY_EXPORT(Dot);
}  // namespace

std::size_t relative_ring_floats(const RelativeShape& shape) {
  return shape.n_heads * head_ring_floats(shape);
}

void relative_store(const RelativeShape& shape, std::size_t head, std::size_t slot, const float* k,
                    const float* v, float* ring) {
  const RelativeSlot at(shape, slot);
  float* const of_head = ring + head * head_ring_floats(shape);
  for (std::size_t c = 0; c < shape.d_head; ++c) of_head[at.key + c * at.width] = k[c];
  std::copy_n(v, shape.d_head, of_head + at.value);
}

void relative_fetch(const RelativeShape& shape, std::size_t head, std::size_t slot,
                    const float* ring, float* k, float* v) {
  const RelativeSlot at(shape, slot);
  const float* const of_head = ring + head * head_ring_floats(shape);
  for (std::size_t c = 0; c < shape.d_head; ++c) k[c] = of_head[at.key + c * at.width];
  std::copy_n(of_head + at.value, shape.d_head, v);
}

std::size_t relative_table_floats(const RelativeShape& shape) {
  return shape.n_heads * table_columns(shape) * shape.d_head;
}

std::vector<float> relative_table(const RelativeShape& shape, const Matrix& r_net) {
  const std::size_t half = r_net.cols() / 2;
  const std::size_t columns = table_columns(shape);
  std::vector<float> table(relative_table_floats(shape));
  std::vector<double> r(2 * half);  // R_d
  for (std::size_t distance = 0; distance < shape.distances; ++distance) {
    for (std::size_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(r_net.cols()));
      r[i] = std::sin(static_cast<double>(distance) * frequency);
      r[half + i] = std::cos(static_cast<double>(distance) * frequency);
    }
    const std::size_t column = columns - 1 - distance;
    for (std::size_t h = 0; h < shape.n_heads; ++h) {
      float* const tile = table.data() + (h * columns + column / kTile * kTile) * shape.d_head;
      for (std::size_t c = 0; c < shape.d_head; ++c) {
        const std::span<const float> weights = r_net.row(h * shape.d_head + c);
        tile[c * kTile + column % kTile] =
            static_cast<float>(HWY_DYNAMIC_DISPATCH(Dot)(weights.data(), r.data(), r.size()));
      }
    }
  }
  return table;
}

std::size_t relative_scores(const RelativeShape& shape) {
  return shape.ring - std::min(shape.ring, shape.distances) + table_columns(shape);
}

void relative_attend(const RelativeShape& shape, std::size_t head, const float* content,
                     const float* position, std::size_t first, std::size_t last, const float* ring,
                     const float* table, float* scores, float* out) {
  HWY_DYNAMIC_DISPATCH(Attend)
  (shape, head, content, position, first, last, ring, table, scores, out);
}

}  // namespace lintel
#endif  // HWY_ONCE
