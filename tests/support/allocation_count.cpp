// SPDX-License-Identifier: Apache-2.0
#include "tests/support/allocation_count.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

#include "tests/support/watched_memory.h"

namespace {
thread_local std::size_t allocations = 0;
thread_local std::size_t until_failure = 0;  // the one that makes this 0 fails; 0: none does
}  // namespace

// Replaces the global operators for the whole test program: all of them, since a sanitizer has its
// own of those that are left and refuses to see one of each meet.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  if (until_failure > 0 && --until_failure == 0) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}

void* operator new(std::size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}

// Allocates for make_aligned. The sanitizers have their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  ++allocations;
  void* const block = memalign(alignment, size);
  lintel::testing::note_aligned(block, size);
  return block;
}
#endif

void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return operator new(size, std::nothrow);
}

void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace lintel::testing {

void count_allocation() { ++allocations; }

AllocationCount::AllocationCount() : start_(allocations) {}
std::size_t AllocationCount::so_far() const { return allocations - start_; }

FailingAllocation::FailingAllocation(std::size_t successes) { until_failure = successes + 1; }
FailingAllocation::~FailingAllocation() { until_failure = 0; }
bool FailingAllocation::has_failed() const { return until_failure == 0; }

}  // namespace lintel::testing
