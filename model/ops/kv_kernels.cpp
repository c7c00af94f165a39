// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/kv_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "model/core/vector_loops-inl.h"
// clang-format on

#include "model/ops/kv_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "model/core/float_formats.h"
#include "model/core/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// A vector of cells, exactly.
template <class D>
HWY_INLINE hn::Vec<D> load_cells(D d, const float* cells) {
  return hn::LoadU(d, cells);
}
template <class D>
HWY_INLINE hn::Vec<D> load_cells(D d, const uint16_t* cells) {
  const hn::Rebind<uint16_t, D> half;
  const hn::RebindToUnsigned<D> whole;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(whole, hn::LoadU(half, cells))));
}
template <class D>
HWY_INLINE hn::Vec<D> load_cells(D d, const int8_t* cells) {
  const hn::Rebind<int8_t, D> quarter;
  const hn::RebindToSigned<D> whole;
  return hn::ConvertTo(d, hn::PromoteTo(whole, hn::LoadU(quarter, cells)));
}

// The slots of a page.
using Slots = hn::CappedTag<float, kKvPage>;
constexpr size_t kSlotVectors = kKvPage / hn::MaxLanes(Slots());
constexpr size_t kBlockPages = kKvBlock / kKvPage;
// Queries of a tile, which share what is loaded of a page: as many as there are registers for.
constexpr bool kIsWide = kSlotVectors == 1;
constexpr size_t kTile = hn::MaxLanes(Slots()) == 1 ? 1 : kIsWide ? 8 : 4;
// Vectors of sums that each query of a tile of so many has side by side.
template <size_t kQueries>
constexpr size_t kSideBySide = kTile == 1 ? 1 : (kIsWide ? 16 : 8) / kQueries;
// Queries of a group, whose tiles find a page in the nearest cache, one after the other.
constexpr size_t kGroup = 32;

// One head of the pages of a block; null where no query sees the page.
template <typename Cell>
struct BlockHead {
  const Cell* keys[kBlockPages];           // [D, kKvPage]
  const Cell* values[kBlockPages];         // [kKvPage, D]
  const float* key_scales[kBlockPages];    // [kKvPage]; null: none
  const float* value_scales[kBlockPages];  // the same
};

// Queries that see the first `seen` positions of a block but for the first `hidden` of each, all of
// which are within `first_page` or before it.
struct Group {
  size_t count;
  const float* q[kGroup];
  float* out[kGroup];
  float* max[kGroup];
  float* sum[kGroup];
  size_t hidden[kGroup];
  size_t first_page;
  size_t seen;

  size_t end_page() const { return (seen + kKvPage - 1) / kKvPage; }
};

// Calls body.template operator()<n>(first) for tiles of n queries from `first` on that make up
// `count`, the largest first.
template <size_t kQueries, typename Body>
HWY_INLINE void for_each_tile(size_t count, const Body& body, size_t first = 0) {
  for (; first + kQueries <= count; first += kQueries) body.template operator()<kQueries>(first);
  if constexpr (kQueries > 1) for_each_tile<kQueries / 2>(count, body, first);
}

// scores[q, i] = sum over c of q[c] keys[c, i] in kPages pages, in the order of c.
template <size_t kQueries, size_t kPages, typename Cell>
HWY_INLINE void multiply_keys(const float* const* q, size_t width, const Cell* const* pages,
                              float* scores) {
  const Slots d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<Slots> sum[kPages][kQueries][kSlotVectors];
  LINTEL_UNROLL
  for (size_t p = 0; p < kPages; ++p) {
    LINTEL_UNROLL
    for (size_t r = 0; r < kQueries; ++r) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kSlotVectors; ++j) sum[p][r][j] = hn::Zero(d);
    }
  }
  for (size_t c = 0; c < width; ++c) {
    hn::Vec<Slots> key[kPages][kSlotVectors];
    LINTEL_UNROLL
    for (size_t p = 0; p < kPages; ++p) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kSlotVectors; ++j) {
        key[p][j] = load_cells(d, pages[p] + c * kKvPage + j * lanes);
      }
    }
    LINTEL_UNROLL
    for (size_t r = 0; r < kQueries; ++r) {
      const auto feature = hn::Set(d, q[r][c]);
      LINTEL_UNROLL
      for (size_t p = 0; p < kPages; ++p) {
        LINTEL_UNROLL
        for (size_t j = 0; j < kSlotVectors; ++j) {
          sum[p][r][j] = hn::MulAdd(feature, key[p][j], sum[p][r][j]);
        }
      }
    }
  }
  LINTEL_UNROLL
  for (size_t r = 0; r < kQueries; ++r) {
    LINTEL_UNROLL
    for (size_t p = 0; p < kPages; ++p) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kSlotVectors; ++j) {
        hn::StoreU(sum[p][r][j], d, scores + r * kKvBlock + p * kKvPage + j * lanes);
      }
    }
  }
}

