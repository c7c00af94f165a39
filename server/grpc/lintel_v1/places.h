// Places: limits the concurrent calls of a kind.
#pragma once

#include <atomic>
#include <memory>

namespace lintel {

// Thread-safe; outlives what it gives.
class Places {
 public:
  explicit Places(int most) : free_(most) {}

  // Held until the pointer and its copies are gone; null where none is free.
  std::shared_ptr<void> take() {
    if (free_.fetch_sub(1) > 0) {
      return {&free_, [](std::atomic<int>* free) { free->fetch_add(1); }};
    }
    free_.fetch_add(1);
    return nullptr;
  }

 private:
  std::atomic<int> free_;
};

}  // namespace lintel
