// guarded(): an exception ends what it came from, and nothing beside it.
#pragma once

#include <utility>

namespace lintel {

// Returns what `body` returns or, when it throws, what `caught` does, which is called while the
// exception is handled and may look at it. REQUIRES: `caught` throws nothing.
template <typename Body, typename Caught>
auto guarded(Body&& body, Caught&& caught) noexcept -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return std::forward<Caught>(caught)();
  }
}

}  // namespace lintel
