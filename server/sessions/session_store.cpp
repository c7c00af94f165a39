#include "server/sessions/session_store.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace lintel {

// Guarded by the store's mutex, but for `sequence`, which belongs to the lease while there is one.
struct SessionLease::Record {
  explicit Record(SessionMemory::Reservation admitted) : reservation(std::move(admitted)) {}

  const SessionMemory::Reservation reservation;       // first: until the state is zeroed and freed
  std::optional<SessionMemory::Reservation> of_call;  // while there is a lease
  std::string id;                                     // empty: one-shot
  std::string model_name;
  std::shared_ptr<const Transformer> model;  // before `sequence`, which refers to it
  std::optional<SequenceState> sequence;
  std::int64_t max_values = 0;

  // Its node in the store's order of last use, or while it is leased the only one in `aside`: it
  // changes places without asking for memory.
  std::list<Record*> aside{this};
  std::list<Record*>::iterator node = aside.begin();

  bool busy = false;
  bool discarded = false;
  bool unloaded = false;        // its model went while it was busy
  bool removed = false;         // somebody was done with it while it was busy
  std::int64_t num_values = 0;  // as of the last time the session was idle
  bool has_pending = false;
  TimePoint last_used;
  std::chrono::system_clock::time_point created_at;
  std::chrono::system_clock::time_point last_used_at;
};

namespace {

// 128 bits that cannot be guessed, hexadecimal: where callers are not told apart, whoever has an id
// can use the session.
std::string random_id() {
  std::array<unsigned char, 16> bytes;
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t n = getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (n < 0 && errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "getrandom");
    if (n > 0) filled += static_cast<std::size_t>(n);
  }
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

std::int64_t value_limit(const ModelConfig& config, std::int64_t requested) {
  const std::int64_t image_values =
      config.modality == ModalityKind::kImage ? config.image.num_values() : 0;
  return least_limit(least_limit(config.max_values(), image_values), requested);
}

SessionStore::Error error_of(SessionMemory::Refusal refusal) {
  using Refusal = SessionMemory::Refusal;
  using Error = SessionStore::Error;
  switch (refusal) {
    case Refusal::kNone:
      break;
    case Refusal::kTooLarge:
      return Error::kTooLarge;
    case Refusal::kOwnerTooManyPlaces:
      return Error::kOwnerTooManySessions;
    case Refusal::kOwnerOutOfBytes:
      return Error::kOwnerOutOfMemory;
    case Refusal::kTooManyPlaces:
      return Error::kTooManySessions;
    case Refusal::kOutOfBytes:
      return Error::kOutOfMemory;
  }
  return Error::kNone;
}

}  // namespace

// ---- SessionLease

SessionLease::SessionLease(SessionStore* store, std::shared_ptr<Record> record)
    : store_(store), record_(std::move(record)) {}

SessionLease::SessionLease(SessionLease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), record_(std::move(other.record_)) {}

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  if (this != &other) {
    give_back();
    store_ = std::exchange(other.store_, nullptr);
    record_ = std::move(other.record_);
  }
  return *this;
}

SessionLease::~SessionLease() { give_back(); }

void SessionLease::give_back() noexcept {
  if (record_ != nullptr) store_->give_back(std::move(record_));
  record_ = nullptr;
}

const std::string& SessionLease::session_id() const { return record_->id; }
const std::string& SessionLease::model() const { return record_->model_name; }
SequenceState& SessionLease::sequence() { return *record_->sequence; }
std::int64_t SessionLease::max_values() const { return record_->max_values; }
void SessionLease::discard() { record_->discarded = true; }  // read by the store at the give-back

// ---- SessionStore

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
  if (result.refusal == SessionMemory::Refusal::kNone || evict_idle() == 0) return result;
  return memory_.reserve(owner, bytes, takes_place);
}

SessionStore::Error SessionStore::new_record(const std::string& model_name,
                                             std::shared_ptr<const Transformer> model,
                                             std::int64_t max_values, int num_samples,
                                             bool takes_place, std::size_t call_bytes,
                                             const Owner& owner, std::shared_ptr<Record>* record,
                                             std::size_t* bytes_needed, std::size_t* bytes_free) {
  const std::int64_t limit = value_limit(model->config(), max_values);
  if (limit == 0 && !model->constant_state()) return Error::kNeedsMaxTokens;
  // The last value of a sequence is never fed.
  const std::size_t bytes_each = admitted_bytes(*model, std::max<std::int64_t>(limit - 1, 0));
  if (__builtin_mul_overflow(bytes_each, static_cast<std::size_t>(num_samples), bytes_needed) ||
      __builtin_add_overflow(*bytes_needed, call_bytes, bytes_needed)) {
    *bytes_needed = SIZE_MAX;
  }
  SessionMemory::Result admitted = reserve(owner, *bytes_needed, takes_place);
  *bytes_free = admitted.bytes_free;
  if (admitted.refusal != SessionMemory::Refusal::kNone) return error_of(admitted.refusal);
  try {
    auto made = std::make_shared<Record>(std::move(admitted.reservation));
    made->model_name = model_name;
    made->sequence.emplace(model->new_sequence());
    made->model = std::move(model);
    // What a one-shot call was admitted for is a matter of memory, not the end of its sequence.
    made->max_values = takes_place ? limit : value_limit(made->model->config(), 0);
    made->last_used = clock_.now();
    made->created_at = made->last_used_at = clock_.wall_time();
    *record = std::move(made);
  } catch (const std::bad_alloc&) {  // the budget promises more than the machine has
    return Error::kOutOfMemory;
  }
  return Error::kNone;
}