// Scores pages [page, end), kPages at a time as long as there are that many. Returns the first page
// left.
template <size_t kMost, size_t kPages, typename Cell>
HWY_INLINE size_t score_pages(const Group& group, size_t width, const Cell* const* pages,
                              size_t page, size_t end, float* scores) {
  for (; page + kPages <= end; page += kPages) {
    for_each_tile<kMost>(group.count, [&]<size_t kQueries>(size_t first) HWY_ATTR {
      multiply_keys<kQueries, kPages>(group.q + first, width, pages + page,
                                      scores + first * kKvBlock + page * kKvPage);
    });
  }
  return page;
}

// scores: [count, kKvBlock].
template <size_t kMost, typename Cell>
HWY_INLINE void score(const Group& group, size_t width, const Cell* const* pages, float* scores) {
  const size_t end = group.end_page();
  size_t page = group.first_page;
  if constexpr (kIsWide) {
    page = score_pages<kMost, kSideBySide<kMost>>(group, width, pages, page, end, scores);
  }
  score_pages<kMost, 1>(group, width, pages, page, end, scores);
}

// exp(x) for x <= 0 of any size: 0 from where it is no number of f32 any more. NaN stays NaN.
HWY_INLINE hn::Vec<Slots> exp_of_negative(hn::Vec<Slots> x) {
  const Slots d;
  const auto least = hn::Set(d, -200.0f);
  return hn::Exp(d, hn::IfThenElse(hn::Lt(x, least), least, x));
}

// Scores of one query of a group become the weights of values. Returns what the sums so far are
// multiplied by. The scales are null or those of the block's pages. Compiled once for all types.
HWY_NOINLINE float weigh(const Group& group, size_t query, const float* const* key_scales,
                         const float* const* value_scales, float scale, float* scores) {
  const Slots d;
  const size_t lanes = hn::Lanes(d);
  const size_t first_page = group.first_page, end_page = group.end_page();
  constexpr float kLowest = std::numeric_limits<float>::lowest();  // its weight is exactly 0
  for (size_t p = first_page; p < end_page; ++p) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kSlotVectors; ++j) {
      float* const at = scores + p * kKvPage + j * lanes;
      auto score = hn::Mul(hn::LoadU(d, at), hn::Set(d, scale));
      if (key_scales[p] != nullptr) {
        score = hn::Mul(score, hn::LoadU(d, key_scales[p] + j * lanes));
      }
      hn::StoreU(score, d, at);
    }
  }
  for (size_t i = first_page * kKvPage; i < group.hidden[query]; ++i) scores[i] = kLowest;
  for (size_t i = group.seen; i < end_page * kKvPage; ++i) scores[i] = kLowest;
  auto most = hn::Set(d, kLowest);
  for (size_t i = first_page * kKvPage; i < end_page * kKvPage; i += lanes) {
    most = hn::Max(most, hn::LoadU(d, scores + i));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  float* const max = group.max[query];
  float factor = 1.0f;
  if (largest > *max) {
    factor = hn::GetLane(exp_of_negative(hn::Set(d, *max - largest)));
    *max = largest;
  }
  auto total = hn::Zero(d);
  for (size_t p = first_page; p < end_page; ++p) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kSlotVectors; ++j) {
      float* const at = scores + p * kKvPage + j * lanes;
      auto weight = exp_of_negative(hn::Sub(hn::LoadU(d, at), hn::Set(d, *max)));
      total = hn::Add(total, weight);
      if (value_scales[p] != nullptr) {
        weight = hn::Mul(weight, hn::LoadU(d, value_scales[p] + j * lanes));
      }
      hn::StoreU(weight, d, at);
    }
  }
  float* const sum = group.sum[query];
  *sum = *sum * factor + hn::GetLane(hn::SumOfLanes(d, total));
  return factor;
}

