// SPDX-License-Identifier: Apache-2.0
// SessionMemory: the memory and places that sequences may take, all together and for each owner.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "server/core/mutex.h"
#include "server/core/notification.h"
#include "server/sessions/session_error.h"

namespace lintel {

// The identity a session belongs to; empty if callers are not identified.
using Owner = std::string;

// Memory that is used only as long as nothing else needs it: it causes no refusals.
class SpareMemory {
 public:
  virtual ~SpareMemory() = default;
  // Frees what it holds beyond `bytes`, at once. Thread-safe.
  virtual void keep_within(std::size_t bytes) noexcept = 0;
};

// Thread-safe. Knows nothing of the sequences themselves; outlives its reservations.
class SessionMemory {
 public:
  struct Limits {
    std::size_t bytes = 0;
    std::size_t places = 0;  // 0: only memory limits them
    // One owner's share of the above. 0: no limit of its own.
    std::size_t bytes_per_owner = 0;
    std::size_t places_per_owner = 0;
  };

  // The memory and place admitted for one sequence; released when destroyed. Move-only.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation();

    const Owner& owner() const { return owner_; }
    std::size_t bytes() const { return bytes_; }

   private:
    friend class SessionMemory;
    SessionMemory* memory_ = nullptr;
    Owner owner_;
    std::size_t bytes_ = 0;
    bool takes_place_ = false;
  };

  struct Result {
    Reservation reservation;  // holds nothing when refused
    SessionRefusal refusal;   // figures are set also if kNone: bytes_free before
  };

  explicit SessionMemory(const Limits& limits) : limits_(limits), limit_bytes_(limits.bytes) {}
  ~SessionMemory();  // REQUIRES: no reservation lives
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  // Reserves all or nothing. A refusal names the owner's limits before those of all.
  Result reserve(const Owner& owner, std::size_t bytes, bool takes_place) EXCLUDES(mutex_);

  // Counts bytes without asking whether they are free, and without a place: for work that must
  // continue.
  Reservation take(const Owner& owner, std::size_t bytes) EXCLUDES(mutex_);

  // All that one sequence of an owner may take.
  std::size_t most_bytes() const;
  // Replaces Limits::bytes, before anything is reserved.
  void set_limit(std::size_t bytes) { limit_bytes_ = bytes; }
  std::size_t limit_bytes() const { return limit_bytes_; }
  std::size_t bytes_in_use() const EXCLUDES(mutex_);
  std::size_t free_bytes() const EXCLUDES(mutex_);
  // True if less than an eighth of what the owner may use is left: its idle sessions will soon have
  // to make room.
  bool is_short(const Owner& owner) const EXCLUDES(mutex_);

  // Lets `spare` use free memory: it is notified whenever that shrinks, before the reserved memory
  // is used, and counts its own bytes. Null: none. Not while others use this object.
  void lend(SpareMemory* spare) { spare_ = spare; }

  // Notifies `first` of released memory before those in the waiting room. Null: none. Not while
  // others use this object.
  void notify_first(CapacityListener* first) { first_ = first; }
  // Notified when memory was released.
  CapacityListeners& waiting_room() { return waiting_room_; }

 private:
  struct Share {
    std::size_t bytes = 0;
    std::size_t places = 0;
  };

  // Reserves for the owner of `mine`, or fills `refusal`.
  bool admit(Reservation& mine, std::size_t bytes, bool takes_place, SessionRefusal& refusal)
      EXCLUDES(mutex_);
  // Counts bytes and place for `mine` and its owner.
  void hold(Reservation& mine, std::size_t bytes, bool takes_place) REQUIRES(mutex_);
  void give_back(const Owner& owner, std::size_t bytes, bool takes_place) EXCLUDES(mutex_);
  void shrink_spare() EXCLUDES(mutex_);

  const Limits limits_;  // but for the bytes
  std::atomic<std::size_t> limit_bytes_;
  CapacityListener* first_ = nullptr;
  CapacityListeners waiting_room_;
  SpareMemory* spare_ = nullptr;
  mutable Mutex mutex_;
  std::size_t bytes_in_use_ GUARDED_BY(mutex_) = 0;
  std::size_t places_in_use_ GUARDED_BY(mutex_) = 0;
  std::map<Owner, Share> shares_ GUARDED_BY(mutex_);  // of owners that hold something
};

}  // namespace lintel
