#include "tests/model/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {
thread_local std::size_t allocations = 0;
}

// Replaces the global operator for the whole test program.
void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}

void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace lintel::testing {

AllocationCount::AllocationCount() : start_(allocations) {}
std::size_t AllocationCount::so_far() const { return allocations - start_; }

}  // namespace lintel::testing
