// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/memory_storage.h"

#include <algorithm>
#include <utility>

#include "server/core/random_bytes.h"

namespace lintel {

MemoryStorage::~MemoryStorage() {
  for (auto& [where, state] : states_) std::ranges::fill(state, std::byte{0});
}

SessionStorage::Opened MemoryStorage::open(const SessionId& id, const Owner& owner,
                                           const Digest* have) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.row().owner != owner) {
    return {.outcome = SessionError::kNotFound};
  }
  if (held_.contains(id)) return {.outcome = SessionError::kHeld, .holder = "this process"};
  Opened opened{.row = found->second.row()};
  if (have != nullptr && *have == opened.row.digest) opened.row.states.clear();
  fill_with_random(opened.claim.nonce);
  opened.claim.fence = ++last_fence_;
  held_[id] = {opened.claim, {}};
  return opened;
}

SessionStorage::Opened MemoryStorage::find(const SessionId& id, const Owner& owner) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.row().owner != owner) {
    return {.outcome = SessionError::kNotFound};
  }
  return {.row = found->second.row()};
}

void MemoryStorage::end_claims() {
  MutexLock lock(mutex_);
  while (!held_.empty()) let_go(held_.begin()->first);
}

void MemoryStorage::commit(std::vector<Write> writes, Done done) {
  std::vector<SessionError> outcomes;
  {
    MutexLock lock(mutex_);
    for (const Write& each : writes) outcomes.push_back(write(each));
    ++health_.commits;
    health_.writes += writes.size();
  }
  done(outcomes);
}

SessionError MemoryStorage::create(const Write& write) {
  std::optional<StorageSession> made = StorageSession::created(write);
  if (!made) return SessionError::kDamaged;
  const auto [found, added] = sessions_.try_emplace(write.id, *std::move(made));
  if (added) return SessionError::kNone;
  return found->second.row().digest == write.after ? SessionError::kNone : SessionError::kFenced;
}

SessionError MemoryStorage::write(const Write& write) {
  using Kind = Write::Kind;
  if (write.kind == Kind::kCreate) return create(write);
  const auto found = sessions_.find(write.id);
  if (found == sessions_.end()) return SessionError::kNotFound;
  StorageSession& session = found->second;
  if (session.stands(write)) return SessionError::kNone;
  const auto held = held_.find(write.id);
  if (held == held_.end() || held->second.claim != write.claim) return SessionError::kFenced;

  const std::vector<StateRef> states = session.row().states;
  StorageSession::Undo undo;
  const SessionError outcome = session.apply(write, &undo);
  if (outcome != SessionError::kNone) return outcome;
  for (const StateRef& state : session.row().states) std::erase(held->second.put, state.where);
  if (session.removed()) sessions_.erase(found);
  drop_states(states);
  if (write.kind == Kind::kEnd || write.kind == Kind::kRelease || write.kind == Kind::kRemove) {
    let_go(write.id);
  }
  return outcome;
}

void MemoryStorage::let_go(const SessionId& id) {
  const auto held = held_.find(id);
  for (const std::uint64_t where : held->second.put) drop_state(where);
  held_.erase(held);
}

void MemoryStorage::drop_states(const std::vector<StateRef>& before) {
  for (const StateRef& ref : before) {
    const bool named = std::ranges::any_of(sessions_, [&](const auto& entry) {
      return std::ranges::find(entry.second.row().states, ref.where, &StateRef::where) !=
             entry.second.row().states.end();
    });
    if (!named) drop_state(ref.where);
  }
}

void MemoryStorage::drop_state(std::uint64_t where) {
  const auto state = states_.find(where);
  if (state == states_.end()) return;
  std::ranges::fill(state->second, std::byte{0});
  states_.erase(state);
}

SessionError MemoryStorage::read_tokens(const SessionId& id, std::int64_t first,
                                        std::span<std::int32_t> tokens) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return SessionError::kNotFound;
  const StorageSession& session = found->second;
  const std::int64_t end = first + static_cast<std::int64_t>(tokens.size());
  if (first < session.row().base || end > session.row().position) return SessionError::kNotFound;
  std::copy_n(session.tokens().begin() + (first - session.first()), tokens.size(), tokens.begin());
  return SessionError::kNone;
}

SessionError MemoryStorage::put_state(const SessionId& id, std::span<const std::byte> state,
                                      StateRef* ref) {
  MutexLock lock(mutex_);
  const auto held = held_.find(id);
  if (held == held_.end()) return SessionError::kFenced;
  ref->where = ++last_state_;
  ref->bytes = state.size();
  ref->checksum = digest_of(state);
  states_[ref->where].assign(state.begin(), state.end());
  held->second.put.push_back(ref->where);
  return SessionError::kNone;
}

SessionError MemoryStorage::read_state(const StateRef& ref, std::span<std::byte> state) {
  MutexLock lock(mutex_);
  const auto found = states_.find(ref.where);
  if (found == states_.end() || found->second.size() != state.size() ||
      digest_of(found->second) != ref.checksum) {
    ++health_.states_lost;
    return SessionError::kDamaged;
  }
  std::ranges::copy(found->second, state.begin());
  return SessionError::kNone;
}

std::vector<SessionStorage::Row> MemoryStorage::list(const std::string& model,
                                                     const SessionId& after, std::size_t limit,
                                                     const std::optional<Owner>& owner) {
  MutexLock lock(mutex_);
  std::vector<Row> rows;
  for (auto at = sessions_.upper_bound(after); at != sessions_.end() && rows.size() < limit; ++at) {
    const Row& row = at->second.row();
    if ((model.empty() || row.model == model) && (!owner || row.owner == *owner))
      rows.push_back(row);
  }
  return rows;
}

void MemoryStorage::renew(std::span<const SessionId> busy, Done done) {
  done(std::vector<SessionError>(busy.size(), SessionError::kNone));
}

std::size_t MemoryStorage::sweep(std::size_t most) {
  MutexLock lock(mutex_);
  std::size_t removed = 0;
  for (auto at = sessions_.begin(); at != sessions_.end() && removed < most;) {
    if (at->second.row().expires > clock_.wall_time() || held_.contains(at->first)) {
      ++at;
      continue;
    }
    const std::vector<StateRef> states = at->second.row().states;
    at = sessions_.erase(at);
    drop_states(states);
    ++removed;
  }
  return removed;
}

SessionStorage::Health MemoryStorage::health() const {
  MutexLock lock(mutex_);
  Health health = health_;
  health.sessions = sessions_.size();
  return health;
}

}  // namespace lintel
