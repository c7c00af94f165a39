// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/counted_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

std::atomic<std::size_t> held_bytes{0};
std::atomic<std::size_t> peak_held_bytes{0};
std::atomic<std::size_t> limit_held_bytes{kNoLimit};
std::size_t held_at_start = 0;

void* allocate(std::size_t size) {
  if (size > limit_held_bytes || held_bytes + size > limit_held_bytes) throw std::bad_alloc();
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  const std::size_t held = held_bytes += malloc_usable_size(p);
  if (held > peak_held_bytes) peak_held_bytes = held;
  return p;
}

void release(void* p) noexcept {
  if (p == nullptr) return;
  held_bytes -= malloc_usable_size(p);
  std::free(p);
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
  return allocate(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return operator new(size, std::nothrow);
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }

namespace lintel::fuzz {

MemoryLimit::MemoryLimit(std::size_t limit_bytes) {
  held_at_start = held_bytes;
  peak_held_bytes = held_at_start;
  limit_held_bytes = held_at_start + limit_bytes;
}

MemoryLimit::~MemoryLimit() { limit_held_bytes = kNoLimit; }

std::size_t MemoryLimit::peak_bytes() const { return peak_held_bytes - held_at_start; }

}  // namespace lintel::fuzz
