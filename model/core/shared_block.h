// SPDX-License-Identifier: Apache-2.0
// SharedBlock: a block of memory with several owners.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "model/core/tensor.h"

namespace lintel {

// A handle of a block whose references are counted. The block is zeroed when it is made without
// content, and before its memory is freed with the last reference.
//
// Handles of one block may be copied, read through and released on different threads, each handle
// by one thread at a time. Only the sole owner (is_shared() is false) may write, and others then
// get no reference while it does: copies of its handle are made by its own thread.
class SharedBlock {
 public:
  SharedBlock() = default;  // no block
  // bytes: above 0. Throws std::bad_alloc.
  explicit SharedBlock(std::size_t bytes)
      : head_(new (allocate_block(bytes_of(bytes))) Head{.references{1}, .bytes = bytes}) {
    std::memset(data(), 0, bytes);
  }
  // A block with a copy of `bytes`, at least one. Throws std::bad_alloc.
  explicit SharedBlock(std::span<const std::byte> bytes)
      : head_(new (allocate_block(bytes_of(bytes.size())))
                  Head{.references{1}, .bytes = bytes.size()}) {
    std::memcpy(data(), bytes.data(), bytes.size());
  }
  SharedBlock(const SharedBlock& other) noexcept : head_(other.head_) {
    if (head_ != nullptr) head_->references.fetch_add(1, std::memory_order_relaxed);
  }
  SharedBlock(SharedBlock&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  SharedBlock& operator=(SharedBlock other) noexcept {
    std::swap(head_, other.head_);
    return *this;
  }
  ~SharedBlock() {
    // The fence orders reads by other owners before the memory is zeroed.
    if (head_ == nullptr || head_->references.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const std::size_t all = bytes_of(head_->bytes);
    head_->~Head();
    zero_memory(std::span(reinterpret_cast<std::byte*>(head_), all));
    free_block(head_);
  }

  explicit operator bool() const { return head_ != nullptr; }
  // True if there are other owners. If there are none, all that they did is visible here.
  bool is_shared() const { return head_->references.load(std::memory_order_acquire) > 1; }
  // Another block with the same bytes. Throws std::bad_alloc.
  SharedBlock copy() const { return SharedBlock(bytes()); }

  // At a cache line's boundary.
  std::byte* data() { return reinterpret_cast<std::byte*>(head_) + sizeof(Head); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(head_) + sizeof(Head); }
  std::span<const std::byte> bytes() const { return {data(), head_->bytes}; }

  // Bytes that a block of this size takes, its count included.
  static constexpr std::size_t bytes_of(std::size_t bytes) { return sizeof(Head) + bytes; }

 private:
  struct alignas(kAlignment) Head {
    std::atomic<std::uint32_t> references;
    const std::size_t bytes;
  };

  Head* head_ = nullptr;
};

}  // namespace lintel
