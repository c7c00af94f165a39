// SPDX-License-Identifier: Apache-2.0
// The tiles that a product is cut into: shared by the kernels of every instruction set.
#pragma once

#include <cstddef>
#include <cstring>

#include "model/ops/dense_kernels.h"

namespace lintel {

// The memory that a tile prefetches while it computes: `lines` cache lines of weights with every
// cell, from `from` on, and one line of `other` if that is not null.
struct Fetch {
  enum class Lines { kNone, kOne, kTwo, kAhead };
  // kAhead: the tile's own weights, kFetchAhead cells before it reads them.
  Lines lines = Lines::kNone;
  const std::uint32_t* from = nullptr;
  const float* other = nullptr;  // of Product::prefetch; a kernel may leave it
};

// Computes some rows from `row` on for one group of columns.
using Tile = void (*)(const Product& product, std::size_t group, std::size_t row,
                      const Fetch& fetch);

struct TileSet {
  Tile six_rows;
  Tile four_rows;
  Tile two_rows;
  Tile one_row;
};

inline constexpr std::size_t kLineCells = 16;  // of 64 bytes

// The distance at which a single tile prefetches weights: 16 cells of a whole group.
inline constexpr std::size_t kFetchAhead = 16 * kGroupWidth;  // cells

// Group by group, so that the weights of a group stay in the first cache while the rows pass by.
// The tiles of a group share the work of fetching the next one: the last cache gives its lines no
// faster than a tile of six rows uses them, so no tile should have to wait for all of them.
inline void run_tiles(const Product& product, const TileSet& tiles) {
  const std::size_t rows = product.rows;
  const std::size_t rest = rows % 6;
  const std::size_t num_tiles = rows / 6 + rest / 4 + rest % 4 / 2 + rest % 2;
  const std::size_t row_cells = product.weights->row_cells;
  const std::size_t per_cell = num_tiles <= 2 ? 2 : 1;  // lines; a group has four a cell
  for (std::size_t g = product.first_group; g < product.groups_end(); ++g) {
    const std::uint32_t* const next = product.weights->group(g + 1);
    std::size_t tile = 0;
    const auto fetch = [&]() -> Fetch {
      const float* const other = product.prefetch ? product.prefetch->take(row_cells) : nullptr;
      if (num_tiles == 1) return {Fetch::Lines::kAhead, nullptr, other};
      const std::size_t first_line = tile++ * per_cell * row_cells;
      if (first_line >= 4 * row_cells) return {Fetch::Lines::kNone, nullptr, other};
      return {per_cell == 2 ? Fetch::Lines::kTwo : Fetch::Lines::kOne,
              next + first_line * kLineCells, other};
    };
    std::size_t row = 0;
    for (; row + 6 <= rows; row += 6) tiles.six_rows(product, g, row, fetch());
    if (row + 4 <= rows) {
      tiles.four_rows(product, g, row, fetch());
      row += 4;
    }
    if (row + 2 <= rows) {
      tiles.two_rows(product, g, row, fetch());
      row += 2;
    }
    if (row < rows) tiles.one_row(product, g, row, fetch());
  }
}

}  // namespace lintel
