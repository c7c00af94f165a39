// SPDX-License-Identifier: Apache-2.0
#include "tests/support/watched_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "model/core/tensor.h"
#include "tests/support/allocation_count.h"

namespace lintel::testing {
namespace {

thread_local FreedMemory* freed_memory = nullptr;
thread_local AlignedBlocks* aligned_blocks = nullptr;  // the innermost

// A block may be longer than requested by less than this; that part is not zeroed.
constexpr std::size_t kSlack = 64;

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

FreedMemory::FreedMemory(std::size_t least_bytes) : least_bytes_(least_bytes) {
  freed_memory = this;
}

FreedMemory::FreedMemory(std::span<const std::byte> needle) : least_bytes_(0), needle_(needle) {
  freed_memory = this;
}

FreedMemory::~FreedMemory() { freed_memory = nullptr; }

void FreedMemory::look(const void* block, std::size_t size) {
  if (size < least_bytes_ + kSlack) return;
  ++blocks_;
  const std::span bytes(static_cast<const std::byte*>(block), size);
  const bool is_dirty = needle_.empty()
                            ? !is_zero(bytes.first(size - kSlack))
                            : memmem(bytes.data(), size, needle_.data(), needle_.size()) != nullptr;
  if (is_dirty) ++dirty_;
}

AlignedBlocks::AlignedBlocks(std::size_t least_bytes)
    : least_bytes_(least_bytes), outer_(aligned_blocks) {
  aligned_blocks = this;
}

AlignedBlocks::~AlignedBlocks() { aligned_blocks = outer_; }

void AlignedBlocks::note_made(const void* block, std::size_t bytes) {
  if (!recording_ || bytes < least_bytes_) return;
  if (count_ == blocks_.size()) std::abort();
  blocks_[count_++] = {static_cast<const std::byte*>(block), bytes};
}

void AlignedBlocks::note_freed(const void* block) {
  const auto end = blocks_.begin() + static_cast<std::ptrdiff_t>(count_);
  const auto kept = std::remove_if(blocks_.begin(), end,
                                   [block](const auto& bytes) { return bytes.data() == block; });
  count_ = static_cast<std::size_t>(kept - blocks_.begin());
}

std::vector<std::vector<std::byte>> AlignedBlocks::contents() const {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < count_; ++i) all.emplace_back(blocks_[i].begin(), blocks_[i].end());
  return all;
}

bool AlignedBlocks::all_zero() const {
  return std::all_of(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(count_),
                     &is_zero);
}

void note_aligned(const void* block, std::size_t bytes) {
  for (auto* blocks = aligned_blocks; blocks != nullptr; blocks = blocks->outer()) {
    blocks->note_made(block, bytes);
  }
}

namespace {

void look_at_freed(const void* block, std::size_t bytes) {
  if (freed_memory != nullptr) freed_memory->look(block, bytes);
  for (auto* blocks = aligned_blocks; blocks != nullptr; blocks = blocks->outer()) {
    blocks->note_freed(block);
  }
}

}  // namespace
}  // namespace lintel::testing

// The linker puts these around lintel::allocate_block and free_block (--wrap). Small blocks are
// malloc's, which is watched itself.
extern "C" void* __real__ZN6lintel14allocate_blockEm(std::size_t bytes);
extern "C" void __real__ZN6lintel10free_blockEPv(void* block);

extern "C" void* __wrap__ZN6lintel14allocate_blockEm(std::size_t bytes) {
  void* const block = __real__ZN6lintel14allocate_blockEm(bytes);
  if (bytes >= lintel::kLeastArenaBytes) {
    lintel::testing::count_allocation();
    lintel::testing::note_aligned(block, bytes);
  }
  return block;
}

extern "C" void __wrap__ZN6lintel10free_blockEPv(void* block) {
  const std::size_t bytes = lintel::page_arena().bytes_of(block);
  if (bytes > 0) lintel::testing::look_at_freed(block, bytes);
  __real__ZN6lintel10free_blockEPv(block);
}

#ifdef LINTEL_WATCHED_MEMORY
extern "C" void __libc_free(void* block);

// Replaces the C library's for the whole test program.
extern "C" void free(void* block) noexcept {
  if (block != nullptr) lintel::testing::look_at_freed(block, malloc_usable_size(block));
  __libc_free(block);
}
#endif