SessionStore::CreateResult SessionStore::create(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                std::int64_t max_values, const Owner& owner) {
  CreateResult result;
  std::shared_ptr<Record> record;
  result.error = new_record(model_name, std::move(model), max_values, /*num_samples=*/1,
                            /*takes_place=*/true, /*call_bytes=*/0, owner, &record,
                            &result.bytes_needed, &result.bytes_free);
  if (result.error != Error::kNone) return result;
  record->id = random_id();
  result.info = info_of(*record);
  MutexLock lock(mutex_);
  sessions_.emplace(record->id, record);
  note_use(*record);
  session_bytes_ += record->reservation.bytes();
  ++created_;
  return result;
}

std::shared_ptr<SessionStore::Record> SessionStore::find(const std::string& id,
                                                         const Owner& owner) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->reservation.owner() != owner) return nullptr;
  return found->second;
}

void SessionStore::note_use(Record& record) {
  idle_.splice(idle_.end(), record.aside);
  record.last_used = clock_.now();
  record.last_used_at = clock_.wall_time();
}

SessionStore::Sessions::node_type SessionStore::extract(Sessions::iterator session) {
  Record& record = *session->second;
  if (!record.busy) record.aside.splice(record.aside.end(), idle_, record.node);
  session_bytes_ -= record.reservation.bytes();
  return sessions_.extract(session);
}

SessionStore::LeaseResult SessionStore::lease(const std::string& id, const Owner& owner,
                                              std::size_t call_bytes) {
  LeaseResult result;
  SessionMemory::Reservation of_call = memory_.take(owner, call_bytes);
  MutexLock lock(mutex_);
  std::shared_ptr<Record> record = find(id, owner);
  if (record == nullptr) {
    result.error = absence_of(id, owner);
  } else if (record->busy) {
    result.error = Error::kBusy;
  } else {
    record->of_call.emplace(std::move(of_call));
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
                                                       const Owner& owner, std::size_t call_bytes) {
  LeaseResult result;
  std::shared_ptr<Record> record;
  result.error =
      new_record(model_name, std::move(model), max_values, num_samples, /*takes_place=*/false,
                 call_bytes, owner, &record, &result.bytes_needed, &result.bytes_free);
  if (result.error == Error::kNone) result.lease = SessionLease(this, std::move(record));
  return result;
}

void SessionStore::give_back(std::shared_ptr<Record> record) noexcept {
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
  if (record->unloaded) remember_unloaded(*record);
  gone = extract(sessions_.find(record->id));
}

SessionInfo SessionStore::info_of(const Record& record) {
  SessionInfo info;
  info.id = record.id;
  info.model = record.model_name;
  info.transformer = record.model;
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
  const std::shared_ptr<Record> record = find(id, owner);
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

SessionStore::Error SessionStore::take_out(const std::string& id, const Owner& owner, bool later) {
  Sessions::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const std::shared_ptr<Record> record = find(id, owner);
  if (record == nullptr) return absence_of(id, owner);
  if (record->busy) {
    record->removed = record->removed || later;
    return Error::kBusy;
  }
  gone = extract(sessions_.find(id));
  return Error::kNone;
}

SessionStore::Error SessionStore::remove(const std::string& id, const Owner& owner) {
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
    Record& longest_unused = *idle_.front();
    if (longest_unused.last_used > used_before) break;
    evicted.insert(extract(sessions_.find(longest_unused.id)));
  }
  evicted_ += evicted.size();
  return evicted.size();
}

std::size_t SessionStore::close_sessions(const Transformer& model) {
  std::size_t count = 0;
  std::string after;
  while (true) {
    Sessions closed;  // freed without the mutex
    MutexLock lock(mutex_);
    auto it = sessions_.upper_bound(after);
    for (std::size_t seen = 0; seen < kWalkAtATime; ++seen) {
      if (it == sessions_.end()) return count;
      after = it->first;
      Record& record = *it->second;
      const auto session = it++;
      if (record.model.get() != &model) continue;
      ++count;
      if (record.busy) {
        record.unloaded = true;
        continue;
      }
      remember_unloaded(record);
      closed.insert(extract(session));
    }
  }
}

SessionStore::Error SessionStore::absence(const std::string& id, const Owner& owner) const {
  MutexLock lock(mutex_);
  return absence_of(id, owner);
}

SessionStore::Error SessionStore::absence_of(const std::string& id, const Owner& owner) const {
  const auto found = unloaded_.find(id);
  const bool known = found != unloaded_.end() && found->second == owner;
  return known ? Error::kUnloaded : Error::kNotFound;
}

void SessionStore::remember_unloaded(const Record& record) noexcept {
  try {
    if (unloaded_order_.size() == kMostRemembered) {
      unloaded_.erase(unloaded_order_.front());
      unloaded_order_.pop_front();
    }
    unloaded_order_.push_back(record.id);
    unloaded_.emplace(record.id, record.reservation.owner());
  } catch (const std::bad_alloc&) {  // then it is simply not found
  }
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
