// SessionRefusal: why the session store gives no session, or no memory for a sequence.
#pragma once

#include <cstddef>

namespace lintel {

enum class SessionError {
  kNone,
  kNotFound,  // also for a session of another owner: nothing tells that it exists
  kUnloaded,  // was closed with its model
  kBusy,
  kNeedsMaxTokens,
  // Of memory and places, and asked for in this order:
  kTooLarge,  // never fits, even with nothing else there
  kOwnerTooManySessions,
  kOwnerOutOfMemory,
  kTooManySessions,
  kOutOfMemory,
};

struct SessionRefusal {
  SessionError error = SessionError::kNone;
  // Where memory was asked for; of kTooLarge, bytes_free is what there is in all.
  std::size_t bytes_needed = 0;
  std::size_t bytes_free = 0;

  // Whether it is one.
  explicit operator bool() const { return error != SessionError::kNone; }
};

}  // namespace lintel
