// Counts what operator new and aligned_alloc are asked for on the calling thread.
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

}  // namespace lintel::testing
