// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_memory.h"

#include <algorithm>
#include <cassert>
#include <utility>

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

}  // namespace lintel
