// SPDX-License-Identifier: Apache-2.0
// Looks into memory as its next owner could: at what freed blocks hold, and at what is left in
// blocks that stay. Not under the sanitizers, which have allocators of their own.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LINTEL_WATCHED_MEMORY 1
#endif

namespace lintel::testing {

// The blocks that the calling thread frees while it lives. One at a time.
class FreedMemory {
 public:
  // Watches blocks of at least so many bytes. A dirty one holds anything but zeroes.
  explicit FreedMemory(std::size_t least_bytes);
  // All blocks. Dirty is what holds these bytes, which outlive the object.
  explicit FreedMemory(std::span<const std::byte> needle);
  ~FreedMemory();
  FreedMemory(const FreedMemory&) = delete;
  FreedMemory& operator=(const FreedMemory&) = delete;

  std::size_t blocks() const { return blocks_; }
  std::size_t dirty() const { return dirty_; }

  // For those that free only. The last 64 bytes may not have been asked for.
  void look(const void* block, std::size_t bytes);

 private:
  const std::size_t least_bytes_;
  const std::span<const std::byte> needle_;
  std::size_t blocks_ = 0;
  std::size_t dirty_ = 0;
};

// The blocks that make_aligned gets on the calling thread from its construction until stop(), but
// for those that have been freed since. Several may live, nested.
class AlignedBlocks {
 public:
  explicit AlignedBlocks(std::size_t least_bytes = 0);
  ~AlignedBlocks();
  AlignedBlocks(const AlignedBlocks&) = delete;
  AlignedBlocks& operator=(const AlignedBlocks&) = delete;

  void stop() { recording_ = false; }
  // The contents of the blocks now, in the order in which they were made.
  std::vector<std::vector<std::byte>> contents() const;
  bool all_zero() const;

  // For those that make and free blocks only.
  void note_made(const void* block, std::size_t bytes);
  void note_freed(const void* block);
  AlignedBlocks* outer() const { return outer_; }

 private:
  const std::size_t least_bytes_;
  AlignedBlocks* const outer_;
  bool recording_ = true;
  std::array<std::span<const std::byte>, 256> blocks_;  // nothing is allocated to note a block
  std::size_t count_ = 0;
};

// Reports blocks of the test program's aligned_alloc() and its like.
void note_aligned(const void* block, std::size_t bytes);

}  // namespace lintel::testing
