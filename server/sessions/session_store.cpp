#include "server/sessions/session_store.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <span>
#include <utility>

#include "server/base/random_bytes.h"
#include "server/sessions/session_record.h"

namespace lintel {
namespace {

// 128 bits that cannot be guessed, hexadecimal: where callers are not told apart, whoever has an id
// can use the session.
std::string random_id() {
  std::array<unsigned char, 16> bytes;
  fill_with_random(std::as_writable_bytes(std::span(bytes)));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  id.reserve(2 * bytes.size());
  for (const unsigned char byte : bytes) {
    id.push_back(kDigits[byte >> 4]);
    id.push_back(kDigits[byte & 15]);
  }
  return id;
}

// The least of the limits that are set; 0: none is.
std::int64_t least_limit(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// Measured, with the allocator's own share (tests/server/sessions/session_bytes_test.cpp): the
// record, its id and names, its nodes in the map and in the order of last use, its part of the
// owner's account.
constexpr std::size_t kRecordBytes = 1024;

// Sessions that a walk over all of them looks at before it lets others have the mutex.
constexpr std::size_t kWalkAtATime = 1024;

}  // namespace

std::size_t SessionStore::admitted_bytes(const Transformer& model, std::int64_t num_tokens) {
  const std::size_t bytes = model.sequence_bytes(num_tokens);
  return bytes > SIZE_MAX - kRecordBytes ? SIZE_MAX : bytes + kRecordBytes;
}

SessionStore::SessionStore(const Options& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      memory_({.bytes = options.session_memory_bytes,
               .places = options.max_sessions,
               .bytes_per_owner = options.bytes_per_owner,
               .places_per_owner = options.max_sessions_per_owner}) {}

SessionStore::~SessionStore() {
#ifndef NDEBUG
  MutexLock lock(mutex_);
  for (const auto& [id, record] : sessions_) assert(!record->busy);
#endif
}

SessionMemory::Result SessionStore::reserve(const Owner& owner, std::size_t bytes,
                                            bool takes_place) {
  SessionMemory::Result result = memory_.reserve(owner, bytes, takes_place);
  if (!result.refusal || evict_idle() == 0) return result;
  return memory_.reserve(owner, bytes, takes_place);
}

SessionRefusal SessionStore::new_record(const std::string& model_name,
                                        std::shared_ptr<const Transformer> model,
                                        std::int64_t max_values, int num_samples, bool takes_place,
                                        std::size_t call_bytes, const Owner& owner,
                                        SharedAdapter adapter,
                                        std::shared_ptr<SessionRecord>* record) {
  const std::int64_t limit = least_limit(model->config().max_values(), max_values);
  // The last value of a sequence is never fed; a state that is full takes no more.
  const std::int64_t fed = limit == 0 ? model->tokens_until_full() : limit - 1;
  if (fed == kNeverFull) return {SessionError::kNeedsMaxTokens};
  const std::size_t bytes_each = admitted_bytes(*model, fed);
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(bytes_each, static_cast<std::size_t>(num_samples), &bytes) ||
      __builtin_add_overflow(bytes, call_bytes, &bytes)) {
    bytes = SIZE_MAX;
  }
  SessionMemory::Result admitted = reserve(owner, bytes, takes_place);
  if (admitted.refusal) return admitted.refusal;
  try {
    auto made = std::make_shared<SessionRecord>(std::move(admitted.reservation));
    made->model_name = model_name;
    made->sequence.emplace(model->new_sequence(weights_of(adapter)));
    made->model = std::move(model);
    made->adapter = std::move(adapter);
    // What a one-shot call was admitted for is a matter of memory, not the end of its sequence.
    made->max_values = takes_place ? limit : made->model->config().max_values();
    made->last_used = clock_.now();
    made->created_at = made->last_used_at = clock_.wall_time();
    *record = std::move(made);
  } catch (const std::bad_alloc&) {  // the budget promises more than the machine has
    admitted.refusal.error = SessionError::kOutOfMemory;
  }
  return admitted.refusal;
}

SessionStore::CreateResult SessionStore::create(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                std::int64_t max_values, const Owner& owner,
                                                SharedAdapter adapter) {
  CreateResult result;
  std::shared_ptr<SessionRecord> record;
  result.refusal =
      new_record(model_name, std::move(model), max_values, /*num_samples=*/1,
                 /*takes_place=*/true, /*call_bytes=*/0, owner, std::move(adapter), &record);
  if (result.refusal) return result;
  record->id = random_id();
  result.info = info_of(*record);
  MutexLock lock(mutex_);
  sessions_.emplace(record->id, record);
  note_use(*record);
  session_bytes_ += record->reservation.bytes();
  ++created_;
  return result;
}

std::shared_ptr<SessionRecord> SessionStore::find(const std::string& id, const Owner& owner) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->reservation.owner() != owner) return nullptr;
  return found->second;
}

