#include "model/lora/adapted_rows.h"

#include <algorithm>
#include <functional>

namespace lintel {

void AdaptedRows::reserve(std::size_t max_rows) {
  found_.reserve(max_rows);
  rows_.reserve(max_rows);
  groups_.reserve(max_rows);
}

void AdaptedRows::group() {
  std::ranges::sort(found_, [](const auto& a, const auto& b) {
    return a.first != b.first ? std::less<>()(a.first, b.first) : a.second < b.second;
  });
  for (const auto& [adapter, row] : found_) {
    if (groups_.empty() || groups_.back().adapter != adapter) {
      groups_.push_back({adapter, rows_.size(), 0});
    }
    ++groups_.back().count;
    rows_.push_back(row);
  }
}

void AdaptedRows::list(AdaptedProduct product, std::size_t weights, PrefetchList& prefetch) const {
  constexpr std::size_t kMostGroups = 16;
  for (const Group& group : std::span(groups_).first(std::min(groups_.size(), kMostGroups))) {
    group.adapter->list(product, weights, prefetch);
  }
}

void AdaptedRows::add(AdaptedProduct product, std::size_t weights, MatrixView<const float> x,
                      MatrixView<float> y) const {
  for (const auto& [adapter, first, count] : groups_) {
    adapter->add(product, weights, std::span(rows_).subspan(first, count), x, y);
  }
}

}  // namespace lintel
