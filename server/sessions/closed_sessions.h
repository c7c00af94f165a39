// ClosedSessions: ids of sessions that went with their models, so that their owners learn why.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <new>
#include <string>

#include "server/sessions/session_memory.h"

namespace lintel {

// Remembers the last kMost. Not thread-safe: the store's mutex guards it.
class ClosedSessions {
 public:
  static constexpr std::size_t kMost = 10'000;

  // Where there is no memory for it, the session is simply not found.
  void remember(const std::string& id, const Owner& owner) noexcept {
    try {
      if (order_.size() == kMost) {
        owners_.erase(order_.front());
        order_.pop_front();
      }
      order_.push_back(id);
      owners_.emplace(id, owner);
    } catch (const std::bad_alloc&) {
    }
  }

  // Whether the owner had such a session.
  bool had(const std::string& id, const Owner& owner) const {
    const auto found = owners_.find(id);
    return found != owners_.end() && found->second == owner;
  }

 private:
  std::map<std::string, Owner> owners_;  // by id
  std::deque<std::string> order_;        // in which they are forgotten
};

}  // namespace lintel
