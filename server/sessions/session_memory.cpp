// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_memory.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/core/threads.h"

namespace lintel {

SessionMemory::Reservation::Reservation(Reservation&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      owner_(std::move(other.owner_)),
      bytes_(std::exchange(other.bytes_, 0)),
      takes_place_(std::exchange(other.takes_place_, false)) {}

SessionMemory::Reservation::~Reservation() {
  if (memory_ != nullptr) memory_->give_back(owner_, bytes_, takes_place_);
}

SessionMemory::~SessionMemory() {
#ifndef NDEBUG
  MutexLock lock(mutex_);
  assert(bytes_in_use_ == 0 && places_in_use_ == 0 && shares_.empty());
#endif
}

SessionMemory::Result SessionMemory::reserve(const Owner& owner, std::size_t bytes,
                                             bool takes_place) {
  Result result;
  SessionRefusal& refusal = result.refusal;
  refusal.bytes_needed = bytes;
  if (bytes > most_bytes()) {
    refusal.bytes_free = most_bytes();
    refusal.error = SessionError::kTooLarge;
    return result;
  }
  // Operations that may throw come before anything is counted.
  Reservation& mine = result.reservation;
  mine.owner_ = owner;
  if (admit(mine, bytes, takes_place, refusal)) shrink_spare();
  return result;
}

bool SessionMemory::admit(Reservation& mine, std::size_t bytes, bool takes_place,
                          SessionRefusal& refusal) {
  const Owner& owner = mine.owner_;
  const auto refused = [&](SessionError error) {
    refusal.error = error;
    return false;
  };
  MutexLock lock(mutex_);
  refusal.bytes_free = limit_bytes() - std::min(bytes_in_use_, limit_bytes());
  const auto held = shares_.find(owner);
  const Share share = held == shares_.end() ? Share{} : held->second;
  if (takes_place && limits_.places_per_owner != 0 && share.places >= limits_.places_per_owner) {
    return refused(SessionError::kOwnerTooManySessions);
  }
  if (limits_.bytes_per_owner != 0 &&
      bytes > limits_.bytes_per_owner - std::min(share.bytes, limits_.bytes_per_owner)) {
    return refused(SessionError::kOwnerOutOfMemory);
  }
  if (takes_place && limits_.places != 0 && places_in_use_ >= limits_.places) {
    return refused(SessionError::kTooManySessions);
  }
  if (bytes > refusal.bytes_free) return refused(SessionError::kOutOfMemory);
  hold(mine, bytes, takes_place);
  return true;
}

SessionMemory::Reservation SessionMemory::take(const Owner& owner, std::size_t bytes) {
  Reservation mine;
  mine.owner_ = owner;
  {
    MutexLock lock(mutex_);
    hold(mine, bytes, /*takes_place=*/false);
  }
  shrink_spare();
  return mine;
}

void SessionMemory::shrink_spare() {
  if (spare_ != nullptr) spare_->keep_within(free_bytes());
}

void SessionMemory::hold(Reservation& mine, std::size_t bytes, bool takes_place) {
  if (bytes == 0 && !takes_place) return;  // nothing to release
  Share& now = shares_[mine.owner_];
  now.bytes += bytes;
  bytes_in_use_ += bytes;
  if (takes_place) {
    ++now.places;
    ++places_in_use_;
  }
  mine.memory_ = this;
  mine.bytes_ = bytes;
  mine.takes_place_ = takes_place;
}

void SessionMemory::give_back(const Owner& owner, std::size_t bytes, bool takes_place) {
  {
    MutexLock lock(mutex_);
    assert(bytes_in_use_ >= bytes);
    bytes_in_use_ -= bytes;
    if (takes_place) --places_in_use_;
    const auto share = shares_.find(owner);
    assert(share != shares_.end());
    share->second.bytes -= bytes;
    if (takes_place) --share->second.places;
    if (share->second.bytes == 0 && share->second.places == 0) shares_.erase(share);
  }
  if (first_ != nullptr) first_->on_room();
  waiting_room_.tell();
}

std::size_t SessionMemory::most_bytes() const {
  return limits_.bytes_per_owner == 0 ? limit_bytes()
                                      : std::min(limit_bytes(), limits_.bytes_per_owner);
}

std::size_t SessionMemory::free_bytes() const {
  MutexLock lock(mutex_);
  return limit_bytes() - std::min(bytes_in_use_, limit_bytes());
}

bool SessionMemory::is_short(const Owner& owner) const {
  const auto nearly = [](std::size_t used, std::size_t limit) {
    return limit != 0 && used > limit - limit / 8;
  };
  MutexLock lock(mutex_);
  const auto held = shares_.find(owner);
  const Share share = held == shares_.end() ? Share{} : held->second;
  return nearly(bytes_in_use_, limit_bytes()) || nearly(places_in_use_, limits_.places) ||
         nearly(share.bytes, limits_.bytes_per_owner) ||
         nearly(share.places, limits_.places_per_owner);
}

std::size_t SessionMemory::bytes_in_use() const {
  MutexLock lock(mutex_);
  return bytes_in_use_;
}

void MemoryLine::join(Ticket& ticket, const std::string& caller, const Owner& owner,
                      MemoryWaiter& waiter) {
  ticket.owner_ = owner;
  std::list<Ticket*> place = {&ticket};
  {
    MutexLock lock(mutex_);
    const auto [at, is_new] = callers_.try_emplace(caller);
    if (is_new) at->second.last_turn = ++last_turn_;
    ticket.line_ = this;
    ticket.waiter_ = &waiter;
    ticket.caller_ = &at->second;
    ticket.place_ = place.begin();
    ticket.joined_ = clock_.now();
    at->second.waiting.splice(at->second.waiting.end(), place);
    size_.fetch_add(1);
  }
  on_room();
}

void MemoryLine::on_room() noexcept {
  if (size() == 0) return;
  {
    MutexLock lock(round_mutex_);
    more_room_ = true;
    // The round's own evictions release memory, too.
    if (in_round_) return;
    in_round_ = true;
  }
  while (true) {
    {
      MutexLock lock(round_mutex_);
      in_round_ = std::exchange(more_room_, false);
      if (!in_round_) return;
    }
    // Without memory the next release tries again.
    catch_exceptions([this] { grant_what_fits(); }, [] {});
  }
}

MemoryLine::Callers::iterator MemoryLine::next_caller() {
  auto next = callers_.end();
  for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
    if (caller->second.is_held_up) continue;
    if (next == callers_.end() || caller->second.last_turn < next->second.last_turn) next = caller;
  }
  return next;
}

void MemoryLine::grant_what_fits() {
  hold_up_none();
  while (true) {
    const Refused refused = grant_in_turn();
    if (refused.error == SessionError::kNone) return;
    if (make_room_(refused.error, refused.owner)) continue;
    if (refused.error != SessionError::kOwnerOutOfMemory) return;
    hold_up(refused.owner);
  }
}

void MemoryLine::hold_up_none() {
  MutexLock lock(mutex_);
  for (auto& [name, caller] : callers_) caller.is_held_up = false;
}

void MemoryLine::hold_up(const Owner& owner) {
  MutexLock lock(mutex_);
  for (auto& [name, caller] : callers_) {
    if (caller.waiting.front()->owner_ == owner) caller.is_held_up = true;
  }
}

MemoryLine::Refused MemoryLine::grant_in_turn() {
  MutexLock lock(mutex_);
  for (auto next = next_caller(); next != callers_.end(); next = next_caller()) {
    Ticket& first = *next->second.waiting.front();
    SessionMemory::Result reserved = reserve_(first.owner_, first.bytes_);
    if (reserved.refusal) return {reserved.refusal.error, first.owner_};
    first.memory_.emplace(std::move(reserved.reservation));
    waited_.observe(clock_.now() - first.joined_);
    next->second.last_turn = ++last_turn_;
    take_out(first);
    first.is_granted_.store(true);
    first.waiter_->on_memory();
  }
  return {};
}

void MemoryLine::take_out(Ticket& ticket) {
  Caller& caller = *std::exchange(ticket.caller_, nullptr);
  caller.waiting.erase(ticket.place_);
  size_.fetch_sub(1);
  if (!caller.waiting.empty()) return;
  callers_.erase(std::ranges::find_if(
      callers_, [&caller](const auto& each) { return &each.second == &caller; }));
}

void MemoryLine::leave(Ticket& ticket) noexcept {
  {
    MutexLock lock(mutex_);
    if (ticket.caller_ == nullptr) return;
    take_out(ticket);
  }
  on_room();  // for those that it stood before
}

MemoryLine::Stats MemoryLine::stats() const { return {size(), waited_.snapshot()}; }

}  // namespace lintel
