// Counts what operator new has given out, in the whole executable.
#pragma once

#include <cstddef>

namespace lintel::fuzz {

// While one lives, allocations that would take the executable more than limit_bytes beyond what it
// held at construction throw std::bad_alloc. One at a time.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t limit_bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  std::size_t peak_bytes() const;  // beyond what was held at construction
};

}  // namespace lintel::fuzz
