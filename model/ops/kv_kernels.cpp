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

// Of a page.
using Slots = hn::CappedTag<float, kKvPage>;
constexpr size_t kSlotVectors = kKvPage / hn::MaxLanes(Slots());
// That share what is loaded of a page; without vectors there are no registers for it.
constexpr size_t kMostQueries = hn::MaxLanes(Slots()) == 1 ? 1 : 4;

// One head of a page.
template <typename Cell>
struct PageHead {
  const Cell* keys;           // [D, kKvPage]
  const Cell* values;         // [kKvPage, D]
  const float* key_scales;    // [kKvPage]; null: none
  const float* value_scales;  // the same
};

// Queries that see the first `seen` positions of a page but for the first `hidden` of each.
struct Tile {
  const float* q[kMostQueries];
  float* out[kMostQueries];
  float* max[kMostQueries];
  float* sum[kMostQueries];
  size_t hidden[kMostQueries];
  size_t seen;
};

// scores[q, i] = sum over c of q[c] keys[c, i]. Features go to several chains of additions, by c
// alone, so that they do not wait for each other.
template <size_t kQueries, typename Cell>
HWY_INLINE void multiply_keys(const Tile& tile, size_t width, const Cell* keys, float* scores) {
  constexpr size_t kChains = kSlotVectors == 1 ? 2 : 1;
  const Slots d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<Slots> sum[kChains][kQueries][kSlotVectors];
  LINTEL_UNROLL
  for (size_t chain = 0; chain < kChains; ++chain) {
    LINTEL_UNROLL
    for (size_t r = 0; r < kQueries; ++r) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kSlotVectors; ++j) sum[chain][r][j] = hn::Zero(d);
    }
  }
  size_t c = 0;
  for (; c + kChains <= width; c += kChains) {
    LINTEL_UNROLL
    for (size_t chain = 0; chain < kChains; ++chain) {
      LINTEL_UNROLL
      for (size_t j = 0; j < kSlotVectors; ++j) {
        const auto key = load_cells(d, keys + (c + chain) * kKvPage + j * lanes);
        LINTEL_UNROLL
        for (size_t r = 0; r < kQueries; ++r) {
          sum[chain][r][j] = hn::MulAdd(hn::Set(d, tile.q[r][c + chain]), key, sum[chain][r][j]);
        }
      }
    }
  }
  for (; c < width; ++c) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kSlotVectors; ++j) {
      const auto key = load_cells(d, keys + c * kKvPage + j * lanes);
      LINTEL_UNROLL
      for (size_t r = 0; r < kQueries; ++r) {
        sum[0][r][j] = hn::MulAdd(hn::Set(d, tile.q[r][c]), key, sum[0][r][j]);
      }
    }
  }
  LINTEL_UNROLL
  for (size_t r = 0; r < kQueries; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kSlotVectors; ++j) {
      auto total = sum[0][r][j];
      if constexpr (kChains == 2) total = hn::Add(total, sum[1][r][j]);
      hn::StoreU(total, d, scores + r * kKvPage + j * lanes);
    }
  }
}

// exp(x) for x <= 0 of any size: 0 from where it is no number of f32 any more. NaN stays NaN.
HWY_INLINE hn::Vec<Slots> exp_of_negative(hn::Vec<Slots> x) {
  const Slots d;
  const auto least = hn::Set(d, -200.0f);
  return hn::Exp(d, hn::IfThenElse(hn::Lt(x, least), least, x));
}

// Scores of one query become the weights of values. Returns what the sums so far are multiplied by.
// Compiled once for all tiles.
HWY_NOINLINE float weigh(const float* key_scales, const float* value_scales, size_t hidden,
                         size_t seen, float scale, float* scores, float* max, float* sum) {
  const Slots d;
  const size_t lanes = hn::Lanes(d);
  LINTEL_UNROLL
  for (size_t j = 0; j < kSlotVectors; ++j) {
    float* const at = scores + j * lanes;
    auto score = hn::Mul(hn::LoadU(d, at), hn::Set(d, scale));
    if (key_scales != nullptr) {
      score = hn::Mul(score, hn::LoadU(d, key_scales + j * lanes));
    }
    hn::StoreU(score, d, at);
  }
  constexpr float kLowest = std::numeric_limits<float>::lowest();  // its weight is exactly 0
  for (size_t i = 0; i < hidden; ++i) scores[i] = kLowest;
  for (size_t i = seen; i < kKvPage; ++i) scores[i] = kLowest;
  auto most = hn::LoadU(d, scores);
  LINTEL_UNROLL
  for (size_t j = 1; j < kSlotVectors; ++j) {
    most = hn::Max(most, hn::LoadU(d, scores + j * lanes));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  float factor = 1.0f;
  if (largest > *max) {
    factor = hn::GetLane(exp_of_negative(hn::Set(d, *max - largest)));
    *max = largest;
  }
  auto total = hn::Zero(d);
  LINTEL_UNROLL
  for (size_t j = 0; j < kSlotVectors; ++j) {
    float* const at = scores + j * lanes;
    auto weight = exp_of_negative(hn::Sub(hn::LoadU(d, at), hn::Set(d, *max)));
    total = hn::Add(total, weight);
    if (value_scales != nullptr) {
      weight = hn::Mul(weight, hn::LoadU(d, value_scales + j * lanes));
    }
    hn::StoreU(weight, d, at);
  }
  *sum = *sum * factor + hn::GetLane(hn::SumOfLanes(d, total));
  return factor;
}

// out = factor out + sum over i < seen of weights[i] values[i], for kVectors vectors of columns
// from m on.
template <size_t kQueries, size_t kVectors, class D, typename Cell>
HWY_INLINE void add_columns(D d, const Tile& tile, const float* weights, const float* factors,
                            const Cell* values, size_t width, size_t m) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kQueries][kVectors];
  LINTEL_UNROLL
  for (size_t r = 0; r < kQueries; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      sum[r][j] = hn::Mul(hn::Set(d, factors[r]), hn::LoadU(d, tile.out[r] + m + j * lanes));
    }
  }
  for (size_t i = 0; i < tile.seen; ++i) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      const auto value = load_cells(d, values + i * width + m + j * lanes);
      LINTEL_UNROLL
      for (size_t r = 0; r < kQueries; ++r) {
        sum[r][j] = hn::MulAdd(hn::Set(d, weights[r * kKvPage + i]), value, sum[r][j]);
      }
    }
  }
  LINTEL_UNROLL
  for (size_t r = 0; r < kQueries; ++r) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      hn::StoreU(sum[r][j], d, tile.out[r] + m + j * lanes);
    }
  }
}

