// SPDX-License-Identifier: Apache-2.0
// SessionError: reasons why a session cannot be used, continued or stored.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lintel {

enum class SessionError {
  kNone,
  kNotFound,  // also for a session of another owner, whose existence stays hidden
  kUnloaded,  // was closed with its model
  kBusy,
  kNeedsMaxTokens,
  kOutOfRange,      // a position that the history does not reach
  kDigestMismatch,  // the history is not the expected one
  // Sessions in a store:
  kModelMismatch,     // its model is not loaded, or another one under its name
  kCallInterrupted,   // a call has to be repeated or given up first
  kPositionMismatch,  // it does not stand where the caller believes
  kNumericsChanged,   // a call cannot be drawn again here: other tokens would come of it
  kNumericsRefused,   // another machine's bits are in it, and this server refuses to continue such
                      // sessions
  kCallDiffers,       // the repeat differs from the original call
  kNoProbabilities,   // the call is replayed, not run
  kHeld,              // by another process
  kFenced,            // another process took it over during a call here
  kRolledBack,        // the storage went back to before an acknowledged write; kFenced to callers
  kDamaged,           // its stored data is not consistent
  kStale,             // another process continued it: has to be read again
  // The storage:
  kStoreFull,
  kStoreAway,    // for now
  kStoreBroken,  // until a restart: a write failed, and its effect is unknown
  // Memory and places, checked in this order:
  kTooLarge,  // never fits, even with nothing else there
  kOwnerTooManySessions,
  kOwnerOutOfMemory,
  kTooManySessions,
  kOutOfMemory,
};

struct SessionRefusal {
  SessionError error = SessionError::kNone;
  // Set if memory was refused; for kTooLarge, bytes_free is all the memory there is.
  std::size_t bytes_needed = 0;
  std::size_t bytes_free = 0;
  // kOutOfRange: the positions that there are. kCallInterrupted and kNumericsChanged: the start of
  // the call and the end of its stored tokens. kPositionMismatch: `highest`, the session's
  // position, `lowest`, the start of its interrupted call (-1: there is none), and `expected`, the
  // position its caller expects. kTooLarge: `expected`, the tokens that a sequence was to have, and
  // `highest`, the most that there is memory for; 0: they make no difference, or not one fits.
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  std::int64_t expected = 0;
  // kHeld: the holder, and the longest time until it is free, if they are known.
  std::string holder{};
  std::chrono::milliseconds held_for{};

  // True if something was refused.
  explicit operator bool() const { return error != SessionError::kNone; }
};

const char* to_string(SessionError error);  // as logs have it, e.g. "rolled back"

}  // namespace lintel
