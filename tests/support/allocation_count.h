// SPDX-License-Identifier: Apache-2.0
// Counts what operator new, aligned_alloc and the arena of large blocks are asked for on the
// calling thread, and has operator new fail there.
#pragma once

#include <cstddef>

namespace lintel::testing {

class AllocationCount {
 public:
  AllocationCount();  // from here on
  std::size_t so_far() const;

 private:
  std::size_t start_;
};

// For those that count what is not operator new's.
void count_allocation();

// While it lives operator new fails once on the calling thread, after `successes` allocations.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::size_t successes);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  bool has_failed() const;
};

}  // namespace lintel::testing
