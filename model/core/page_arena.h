// PageArena: memory of weights and states, in huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace lintel {

// What a step reads is far larger than what a processor's address tables (TLB) reach in pages of 4
// KB. A state of 270 KB holds no page of 2 MB, so blocks share slabs of one such page each, for
// which the system is asked (madvise); larger blocks have a mapping of their own. What is not in
// use is returned slab by slab, except one empty slab, which a session that opens and closes would
// else map again each time. Thread-safe.
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
  // Whether `block` came from allocate(); then it is freed.
  bool free(void* block) noexcept;
  // How long a block is; 0: it is none.
  std::size_t bytes_of(const void* block) const;

  // Bytes of blocks in use, and those requested from the system.
  std::size_t used_bytes() const;
  std::size_t mapped_bytes() const;

 private:
  // Of a slab, where it begins; lies there itself. In order of addresses.
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
void free_block(void* block) noexcept;

}  // namespace lintel