void SessionStore::note_use(SessionRecord& record) {
  idle_.splice(idle_.end(), record.aside);
  record.last_used = clock_.now();
  record.last_used_at = clock_.wall_time();
}

SessionStore::Sessions::node_type SessionStore::extract(Sessions::iterator session) {
  SessionRecord& record = *session->second;
  if (!record.busy) record.aside.splice(record.aside.end(), idle_, record.node);
  session_bytes_ -= record.reservation.bytes();
  return sessions_.extract(session);
}

SessionStore::LeaseResult SessionStore::lease(const std::string& id, const Owner& owner) {
  LeaseResult result;
  MutexLock lock(mutex_);
  std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) {
    result.refusal = absence_of(id, owner);
  } else if (record->busy) {
    result.refusal.error = SessionError::kBusy;
  } else {
    record->busy = true;
    record->aside.splice(record->aside.end(), idle_, record->node);
    record->last_used = clock_.now();
    record->last_used_at = clock_.wall_time();
    ++busy_sessions_;
    busy_bytes_ += record->reservation.bytes();
    result.lease = SessionLease(this, std::move(record));
  }
  return result;
}

SessionStore::LeaseResult SessionStore::lease_one_shot(const std::string& model_name,
                                                       std::shared_ptr<const Transformer> model,
                                                       std::int64_t max_values, int num_samples,
                                                       const Owner& owner, std::size_t call_bytes,
                                                       SharedAdapter adapter) {
  LeaseResult result;
  std::shared_ptr<SessionRecord> record;
  result.refusal =
      new_record(model_name, std::move(model), max_values, num_samples,
                 /*takes_place=*/false, call_bytes, owner, std::move(adapter), &record);
  if (!result.refusal) result.lease = SessionLease(this, std::move(record));
  return result;
}

void SessionStore::give_back(std::shared_ptr<SessionRecord> record) noexcept {
  record->of_call.reset();
  if (record->id.empty()) return;
  Sessions::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  --busy_sessions_;
  busy_bytes_ -= record->reservation.bytes();
  if (!record->discarded && !record->unloaded && !record->removed) {
    record->busy = false;
    record->num_values = record->sequence->num_values();
    record->has_pending = record->sequence->pending.has_value();
    note_use(*record);
    return;
  }
  if (record->unloaded) closed_.remember(record->id, record->reservation.owner());
  gone = extract(sessions_.find(record->id));
}

SessionInfo SessionStore::info_of(const SessionRecord& record) {
  SessionInfo info;
  info.id = record.id;
  info.model = record.model_name;
  if (record.adapter != nullptr) info.adapter = record.adapter->name;
  info.num_values = record.num_values;
  info.has_pending = record.has_pending;
  info.busy = record.busy;
  info.state_bytes = record.reservation.bytes();
  info.max_values = record.max_values;
  info.created = record.created_at;
  info.last_used = record.last_used_at;
  return info;
}

std::optional<SessionInfo> SessionStore::get(const std::string& id, const Owner& owner) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) return std::nullopt;
  return info_of(*record);
}

std::vector<SessionInfo> SessionStore::list(const std::string& model, const std::string& after_id,
                                            std::size_t limit,
                                            const std::optional<Owner>& owner) const {
  std::vector<SessionInfo> infos;
  std::string after = after_id;
  while (true) {
    MutexLock lock(mutex_);
    auto it = sessions_.upper_bound(after);
    for (std::size_t seen = 0; seen < kWalkAtATime; ++seen, ++it) {
      if (it == sessions_.end() || infos.size() >= limit) return infos;
      after = it->first;
      if (owner && it->second->reservation.owner() != *owner) continue;
      if (model.empty() || it->second->model_name == model) infos.push_back(info_of(*it->second));
    }
  }
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
      closed_.remember(record.id, record.reservation.owner());
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

std::size_t SessionStore::bytes_in_use() const { return memory_.bytes_in_use(); }

SessionStore::Stats SessionStore::stats() const {
  MutexLock lock(mutex_);
  Stats stats;
  stats.busy_sessions = busy_sessions_;
  stats.idle_sessions = sessions_.size() - busy_sessions_;
  stats.busy_bytes = busy_bytes_;
  stats.idle_bytes = session_bytes_ - busy_bytes_;
  stats.one_shot_bytes = memory_.bytes_in_use() - session_bytes_;
  stats.created = created_;
  stats.evicted = evicted_;
  stats.examined = examined_;
  return stats;
}

std::size_t SessionStore::num_sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

}  // namespace lintel
