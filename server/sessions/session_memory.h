// SPDX-License-Identifier: Apache-2.0
// SessionMemory: the memory and places that sequences may take, all together and for each owner;
// MemoryLine: the calls that wait for it, in one order over all models.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/core/clock.h"
#include "server/core/histogram.h"
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

// Is notified when one of its tickets has got its memory.
class MemoryWaiter {
 public:
  virtual ~MemoryWaiter() = default;
  // Called with the line's mutex held: must not block, nor call the line.
  virtual void on_memory() noexcept = 0;
};

// MemoryLine: calls that wait for session memory.

// Callers take turns, each with its first call: the next turn is that of the caller whose last one
// was longest ago, and a caller that joins comes last. The call whose turn it is gets its memory
// before any other of the line, however small: none overtakes it. Only a call that its owner's own
// limit holds up lets others pass. Who cannot wait (a session, a fork) takes free memory at any
// time.
//
// Memory is reserved for a call by the thread that releases some. Thread-safe.
class MemoryLine final : public CapacityListener {
  struct Caller;

 public:
  // A call's place in the line, then its memory. Leaves when destroyed, and releases the memory.
  class Ticket {
   public:
    explicit Ticket(std::size_t bytes) : bytes_(bytes) {}
    ~Ticket() {
      if (line_ != nullptr) line_->leave(*this);
    }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // True once its memory is reserved.
    bool is_granted() const { return is_granted_.load(); }

   private:
    friend class MemoryLine;

    const std::size_t bytes_;
    // Constant from join() on.
    MemoryLine* line_ = nullptr;
    MemoryWaiter* waiter_ = nullptr;
    Caller* caller_ = nullptr;  // null: not in the line; guarded by the line's mutex
    std::list<Ticket*>::iterator place_;
    Owner owner_;
    TimePoint joined_;
    std::optional<SessionMemory::Reservation> memory_;  // written before is_granted_
    std::atomic<bool> is_granted_{false};
  };

  struct Stats {
    std::size_t waiting = 0;
    HistogramSnapshot waited;  // seconds, of calls that got their memory
  };

  // reserve(owner, bytes): admits memory, or refuses; called with the line's mutex held.
  using Reserve = std::function<SessionMemory::Result(const Owner&, std::size_t bytes)>;
  // make_room(refused, owner): frees something unused for a call that was refused so.
  // Returns false if there is nothing. Called without a mutex: releases notify others.
  using MakeRoom = std::function<bool(SessionError refused, const Owner&)>;
  // The clock outlives the line.
  MemoryLine(Reserve reserve, MakeRoom make_room, const Clock& clock)
      : reserve_(std::move(reserve)), make_room_(std::move(make_room)), clock_(clock) {}

  // Puts a ticket into the line; its memory may be there when this returns. The waiter outlives the
  // ticket. REQUIRES: once for each ticket; the bytes fit into all memory of the owner; the caller
  // holds no lock. Throws std::bad_alloc, and then nothing has happened.
  void join(Ticket& ticket, const std::string& caller, const Owner& owner, MemoryWaiter& waiter)
      EXCLUDES(mutex_);
  // The number of calls that wait.
  std::size_t size() const { return size_.load(); }
  // Memory was released. REQUIRES: the caller holds no lock.
  void on_room() noexcept override EXCLUDES(mutex_);

  Stats stats() const;

 private:
  struct Caller {
    std::list<Ticket*> waiting;
    std::uint64_t last_turn = 0;
    bool is_held_up = false;  // by its owner's limit, in the present round
  };
  using Callers = std::map<std::string, Caller>;

  // A call that was refused: it holds up the line, or the other calls of its owner.
  struct Refused {
    SessionError error = SessionError::kNone;
    Owner owner;
  };

  void grant_what_fits() EXCLUDES(mutex_);
  // Grants memory in turn until a call is refused, or none is left that is not held up.
  Refused grant_in_turn() EXCLUDES(mutex_);
  // Lets callers pass those whose next call is the owner's, until the round ends.
  void hold_up(const Owner& owner) EXCLUDES(mutex_);
  void hold_up_none() EXCLUDES(mutex_);
  Callers::iterator next_caller() REQUIRES(mutex_);
  // Removes the ticket from its caller's, and the caller with its last one.
  void take_out(Ticket& ticket) REQUIRES(mutex_);
  void leave(Ticket& ticket) noexcept EXCLUDES(mutex_);

  const Reserve reserve_;
  const MakeRoom make_room_;
  const Clock& clock_;
  std::atomic<std::size_t> size_{0};

  Mutex round_mutex_;
  bool in_round_ GUARDED_BY(round_mutex_) = false;   // a thread grants
  bool more_room_ GUARDED_BY(round_mutex_) = false;  // since its round began

  // Held while memory is reserved, so that no two calls are granted out of turn.
  mutable Mutex mutex_;
  Callers callers_ GUARDED_BY(mutex_);  // that wait
  std::uint64_t last_turn_ GUARDED_BY(mutex_) = 0;
  Histogram<10> waited_{std::array<double, 10>{0.01, 0.1, 0.5, 1, 5, 15, 60, 180, 600, 3600}};
};

}  // namespace lintel
