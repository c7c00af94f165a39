// Row-major float matrices. Matrix owns 64-byte aligned memory, MatrixView borrows.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "model/core/page_arena.h"

namespace lintel {

inline constexpr std::size_t kAlignment = 64;  // bytes: a cache line and an AVX-512 register

struct AlignedFree {
  void operator()(void* p) const noexcept { free_block(p); }
};

template <typename T>
using AlignedArray = std::unique_ptr<T[], AlignedFree>;

// `count` zeroed elements at a 64-byte boundary, large ones in huge pages. Throws std::bad_alloc.
template <typename T>
AlignedArray<T> make_aligned(std::size_t count);

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

}  // namespace lintel