// A page's values of some columns, `stride` cells from position to position.
template <typename Cell>
struct ValueColumns {
  const Cell* pages[kBlockPages];
  size_t stride;
};

// out = factor out + sum over the positions i that are seen of weights[i] values[i], for kVectors
// vectors of columns from m on. weights: [kQueries, kKvBlock].
template <size_t kQueries, size_t kVectors, class D, typename Cell>
HWY_INLINE void add_columns(D d, const Group& group, float* const* out, const float* weights,
                            const float* factors, const ValueColumns<Cell>& columns, size_t m) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kQueries][kVectors];
  LINTEL_UNROLL
  for (size_t r = 0; r < kQueries; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      sum[r][j] = hn::Mul(hn::Set(d, factors[r]), hn::LoadU(d, out[r] + m + j * lanes));
    }
  }
  for (size_t p = group.first_page; p < group.end_page(); ++p) {
    const Cell* values = columns.pages[p];
    const float* weight = weights + p * kKvPage;
    const float* const end = weights + std::min((p + 1) * kKvPage, group.seen);
    for (; weight < end; ++weight, values += columns.stride) {
      hn::Vec<D> value[kVectors];
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) value[j] = load_cells(d, values + j * lanes);
      LINTEL_UNROLL
      for (size_t r = 0; r < kQueries; ++r) {
        const auto w = hn::Set(d, weight[r * kKvBlock]);
        LINTEL_UNROLL
        for (size_t j = 0; j < kVectors; ++j) sum[r][j] = hn::MulAdd(w, value[j], sum[r][j]);
      }
    }
  }
  LINTEL_UNROLL
  for (size_t r = 0; r < kQueries; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sum[r][j], d, out[r] + m + j * lanes);
  }
}

// The same for all queries. Several tiles read a copy of the columns, without gaps and in f32.
template <size_t kMost, size_t kVectors, class D, typename Cell>
HWY_INLINE void add_values(D d, const Group& group, const float* weights, const float* factors,
                           const BlockHead<Cell>& block, size_t width, size_t m) {
  const size_t lanes = hn::Lanes(d);
  const auto add = [&](const auto& columns) HWY_ATTR {
    for_each_tile<kMost>(group.count, [&]<size_t kQueries>(size_t first) HWY_ATTR {
      add_columns<kQueries, kVectors>(d, group, group.out + first, weights + first * kKvBlock,
                                      factors + first, columns, m);
    });
  };
  if (group.count <= kMost) {
    ValueColumns<Cell> columns{.pages = {}, .stride = width};
    for (size_t p = group.first_page; p < group.end_page(); ++p) {
      columns.pages[p] = block.values[p] + m;
    }
    return add(columns);
  }
  constexpr size_t kStride = kVectors * hn::MaxLanes(D());
  HWY_ALIGN float copy[kKvBlock * kStride];
  ValueColumns<float> columns{.pages = {}, .stride = kStride};
  for (size_t p = group.first_page; p < group.end_page(); ++p) {
    columns.pages[p] = copy + p * kKvPage * kStride;
    const size_t end = std::min((p + 1) * kKvPage, group.seen);
    for (size_t i = p * kKvPage; i < end; ++i) {
      const Cell* const values = block.values[p] + (i - p * kKvPage) * width + m;
      LINTEL_UNROLL
      for (size_t j = 0; j < kVectors; ++j) {
        hn::StoreU(load_cells(d, values + j * lanes), d, copy + i * kStride + j * lanes);
      }
    }
  }
  add(columns);
}

