// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/dense_amx.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/ops/dense_outputs-inl.h"
#include "model/ops/tiles-inl.h"
// clang-format on

#include "model/ops/dense_amx.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

struct Int8OnTiles : Int8Output {
  template <int kSums, int kA, int kB, class Tiles>
  static HWY_INLINE void add(Tiles& tiles) {
    tiles.template add_int8<kSums, kA, kB>();
  }
};

struct Bf16OnTiles : FloatOutput {
  template <int kSums, int kA, int kB, class Tiles>
  static HWY_INLINE void add(Tiles& tiles) {
    tiles.template add_bf16<kSums, kA, kB>();
  }
};

// The sums of a block, which become outputs a few rows at a time, while tiles compute the next one.
template <class Type, Outputs kOutputs>
struct Sums {
  // Compiled once for all blocks: the call costs less than one instruction on tiles.
  HWY_NOINLINE void finish_some(const Product& product, size_t most) {
    const size_t count = std::min(most, rows - next);
    if (count == 0) return;
    const uint32_t* const from = values + next * width;
    width == kGroupWidth ? finish_rows<Type, kGroupWidth, kOutputs>(product, row + next, count,
                                                                    column, columns, from)
                         : finish_rows<Type, 2 * kTileCells, kOutputs>(product, row + next, count,
                                                                       column, columns, from);
    next += count;
  }

  size_t row = 0, rows = 0, column = 0, columns = 0;  // of the outputs
  size_t width = 0;                                   // of a row of values, as the block's kColumns
  size_t next = 0;                                    // row to finish
  alignas(64) uint32_t values[2 * kTileRows * 2 * kTileCells];
};

TileOperands operands_of(const Product& product, size_t row, size_t column) {
  return {.x = product.x + row * product.x_stride,
          .w = product.weights->group(column / kGroupWidth) + column % kGroupWidth,
          .x_stride = product.x_stride * 4};
}

// One block after the other: while the tiles of one are computed, the sums of the last become
// outputs.
template <class Type, class Tiles, Outputs kOutputs>
class Blocks {
 public:
  HWY_INLINE explicit Blocks(const Product& product) : product_(product) {}

  template <class Block>
  HWY_INLINE void compute(size_t row, size_t column) {
    const PackedWeights& weights = *product_.weights;
    const size_t steps = weights.group_cells / kTileCells;
    Sums<Type, kOutputs>& last = sums_[1 - current_];
    const size_t rows_a_step = (last.rows + steps - 1) / steps;
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    tiles_.template zero<2>();
    tiles_.template zero<3>();
    TileOperands at = operands_of(product_, row, column);
    for (size_t s = 0; s < steps; ++s, at.next()) {
      Block::template step<Type>(at, tiles_);
      last.finish_some(product_, rows_a_step);
    }
    Sums<Type, kOutputs>& own = sums_[current_];
    Block::store(tiles_, own.values);
    own.row = row;
    own.rows = std::min(Block::kRows, product_.rows - row);
    own.column = column;
    own.columns = std::min(Block::kColumns, weights.out_features - column);
    own.width = Block::kColumns;
    own.next = 0;
    current_ = 1 - current_;
  }

  HWY_INLINE void finish() { sums_[1 - current_].finish_some(product_, Square::kRows); }

 private:
  const Product& product_;
  Tiles tiles_;
  Sums<Type, kOutputs> sums_[2];
  int current_ = 0;
};

// Group by group: its weights come once from afar, and lie near while rows pass by. What is left of
// the rows beyond squares fills a tile, with rows whose outputs are not stored.
template <class Type, class Tiles, Outputs kOutputs>
HWY_NOINLINE void run_blocks(const Product& product) {
  Blocks<Type, Tiles, kOutputs> blocks(product);
  const size_t rows = product.rows;
  const size_t rest = rows % Square::kRows;
  const size_t in_squares = rest > kTileRows ? rows : rows - rest;
  const size_t out_features = product.weights->out_features;
  for (size_t g = product.first_group; g < product.groups_end(); ++g) {
    const size_t first = g * kGroupWidth;
    const size_t end = std::min(first + kGroupWidth, out_features);
    for (size_t column = first; column < end; column += Square::kColumns) {
      for (size_t row = 0; row < in_squares; row += Square::kRows) {
        blocks.template compute<Square>(row, column);
      }
    }
    if (in_squares < rows) blocks.template compute<Wide>(in_squares, first);
  }
  blocks.finish();
}

template <class Type, class Tiles>
void run_outputs(const Product& product) {
  switch (outputs_of(product)) {
    case Outputs::kPlain:
      return run_blocks<Type, Tiles, Outputs::kPlain>(product);
    case Outputs::kAdd:
      return run_blocks<Type, Tiles, Outputs::kAdd>(product);
    case Outputs::kRelu:
      return run_blocks<Type, Tiles, Outputs::kRelu>(product);
    case Outputs::kReluAsBf16:
      return run_blocks<Type, Tiles, Outputs::kReluAsBf16>(product);
  }
}

template <class Tiles>
void run_type(const Product& product) {
  product.weights->type == WeightType::kInt8 ? run_outputs<Int8OnTiles, Tiles>(product)
                                             : run_outputs<Bf16OnTiles, Tiles>(product);
}

void MultiplyOnTwinTiles(const Product& product) { run_type<TwinTiles>(product); }

void MultiplyOnAmx([[maybe_unused]] const Product& product) {
#if HWY_TARGET == HWY_AVX3
  run_type<AmxTiles>(product);
#endif
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {

HWY_EXPORT(MultiplyOnAmx);
HWY_EXPORT(MultiplyOnTwinTiles);

}  // namespace

void multiply_on_amx(const Product& product) {
  const TileScope scope;
  HWY_DYNAMIC_DISPATCH(MultiplyOnAmx)(product);
}

void multiply_on_twin_tiles(const Product& product) {
  HWY_DYNAMIC_DISPATCH(MultiplyOnTwinTiles)(product);
}

}  // namespace lintel
#endif  // HWY_ONCE
