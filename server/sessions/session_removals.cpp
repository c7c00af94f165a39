// SessionStore: how sessions leave it, and what is said of those that are gone.
#include <algorithm>
#include <utility>

#include "server/sessions/session_record.h"
#include "server/sessions/session_store.h"

namespace lintel {

bool SessionStore::make_room(SessionError refused, const Owner& owner) {
  if (evict_idle() > 0) return true;
  if (refused == SessionError::kTooLarge) return false;
  const bool for_owner =
      refused == SessionError::kOwnerTooManySessions || refused == SessionError::kOwnerOutOfMemory;
  Sessions::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const auto of_owner = for_owner ? owners_.find(owner) : owners_.end();
  if (for_owner && of_owner == owners_.end()) return false;
  const std::list<SessionRecord*>& order = for_owner ? of_owner->second.idle_stored : idle_stored_;
  if (order.empty()) return false;
  ++examined_;
  gone = extract(sessions_.find(order.front()->id));
  ++parked_;
  return true;
}

SessionRefusal SessionStore::take_out(const std::string& id, const Owner& owner, bool later) {
  Sessions::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) return absence_of(id, owner);
  if (record->busy) {
    record->removed = record->removed || later;
    return {SessionError::kBusy};
  }
  gone = extract(sessions_.find(id));
  return {};
}

SessionRefusal SessionStore::remove(const std::string& id, const Owner& owner) {
  return take_out(id, owner, /*later=*/false);
}

void SessionStore::remove_when_idle(const std::string& id, const Owner& owner) {
  take_out(id, owner, /*later=*/true);
}

std::size_t SessionStore::evict_idle() {
  if (options_.idle_timeout.count() == 0) return 0;
  const TimePoint used_before = clock_.now() - options_.idle_timeout;
  Sessions evicted;  // freed without the mutex
  MutexLock lock(mutex_);
  while (!idle_.empty()) {
    ++examined_;
    SessionRecord& longest_unused = *idle_.front();
    if (longest_unused.last_used > used_before) break;
    evicted.insert(extract(sessions_.find(longest_unused.id)));
  }
  evicted_ += evicted.size();
  return evicted.size();
}

std::size_t SessionStore::close_sessions(const Transformer& model) {
  return close_sessions_that(
      [&](const SessionRecord& record) { return record.model.get() == &model; });
}

std::size_t SessionStore::close_sessions(const ServedAdapter& adapter) {
  return close_sessions_that(
      [&](const SessionRecord& record) { return record.adapter.get() == &adapter; });
}

template <typename Goes>
std::size_t SessionStore::close_sessions_that(const Goes& goes) {
  std::size_t count = 0;
  std::string after;
  while (true) {
    Sessions closed;  // freed without the mutex
    MutexLock lock(mutex_);
    auto it = sessions_.upper_bound(after);
    for (std::size_t seen = 0; seen < kWalkAtATime; ++seen) {
      if (it == sessions_.end()) return count;
      after = it->first;
      SessionRecord& record = *it->second;
      const auto session = it++;
      if (!goes(record)) continue;
      ++count;
      if (record.busy) {
        record.unloaded = true;
        continue;
      }
      if (!record.stored) closed_.remember(record.id, record.reservation.owner());
      closed.insert(extract(session));
    }
  }
}

SessionRefusal SessionStore::absence(const std::string& id, const Owner& owner) const {
  MutexLock lock(mutex_);
  return absence_of(id, owner);
}

SessionRefusal SessionStore::absence_of(const std::string& id, const Owner& owner) const {
  return {closed_.had(id, owner) ? SessionError::kUnloaded : SessionError::kNotFound};
}

}  // namespace lintel