// kMost: queries of its largest tile.
template <size_t kMost, typename Cell>
HWY_INLINE void add_group(const BlockHead<Cell>& block, size_t width, float scale,
                          const Group& group) {
  HWY_ALIGN float weights[kGroup * kKvBlock];
  float factors[kGroup];
  score<kMost>(group, width, block.keys, weights);
  for (size_t r = 0; r < group.count; ++r) {
    factors[r] =
        weigh(group, r, block.key_scales, block.value_scales, scale, weights + r * kKvBlock);
  }
  constexpr size_t kVectors = kSideBySide<kMost>;
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t m = 0;
  for (; m + kVectors * lanes <= width; m += kVectors * lanes) {
    add_values<kMost, kVectors>(d, group, weights, factors, block, width, m);
  }
  for (; m + lanes <= width; m += lanes) {
    add_values<kMost, 1>(d, group, weights, factors, block, width, m);
  }
  for (; m < width; ++m) {
    add_values<kMost, 1>(OneLane(), group, weights, factors, block, width, m);
  }
}

// All queries of one head of keys. Query i is of row i / G. A query joins a group of others that
// see as much of the block, which changes none of its bits.
template <typename Cell>
HWY_INLINE void add_head(const BlockHead<Cell>& block, size_t width, size_t head, size_t heads,
                         const KvQueries& queries, size_t first) {
  const size_t members = queries.members;
  const size_t begin = first > queries.first_position ? first - queries.first_position : 0;
  const size_t end = queries.count * members;
  const auto seen_by = [&](size_t i) {  // positions from the block's first on
    return queries.first_position + i / members + 1 - first;
  };
  const auto hidden_to = [&](size_t i) {
    const size_t seen = seen_by(i);
    return seen > queries.window ? seen - queries.window : 0;
  };
  for (size_t i = begin * members; i < end;) {
    if (hidden_to(i) >= kKvBlock) break;  // as to every row after it
    Group group;
    group.seen = std::min(seen_by(i), kKvBlock);
    group.first_page = hidden_to(i) / kKvPage;
    size_t count = 0;
    for (; count < kGroup && i < end; ++count, ++i) {
      const size_t hidden = hidden_to(i);
      if (std::min(seen_by(i), kKvBlock) != group.seen) break;
      if (hidden / kKvPage != group.first_page) break;
      const size_t row = i / members;
      const size_t query_head = head * members + i % members;
      group.q[count] = queries.q + row * queries.q_stride + query_head * width;
      group.out[count] = queries.out + row * queries.out_stride + query_head * width;
      group.max[count] = queries.max + row * heads * members + query_head;
      group.sum[count] = queries.sum + row * heads * members + query_head;
      group.hidden[count] = hidden;
    }
    group.count = count;
    if (count > kTile / 2) {
      add_group<kTile>(block, width, queries.scale, group);
    } else {
      add_group<std::max<size_t>(1, kTile / 2)>(block, width, queries.scale, group);
    }
  }
}

template <typename Cell>
HWY_INLINE void add_block(const KvShape& shape, KvHeads heads, const KvQueries& queries,
                          const KvBlock& block) {
  const size_t of_head = kKvPage * shape.width;
  for (size_t h = heads.begin; h < heads.end; ++h) {
    BlockHead<Cell> head{};
    for (size_t p = 0; p < kBlockPages; ++p) {
      if (block.pages[p] == nullptr) continue;
      const Cell* const cells = reinterpret_cast<const Cell*>(block.pages[p]);
      head.keys[p] = cells + h * 2 * of_head;
      head.values[p] = head.keys[p] + of_head;
      if (shape.type != KvType::kInt8) continue;
      const auto* const scales = reinterpret_cast<const float*>(cells + shape.heads * 2 * of_head);
      head.key_scales[p] = scales + h * 2 * kKvPage;
      head.value_scales[p] = head.key_scales[p] + kKvPage;
    }
    add_head(head, shape.width, h, shape.heads, queries, block.first);
  }
}

void AddBlock(const KvShape& shape, KvHeads heads, const KvQueries& queries, const KvBlock& block) {
  switch (shape.type) {
    case KvType::kF32:
      return add_block<float>(shape, heads, queries, block);
    case KvType::kBf16:
      return add_block<uint16_t>(shape, heads, queries, block);
    case KvType::kInt8:
      return add_block<int8_t>(shape, heads, queries, block);
  }
}

