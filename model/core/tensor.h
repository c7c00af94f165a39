// SPDX-License-Identifier: Apache-2.0
// Row-major float matrices. Matrix owns 64-byte aligned memory, MatrixView borrows.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lintel {

// PageArena: memory of weights and states, in huge pages where the system has them.

// A step reads far more memory than a processor's address tables (TLB) cover in pages of 4 KB. A
// state of 270 KB holds no page of 2 MB, so blocks share slabs of one such page each, for which the
// system is asked (madvise); larger blocks have a mapping of their own. Unused memory is returned
// slab by slab, except one empty slab, which a session that opens and closes would else map again
// each time. Thread-safe.
class PageArena {
 public:
  static constexpr std::size_t kSlabBytes = std::size_t{2} << 20;
  static constexpr std::size_t kMostShared = kSlabBytes / 2;  // of a block in a slab

  PageArena() = default;
  ~PageArena();
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;

  // At a cache line's boundary, with any content. bytes: above 0. Throws std::bad_alloc.
  void* allocate(std::size_t bytes);
  // Frees `block` if it came from allocate(). Returns whether it did.
  bool free(void* block) noexcept;
  // The length of a block; 0: `block` did not come from allocate().
  std::size_t bytes_of(const void* block) const;

  // Bytes of blocks in use, and those requested from the system.
  std::size_t used_bytes() const;
  std::size_t mapped_bytes() const;

 private:
  // A free part of a slab, stored at its own beginning. Listed in order of addresses.
  struct Gap {
    std::size_t bytes;
    Gap* next;
  };
  struct Slab {
    Gap* gaps = nullptr;
    std::size_t largest = 0;  // gap
  };
  using Slabs = std::map<std::uintptr_t, Slab>;  // by address

  void* share(std::size_t bytes);
  void* take(Slabs::iterator slab, std::size_t bytes);
  void give_back(Slabs::iterator slab, void* block, std::size_t bytes);
  void note_largest(Slabs::iterator slab);
  void unmap(std::uintptr_t address, std::size_t bytes);

  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::size_t> blocks_;  // bytes
  Slabs slabs_;
  std::set<std::pair<std::size_t, std::uintptr_t>> by_largest_;  // gap; all slabs
  std::uintptr_t empty_ = 0;                                     // slab; 0: none is
  std::size_t used_ = 0;
  std::size_t mapped_ = 0;
};

// The process's. Blocks of fewer bytes are malloc's.
PageArena& page_arena();
inline constexpr std::size_t kLeastArenaBytes = std::size_t{16} << 10;

// A block at a cache line's boundary from the arena or, small, from malloc; with any content.
// Throws std::bad_alloc.
void* allocate_block(std::size_t bytes);
// True if allocate_block() of this many bytes returns zeros: pages fresh from the system.
bool is_allocated_zeroed(std::size_t bytes);
void free_block(void* block) noexcept;

inline constexpr std::size_t kAlignment = 64;  // bytes: a cache line and an AVX-512 register

struct AlignedFree {
  void operator()(void* p) const noexcept { free_block(p); }
};

template <typename T>
using AlignedArray = std::unique_ptr<T[], AlignedFree>;

// `count` zeroed elements at a 64-byte boundary, large ones in huge pages. Throws std::bad_alloc.
template <typename T>
AlignedArray<T> make_aligned(std::size_t count);
// The same for who writes all of it soon, on several threads: large ones get their pages then.
template <typename T>
AlignedArray<T> make_untouched(std::size_t count);

// Zeroes memory that is about to be freed; the optimiser cannot drop it (promise 5).
template <typename T>
void zero_memory(std::span<T> memory) {
  if (!memory.empty()) explicit_bzero(memory.data(), memory.size_bytes());
}

// A borrowed [rows, cols] block whose rows are `stride` elements apart. Valid as long as what it
// borrows from. Cheap: pass by value.
template <typename T>
class MatrixView {
 public:
  MatrixView() = default;
  MatrixView(T* data, std::size_t rows, std::size_t cols, std::size_t stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {
    assert(stride >= cols);
  }
  // A mutable view reads as a const one.
  operator MatrixView<const T>() const { return {data_, rows_, cols_, stride_}; }

  T* data() const { return data_; }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  std::size_t stride() const { return stride_; }
  std::span<T> row(std::size_t r) const {
    assert(r < rows_);
    return {data_ + r * stride_, cols_};
  }
  // Columns first .. first + count - 1 of every row.
  MatrixView cols_from(std::size_t first, std::size_t count) const {
    assert(first + count <= cols_);
    return {data_ + first, rows_, count, stride_};
  }
  MatrixView rows_from(std::size_t first, std::size_t count) const {
    assert(first + count <= rows_);
    return {data_ + first * stride_, count, cols_, stride_};
  }

 private:
  T* data_ = nullptr;
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  std::size_t stride_ = 0;
};

// An owned, zero-initialised [rows, cols] matrix without padding between rows.
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t cols)
      : rows_(rows), cols_(cols), data_(make_aligned<float>(rows * cols)) {}

  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  MatrixView<float> view() { return {data_.get(), rows_, cols_, cols_}; }
  MatrixView<const float> view() const { return {data_.get(), rows_, cols_, cols_}; }
  std::span<float> row(std::size_t r) { return view().row(r); }
  std::span<const float> row(std::size_t r) const { return view().row(r); }
  std::span<float> values() { return {data_.get(), rows_ * cols_}; }
  std::span<const float> values() const { return {data_.get(), rows_ * cols_}; }

 private:
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  AlignedArray<float> data_;
};

template <typename T>
AlignedArray<T> make_aligned(std::size_t count) {
  T* const p = static_cast<T*>(allocate_block(count * sizeof(T)));
  std::uninitialized_value_construct_n(p, count);
  return AlignedArray<T>(p);
}

template <typename T>
AlignedArray<T> make_untouched(std::size_t count) {
  static_assert(std::is_trivial_v<T>);
  if (!is_allocated_zeroed(count * sizeof(T))) return make_aligned<T>(count);
  return AlignedArray<T>(static_cast<T*>(allocate_block(count * sizeof(T))));
}

// PagedArray: memory that grows by whole pages, so that what is there is never copied to grow.

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

  // Bytes of the pages and of the table of their addresses.
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
