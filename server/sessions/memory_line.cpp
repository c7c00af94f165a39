// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/memory_line.h"

#include <algorithm>
#include <utility>

#include "server/core/threads.h"

namespace lintel {

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