void Divide(float divisor, size_t n, float* x) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, x + i), hn::Set(d, divisor)), d, x + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {

HWY_EXPORT(AddBlock);
HWY_EXPORT(Divide);

std::size_t cell_bytes(KvType type) {
  switch (type) {
    case KvType::kF32:
      return sizeof(float);
    case KvType::kBf16:
      return sizeof(std::uint16_t);
    case KvType::kInt8:
      return sizeof(std::int8_t);
  }
  return 0;
}

std::size_t page_cells(const KvShape& shape) { return shape.heads * 2 * kKvPage * shape.width; }

// The scales of an int8 page, [HKV, 2, kKvPage].
template <typename Byte>
auto* scales_of(const KvShape& shape, Byte* page) {
  using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
  return reinterpret_cast<Float*>(page + page_cells(shape));
}

// The scale of a head's values, and its inverse.
struct Int8Scale {
  explicit Int8Scale(std::span<const float> x) {
    if (!all_finite(x)) {
      scale = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    float largest = 0.0f;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    scale = largest / 127.0f;
    inverse = scale > 0.0f ? 127.0f / largest : 0.0f;
    if (!std::isfinite(inverse)) inverse = 0.0f;  // of what is next to nothing
  }
  std::int8_t operator()(float x) const {
    if (inverse == 0.0f) return 0;
    const float cells = x * inverse;
    return static_cast<std::int8_t>(cells < 0.0f ? cells - 0.5f : cells + 0.5f);
  }

  float scale = 0.0f;
  float inverse = 0.0f;  // 0: every cell is 0
};

// Writes a head's keys and values of one slot with what makes a cell of a float.
template <typename Cell, typename OfKey, typename OfValue>
void write_slot(const KvShape& shape, std::size_t head, std::size_t slot, std::byte* page,
                const OfKey& of_key, const OfValue& of_value) {
  Cell* const keys = reinterpret_cast<Cell*>(page) + head * 2 * kKvPage * shape.width;
  Cell* const values = keys + (kKvPage + slot) * shape.width;
  for (std::size_t c = 0; c < shape.width; ++c) keys[c * kKvPage + slot] = of_key(c);
  for (std::size_t c = 0; c < shape.width; ++c) values[c] = of_value(c);
}

// Reads a head's keys and values of one slot with what makes a float of a cell.
template <typename Cell, typename OfKey, typename OfValue>
void read_slot(const KvShape& shape, std::size_t head, std::size_t slot, const std::byte* page,
               float* k, float* v, const OfKey& of_key, const OfValue& of_value) {
  const Cell* const keys = reinterpret_cast<const Cell*>(page) + head * 2 * kKvPage * shape.width;
  const Cell* const values = keys + (kKvPage + slot) * shape.width;
  for (std::size_t c = 0; c < shape.width; ++c) k[c] = of_key(keys[c * kKvPage + slot]);
  for (std::size_t c = 0; c < shape.width; ++c) v[c] = of_value(values[c]);
}

}  // namespace

std::size_t kv_page_bytes(const KvShape& shape) {
  const std::size_t scales =
      shape.type == KvType::kInt8 ? shape.heads * 2 * kKvPage * sizeof(float) : 0;
  return page_cells(shape) * cell_bytes(shape.type) + scales;
}

void kv_append(const KvShape& shape, const float* k, const float* v, std::size_t slot,
               std::byte* page) {
  for (std::size_t h = 0; h < shape.heads; ++h, k += shape.width, v += shape.width) {
    switch (shape.type) {
      case KvType::kF32:
        write_slot<float>(
            shape, h, slot, page, [k](std::size_t c) { return k[c]; },
            [v](std::size_t c) { return v[c]; });
        break;
      case KvType::kBf16:
        write_slot<std::uint16_t>(
            shape, h, slot, page, [k](std::size_t c) { return f32_to_bf16(k[c]); },
            [v](std::size_t c) { return f32_to_bf16(v[c]); });
        break;
      case KvType::kInt8: {
        const Int8Scale key({k, shape.width});
        const Int8Scale value({v, shape.width});
        float* const scales = scales_of(shape, page) + h * 2 * kKvPage + slot;
        scales[0] = key.scale;
        scales[kKvPage] = value.scale;
        write_slot<std::int8_t>(
            shape, h, slot, page, [&](std::size_t c) { return key(k[c]); },
            [&](std::size_t c) { return value(v[c]); });
        break;
      }
    }
  }
}

void kv_read(const KvShape& shape, const std::byte* page, std::size_t slot, float* k, float* v) {
  for (std::size_t h = 0; h < shape.heads; ++h, k += shape.width, v += shape.width) {
    switch (shape.type) {
      case KvType::kF32: {
        const auto same = [](float cell) { return cell; };
        read_slot<float>(shape, h, slot, page, k, v, same, same);
        break;
      }
      case KvType::kBf16:
        read_slot<std::uint16_t>(shape, h, slot, page, k, v, bf16_to_f32, bf16_to_f32);
        break;
      case KvType::kInt8: {
        const float* const scales = scales_of(shape, page) + h * 2 * kKvPage + slot;
        read_slot<std::int8_t>(
            shape, h, slot, page, k, v,
            [scale = scales[0]](std::int8_t cell) { return scale * static_cast<float>(cell); },
            [scale = scales[kKvPage]](std::int8_t cell) {
              return scale * static_cast<float>(cell);
            });
        break;
      }
    }
  }
}

void kv_erase(const KvShape& shape, std::size_t slot, std::byte* page) {
  for (std::size_t h = 0; h < shape.heads; ++h) {
    const auto erase = [&]<typename Cell>(Cell nothing) {
      const auto none = [nothing](std::size_t /*c*/) { return nothing; };
      write_slot<Cell>(shape, h, slot, page, none, none);
    };
    switch (shape.type) {
      case KvType::kF32:
        erase(0.0f);
        break;
      case KvType::kBf16:
        erase(std::uint16_t{0});
        break;
      case KvType::kInt8: {
        erase(std::int8_t{0});
        float* const scales = scales_of(shape, page) + h * 2 * kKvPage + slot;
        scales[0] = scales[kKvPage] = 0.0f;
        break;
      }
    }
  }
}

bool kv_is_finite(const KvShape& shape, const std::byte* page) {
  switch (shape.type) {
    case KvType::kF32:
      return all_finite({reinterpret_cast<const float*>(page), page_cells(shape)});
    case KvType::kBf16: {
      const std::span cells(reinterpret_cast<const std::uint16_t*>(page), page_cells(shape));
      constexpr std::uint16_t kExponent = 0x7f80;
      return std::ranges::none_of(
          cells, [](std::uint16_t bits) { return (bits & kExponent) == kExponent; });
    }
    case KvType::kInt8: {
      const std::span<const float> scales(scales_of(shape, page), shape.heads * 2 * kKvPage);
      return std::ranges::all_of(scales,
                                 [](float scale) { return scale >= 0.0f && std::isfinite(scale); });
    }
  }
  return false;
}

void kv_begin(const KvShape& shape, KvHeads heads, const KvQueries& queries) {
  const std::size_t members = queries.members;
  const std::size_t begin = heads.begin * members;
  const std::size_t count = (heads.end - heads.begin) * members;
  for (std::size_t r = 0; r < queries.count; ++r) {
    const std::size_t at = r * shape.heads * members + begin;
    std::fill_n(queries.max + at, count, std::numeric_limits<float>::lowest());
    std::fill_n(queries.sum + at, count, 0.0f);
    std::fill_n(queries.out + r * queries.out_stride + begin * shape.width, count * shape.width,
                0.0f);
  }
}

void kv_add_block(const KvShape& shape, KvHeads heads, const KvQueries& queries,
                  const KvBlock& block) {
  HWY_DYNAMIC_DISPATCH(AddBlock)(shape, heads, queries, block);
}

void kv_finish(const KvShape& shape, KvHeads heads, const KvQueries& queries) {
  const std::size_t members = queries.members;
  for (std::size_t r = 0; r < queries.count; ++r) {
    for (std::size_t h = heads.begin * members; h < heads.end * members; ++h) {
      HWY_DYNAMIC_DISPATCH(Divide)
      (queries.sum[r * shape.heads * members + h], shape.width,
       queries.out + r * queries.out_stride + h * shape.width);
    }
  }
}

}  // namespace lintel
#endif  // HWY_ONCE
