// AdaptedRows: which rows of a pass go through an adapter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/core/tensor.h"
#include "model/lora/adapter.h"

namespace lintel {

// Grouped by adapter, so that the matrices of each are read once a product. Working memory of one
// thread: it allocates nothing within what was reserved.
class AdaptedRows {
 public:
  void reserve(std::size_t max_rows);
  void clear() { rows_.clear(), groups_.clear(), found_.clear(); }
  // Row by row; null: it has none. The adapter outlives the pass.
  void note(std::size_t row, const Adapter* adapter) {
    if (adapter != nullptr) found_.emplace_back(adapter, static_cast<std::uint32_t>(row));
  }
  void group();  // once all are noted

  // What add() will read, as far as a core's cache is likely to hold it: a product that goes before
  // asks for it.
  void list(AdaptedProduct product, std::size_t weights, PrefetchList& prefetch) const;

  bool empty() const { return rows_.empty(); }
  // What the adapters add to a product of x.
  void add(AdaptedProduct product, std::size_t weights, MatrixView<const float> x,
           MatrixView<float> y) const;

 private:
  struct Group {
    const Adapter* adapter;
    std::size_t first;  // of rows_
    std::size_t count;
  };
  std::vector<std::pair<const Adapter*, std::uint32_t>> found_;
  std::vector<std::uint32_t> rows_;
  std::vector<Group> groups_;
};

}  // namespace lintel