template <size_t kQueries, typename Cell>
HWY_INLINE void add_tile(const PageHead<Cell>& page, size_t width, float scale, const Tile& tile) {
  HWY_ALIGN float weights[kQueries * kKvPage];
  float factors[kQueries];
  multiply_keys<kQueries>(tile, width, page.keys, weights);
  for (size_t r = 0; r < kQueries; ++r) {
    factors[r] = weigh(page.key_scales, page.value_scales, tile.hidden[r], tile.seen, scale,
                       weights + r * kKvPage, tile.max[r], tile.sum[r]);
  }
  constexpr size_t kVectors = hn::MaxLanes(Lanes()) == 1 ? 1 : 8 / kQueries;
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t m = 0;
  for (; m + kVectors * lanes <= width; m += kVectors * lanes) {
    add_columns<kQueries, kVectors>(d, tile, weights, factors, page.values, width, m);
  }
  for (; m + lanes <= width; m += lanes) {
    add_columns<kQueries, 1>(d, tile, weights, factors, page.values, width, m);
  }
  for (; m < width; ++m) {
    add_columns<kQueries, 1>(OneLane(), tile, weights, factors, page.values, width, m);
  }
}

// All queries of one head of keys. Query i is of row i / G. A query joins a tile of others that see
// as much of the page, which changes none of its bits.
template <typename Cell>
HWY_INLINE void add_head(const PageHead<Cell>& page, size_t width, size_t head, size_t heads,
                         const KvQueries& queries, size_t first) {
  const size_t members = queries.members;
  const size_t begin = first > queries.first_position ? first - queries.first_position : 0;
  const size_t end = queries.count * members;
  const auto seen_by = [&](size_t i) {  // positions from the page's first on
    return queries.first_position + i / members + 1 - first;
  };
  const auto hidden_to = [&](size_t i) {
    const size_t seen = seen_by(i);
    return seen > queries.window ? seen - queries.window : 0;
  };
  for (size_t i = begin * members; i < end;) {
    if (hidden_to(i) >= kKvPage) break;  // as to every row after it
    Tile tile;
    tile.seen = std::min(seen_by(i), kKvPage);
    size_t count = 0;
    for (; count < kMostQueries && i + count < end; ++count) {
      const size_t at = i + count;
      const size_t hidden = hidden_to(at);
      if (std::min(seen_by(at), kKvPage) != tile.seen || hidden >= kKvPage) break;
      const size_t row = at / members;
      const size_t query_head = head * members + at % members;
      tile.q[count] = queries.q + row * queries.q_stride + query_head * width;
      tile.out[count] = queries.out + row * queries.out_stride + query_head * width;
      tile.max[count] = queries.max + row * heads * members + query_head;
      tile.sum[count] = queries.sum + row * heads * members + query_head;
      tile.hidden[count] = hidden;
    }
    if constexpr (kMostQueries > 1) {
      if (count == kMostQueries) {
        add_tile<kMostQueries>(page, width, queries.scale, tile);
        i += kMostQueries;
        continue;
      }
      if (count >= 2) {
        add_tile<2>(page, width, queries.scale, tile);
        i += 2;
        continue;
      }
    }
    add_tile<1>(page, width, queries.scale, tile);
    i += 1;
  }
}

template <typename Cell>
HWY_INLINE void add_page(const KvShape& shape, KvHeads heads, const KvQueries& queries,
                         const std::byte* page, size_t first) {
  const Cell* const cells = reinterpret_cast<const Cell*>(page);
  const size_t of_head = kKvPage * shape.width;
  const auto* const scales = reinterpret_cast<const float*>(cells + shape.heads * 2 * of_head);
  for (size_t h = heads.begin; h < heads.end; ++h) {
    PageHead<Cell> head{.keys = cells + h * 2 * of_head,
                        .values = cells + (h * 2 + 1) * of_head,
                        .key_scales = nullptr,
                        .value_scales = nullptr};
    if (shape.type == KvType::kInt8) {
      head.key_scales = scales + h * 2 * kKvPage;
      head.value_scales = head.key_scales + kKvPage;
    }
    add_head(head, shape.width, h, shape.heads, queries, first);
  }
}

void AddPage(const KvShape& shape, KvHeads heads, const KvQueries& queries, const std::byte* page,
             size_t first) {
  switch (shape.type) {
    case KvType::kF32:
      return add_page<float>(shape, heads, queries, page, first);
    case KvType::kBf16:
      return add_page<uint16_t>(shape, heads, queries, page, first);
    case KvType::kInt8:
      return add_page<int8_t>(shape, heads, queries, page, first);
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

HWY_EXPORT(AddPage);
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

void kv_add_page(const KvShape& shape, KvHeads heads, const KvQueries& queries,
                 const std::byte* page, std::size_t first) {
  HWY_DYNAMIC_DISPATCH(AddPage)(shape, heads, queries, page, first);
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
