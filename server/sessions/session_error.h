// SPDX-License-Identifier: Apache-2.0
// SessionError: why a session cannot be had, continued or stored.
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
  // Of sessions in a store:
  kModelMismatch,     // its model is not loaded, or another one under its name
  kCallInterrupted,   // a call has to be repeated or given up first
  kPositionMismatch,  // it does not stand where the caller believes
  kNumericsChanged,   // a call cannot be drawn again here: other tokens would come of it
  kNumericsRefused,   // another machine's bits are in it, and this server refuses to continue such
                      // sessions
  kCallDiffers,       // a repeat asks for something else than the call did
  kNoProbabilities,   // of a call that is replayed, not run
  kHeld,              // by another process
  kFenced,            // another process took it over while a call here ran
  kRolledBack,        // the storage went back to before an acknowledged write; kFenced to callers
  kDamaged,           // what is stored of it cannot be right
  kStale,             // another process continued it: to be read again
  // Of the storage:
  kStoreFull,
  kStoreAway,    // for now
  kStoreBroken,  // until a restart: a write failed, and its effect is unknown
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
  // Of kOutOfRange: the positions that there are. Of kCallInterrupted and kNumericsChanged: where
  // the call began and what is stored of it. Of kPositionMismatch: `highest`, where it stands,
  // `lowest`, where its interrupted call began (-1: there is none), and where its caller believes
  // it to stand.
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  std::int64_t expected = 0;
  // Of kHeld: by whom, and for how long at most, where that is known.
  std::string holder{};
  std::chrono::milliseconds held_for{};

  // Whether it is one.
  explicit operator bool() const { return error != SessionError::kNone; }
};

const char* to_string(SessionError error);  // as logs have it, e.g. "rolled back"

}  // namespace lintel
