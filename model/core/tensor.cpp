// SPDX-License-Identifier: Apache-2.0
#include "model/core/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace lintel {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSmallPage = 4096;

std::size_t up_to(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

// Sanitizers watch each block of malloc's, and none of an arena's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasArena = false;
#else
constexpr bool kHasArena = true;
#endif

// Fresh memory at a slab's boundary.
void* map_at_slab(std::size_t bytes) {
  const std::size_t with_room = bytes + PageArena::kSlabBytes;
  void* const mapped =
      ::mmap(nullptr, with_room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = up_to(begin, PageArena::kSlabBytes);
  if (aligned > begin) ::munmap(mapped, aligned - begin);
  const std::uintptr_t end = aligned + bytes;
  if (begin + with_room > end) {
    ::munmap(reinterpret_cast<void*>(end), begin + with_room - end);
  }
  void* const result = reinterpret_cast<void*>(aligned);
  // A system without huge pages refuses, and small ones do as well.
  ::madvise(result, bytes, MADV_HUGEPAGE);
  return result;
}

std::uintptr_t slab_of(const void* block) {
  return reinterpret_cast<std::uintptr_t>(block) / PageArena::kSlabBytes * PageArena::kSlabBytes;
}

}  // namespace

PageArena::~PageArena() {
  for (const auto& [address, slab] : slabs_) {
    ::munmap(reinterpret_cast<void*>(address), kSlabBytes);
  }
}

void* PageArena::allocate(std::size_t bytes) {
  bytes = up_to(bytes, bytes > kMostShared ? kSmallPage : kLine);
  // Its node first: what throws here leaves nothing behind.
  std::unordered_map<const void*, std::size_t> block;
  auto node = block.extract(block.emplace(nullptr, bytes).first);
  const std::lock_guard lock(mutex_);
  blocks_.reserve(blocks_.size() + 1);
  void* const memory = bytes > kMostShared ? map_at_slab(bytes) : share(bytes);
  if (bytes > kMostShared) mapped_ += bytes;
  used_ += bytes;
  node.key() = memory;
  blocks_.insert(std::move(node));
  return memory;
}

void* PageArena::share(std::size_t bytes) {
  // The slab with the least room that is enough.
  const auto found = by_largest_.lower_bound({bytes, 0});
  if (found != by_largest_.end()) return take(slabs_.find(found->second), bytes);
  Slabs slab;
  auto slab_node = slab.extract(slab.emplace(0, Slab{}).first);
  std::set<std::pair<std::size_t, std::uintptr_t>> largest;
  auto largest_node = largest.extract(largest.emplace(kSlabBytes, 0).first);
  void* const memory = map_at_slab(kSlabBytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  slab_node.key() = address;
  slab_node.mapped() = {.gaps = new (memory) Gap{kSlabBytes, nullptr}, .largest = kSlabBytes};
  largest_node.value() = {kSlabBytes, address};
  by_largest_.insert(std::move(largest_node));
  mapped_ += kSlabBytes;
  return take(slabs_.insert(std::move(slab_node)).position, bytes);
}

void* PageArena::take(Slabs::iterator slab, std::size_t bytes) {
  if (slab->first == empty_) empty_ = 0;
  // The smallest gap that is enough; the first of several.
  Gap** best = nullptr;
  for (Gap** at = &slab->second.gaps; *at != nullptr; at = &(*at)->next) {
    if ((*at)->bytes >= bytes && (best == nullptr || (*at)->bytes < (*best)->bytes)) best = at;
  }
  Gap* const gap = *best;
  if (gap->bytes == bytes) {
    *best = gap->next;
  } else {
    *best = new (reinterpret_cast<std::byte*>(gap) + bytes) Gap{gap->bytes - bytes, gap->next};
  }
  note_largest(slab);
  return gap;
}

void PageArena::give_back(Slabs::iterator slab, void* block, std::size_t bytes) {
  const auto end_of = [](Gap* gap) { return reinterpret_cast<std::byte*>(gap) + gap->bytes; };
  Gap* before = nullptr;
  Gap* after = slab->second.gaps;
  while (after != nullptr && after < block) before = std::exchange(after, after->next);
  Gap* gap = new (block) Gap{bytes, after};
  if (after != nullptr && end_of(gap) == reinterpret_cast<std::byte*>(after)) {
    *gap = {gap->bytes + after->bytes, after->next};
  }
  if (before == nullptr) {
    slab->second.gaps = gap;
  } else if (end_of(before) == reinterpret_cast<std::byte*>(gap)) {
    *before = {before->bytes + gap->bytes, gap->next};
  } else {
    before->next = gap;
  }
  note_largest(slab);
}

void PageArena::note_largest(Slabs::iterator slab) {
  std::size_t largest = 0;
  for (const Gap* gap = slab->second.gaps; gap != nullptr; gap = gap->next) {
    largest = std::max(largest, gap->bytes);
  }
  if (largest == slab->second.largest) return;
  auto node = by_largest_.extract({slab->second.largest, slab->first});
  node.value().first = slab->second.largest = largest;
  by_largest_.insert(std::move(node));
}

bool PageArena::free(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return false;
  const std::size_t bytes = found->second;
  blocks_.erase(found);
  used_ -= bytes;
  if (bytes > kMostShared) {
    unmap(reinterpret_cast<std::uintptr_t>(block), bytes);
    return true;
  }
  const auto slab = slabs_.find(slab_of(block));
  give_back(slab, block, bytes);
  if (slab->second.largest < kSlabBytes) return true;
  if (empty_ == 0) {
    empty_ = slab->first;
    return true;
  }
  by_largest_.erase({kSlabBytes, slab->first});
  unmap(slab->first, kSlabBytes);
  slabs_.erase(slab);
  return true;
}

void PageArena::unmap(std::uintptr_t address, std::size_t bytes) {
  ::munmap(reinterpret_cast<void*>(address), bytes);
  mapped_ -= bytes;
}

std::size_t PageArena::bytes_of(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? 0 : found->second;
}

std::size_t PageArena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::size_t PageArena::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  return mapped_;
}

PageArena& page_arena() {
  static auto& arena = *new PageArena();  // outlives what is freed at exit
  return arena;
}

void* allocate_block(std::size_t bytes) {
  if (kHasArena && bytes >= kLeastArenaBytes) return page_arena().allocate(bytes);
  void* const block = std::aligned_alloc(kLine, std::max(up_to(bytes, kLine), kLine));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

bool is_allocated_zeroed(std::size_t bytes) {
  return kHasArena && bytes > PageArena::kMostShared;  // in a mapping of its own
}

void free_block(void* block) noexcept {
  if (!page_arena().free(block)) std::free(block);
}

}  // namespace lintel
