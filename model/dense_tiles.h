// How a product is cut into tiles: shared by the kernels of every instruction set.
#pragma once

#include <cstddef>
#include <cstring>

#include "model/dense_kernels.h"

namespace lintel {

// Computes some rows from `row` on for one group of columns. `fetch_ahead`: nobody has read the
// group yet, so the next weights should be asked for.
using Tile = void (*)(const Product& product, std::size_t group, std::size_t row, bool fetch_ahead);

struct TileSet {
  Tile six_rows;
  Tile four_rows;
  Tile two_rows;
  Tile one_row;
};

// Group by group, so that the weights of a group stay in the first cache while the rows pass by.
inline void run_tiles(const Product& product, const TileSet& tiles) {
  for (std::size_t g = 0; g < product.weights->num_groups(); ++g) {
    std::size_t row = 0;
    for (; row + 6 <= product.rows; row += 6) tiles.six_rows(product, g, row, row == 0);
    if (row + 4 <= product.rows) {
      tiles.four_rows(product, g, row, row == 0);
      row += 4;
    }
    if (row + 2 <= product.rows) {
      tiles.two_rows(product, g, row, row == 0);
      row += 2;
    }
    if (row < product.rows) tiles.one_row(product, g, row, row == 0);
  }
}

// How far ahead of its reading a tile asks for weights: 16 cells of a whole group.
inline constexpr std::size_t kFetchAhead = 16 * kGroupWidth;  // cells

}  // namespace lintel
