// PagedArray: memory that grows by whole pages, so that what is there is never copied to grow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "model/core/tensor.h"

namespace lintel {

// Owns pages of page_elements zeroed elements each, every page at a 64-byte boundary and at one
// address for as long as it lives. Pages are zeroed before their memory goes back. One thread at a
// time. T is trivially copyable.
template <typename T>
class PagedArray {
 public:
  explicit PagedArray(std::size_t page_elements) : page_elements_(page_elements) {}
  ~PagedArray() { clear(); }
  PagedArray(PagedArray&&) = default;  // leaves the other one empty
  PagedArray& operator=(PagedArray&& other) noexcept {
    if (this == &other) return *this;
    clear();
    page_elements_ = other.page_elements_;
    pages_ = std::move(other.pages_);
    return *this;
  }

  T* page(std::size_t i) { return pages_[i].get(); }
  const T* page(std::size_t i) const { return pages_[i].get(); }
  std::size_t num_pages() const { return pages_.size(); }

  // Throws std::bad_alloc and then holds what it held.
  void grow_to(std::size_t num_pages) {
    // Exactly this much, so that bytes() can be known in advance.
    if (num_pages > pages_.capacity()) pages_.reserve(table_size(num_pages));
    while (pages_.size() < num_pages) pages_.push_back(make_aligned<T>(page_elements_));
  }

  // Zeroes and frees the pages after the first num_pages.
  void shrink_to(std::size_t num_pages) {
    if (num_pages >= pages_.size()) return;
    for (std::size_t i = num_pages; i < pages_.size(); ++i) {
      zero_memory(std::span(page(i), page_elements_));
    }
    std::vector<AlignedArray<T>> kept;
    kept.reserve(table_size(num_pages));
    std::move(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(num_pages),
              std::back_inserter(kept));
    pages_ = std::move(kept);
  }

  // Becomes equal to `other`, which has pages of the same size.
  void assign(const PagedArray& other) {
    if (num_pages() != other.num_pages()) {
      clear();
      grow_to(other.num_pages());
    }
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      std::copy_n(other.page(i), page_elements_, page(i));
    }
  }

  // Zeroes and frees everything.
  void clear() {
    for (auto& page : pages_) zero_memory(std::span(page.get(), page_elements_));
    std::vector<AlignedArray<T>>().swap(pages_);
  }

  // Of the pages and of the table of their addresses.
  std::size_t bytes() const {
    return pages_.size() * page_elements_ * sizeof(T) + pages_.capacity() * sizeof(AlignedArray<T>);
  }
  // bytes() of an array that has grown to num_pages.
  static std::size_t bytes_of(std::size_t num_pages, std::size_t page_elements) {
    return num_pages * page_elements * sizeof(T) + table_size(num_pages) * sizeof(AlignedArray<T>);
  }

 private:
  // Addresses are added by a cache line at a time.
  static std::size_t table_size(std::size_t num_pages) {
    constexpr std::size_t kStep = kAlignment / sizeof(AlignedArray<T>);
    return (num_pages + kStep - 1) / kStep * kStep;
  }

  std::size_t page_elements_;
  std::vector<AlignedArray<T>> pages_;
};

}  // namespace lintel
