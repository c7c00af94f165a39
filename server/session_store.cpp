#include "server/session_store.h"

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
  std::string id;  // empty: one-shot
  Owner owner;
  std::string model_name;
  std::shared_ptr<const Transformer> model;  // before `sequence`, which refers to it
  std::optional<SequenceState> sequence;
  std::int64_t max_values = 0;
  std::size_t state_bytes = 0;  // admitted
  bool takes_place = false;     // of max_sessions

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

std::int64_t value_limit(const ModelConfig& config, std::int64_t requested) {
  const std::int64_t image_values =
      config.modality == ModalityKind::kImage ? config.image.num_values() : 0;
  return least_limit(least_limit(config.max_values(), image_values), requested);
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

SessionStore::SessionStore(const Options& options, const Clock& clock)
    : options_(options), clock_(clock) {}

SessionStore::~SessionStore() {
#ifndef NDEBUG
  MutexLock lock(mutex_);
  assert(places_in_use_ == sessions_.size());
  for (const auto& [id, record] : sessions_) assert(!record->busy);
#endif
}

SessionStore::Error SessionStore::try_reserve(const Owner& owner, std::size_t bytes,
                                              bool takes_place, std::size_t* bytes_free) {
  const std::size_t most = options_.bytes_per_owner == 0
                               ? options_.session_memory_bytes
                               : std::min(options_.session_memory_bytes, options_.bytes_per_owner);
  if (bytes > most) {
    *bytes_free = most;
    return Error::kTooLarge;
  }
  *bytes_free = options_.session_memory_bytes - bytes_in_use_;
  const auto held = shares_.find(owner);
  const Share share = held == shares_.end() ? Share{} : held->second;
  if (takes_place && options_.max_sessions_per_owner != 0 &&
      share.places >= options_.max_sessions_per_owner) {
    return Error::kOwnerTooManySessions;
  }
  if (options_.bytes_per_owner != 0 &&
      bytes > options_.bytes_per_owner - std::min(share.bytes, options_.bytes_per_owner)) {
    return Error::kOwnerOutOfMemory;
  }
  if (takes_place && options_.max_sessions != 0 && places_in_use_ >= options_.max_sessions) {
    return Error::kTooManySessions;
  }
  if (bytes > *bytes_free) return Error::kOutOfMemory;
  Share& mine = shares_[owner];  // before anything is counted: it may throw
  mine.bytes += bytes;
  bytes_in_use_ += bytes;
  if (takes_place) {
    ++mine.places;
    ++places_in_use_;
  }
  return Error::kNone;
}

SessionStore::Error SessionStore::reserve(const Owner& owner, std::size_t bytes, bool takes_place,
                                          std::size_t* bytes_free) {
  for (bool evicted = false;; evicted = true) {
    Error error = Error::kNone;
    {
      MutexLock lock(mutex_);
      error = try_reserve(owner, bytes, takes_place, bytes_free);
    }
    if (error == Error::kNone || evicted || evict_idle() == 0) return error;
  }
}

void SessionStore::unreserve(const Owner& owner, std::size_t bytes, bool takes_place) {
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

SessionStore::Error SessionStore::new_record(const std::string& model_name,
                                             std::shared_ptr<const Transformer> model,
                                             std::int64_t max_values, int num_samples,
                                             bool takes_place, const Owner& owner,
                                             std::shared_ptr<Record>* record,
                                             std::size_t* bytes_needed, std::size_t* bytes_free) {
  const std::int64_t limit = value_limit(model->config(), max_values);
  if (limit == 0 && !model->constant_state()) return Error::kNeedsMaxTokens;
  // The last value of a sequence is never fed.
  const std::size_t bytes_each = model->state_bytes(std::max<std::int64_t>(limit - 1, 0));
  if (__builtin_mul_overflow(bytes_each, static_cast<std::size_t>(num_samples), bytes_needed)) {
    *bytes_needed = SIZE_MAX;
  }
  const Error error = reserve(owner, *bytes_needed, takes_place, bytes_free);
  if (error != Error::kNone) return error;
  try {
    auto made = std::make_shared<Record>();
    made->owner = owner;
    made->model_name = model_name;
    made->sequence.emplace(model->new_sequence());
    made->model = std::move(model);
    // What a one-shot call was admitted for is a matter of memory, not the end of its sequence.
    made->max_values = takes_place ? limit : value_limit(made->model->config(), 0);
    made->state_bytes = *bytes_needed;
    made->takes_place = takes_place;
    made->last_used = clock_.now();
    made->created_at = made->last_used_at = clock_.wall_time();
    *record = std::move(made);
  } catch (const std::bad_alloc&) {  // the budget promises more than the machine has
    unreserve(owner, *bytes_needed, takes_place);
    return Error::kOutOfMemory;
  }
  return Error::kNone;
}

void SessionStore::free_record(std::shared_ptr<Record> record) {
  const std::size_t bytes = record->state_bytes;
  const bool takes_place = record->takes_place;
  const Owner owner = std::move(record->owner);
  record.reset();
  unreserve(owner, bytes, takes_place);
}

SessionStore::CreateResult SessionStore::create(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                std::int64_t max_values, const Owner& owner) {
  CreateResult result;
  std::shared_ptr<Record> record;
  result.error =
      new_record(model_name, std::move(model), max_values, /*num_samples=*/1,
                 /*takes_place=*/true, owner, &record, &result.bytes_needed, &result.bytes_free);
  if (result.error != Error::kNone) return result;
  try {
    record->id = random_id();
    result.info = info_of(*record);
    MutexLock lock(mutex_);
    sessions_.emplace(record->id, record);
    session_bytes_ += record->state_bytes;
    ++created_;
  } catch (...) {
    free_record(std::move(record));
    throw;
  }
  return result;
}

std::shared_ptr<SessionStore::Record> SessionStore::find(const std::string& id,
                                                         const Owner& owner) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->owner != owner) return nullptr;
  return found->second;
}

SessionStore::LeaseResult SessionStore::lease(const std::string& id, const Owner& owner) {
  LeaseResult result;
  MutexLock lock(mutex_);
  std::shared_ptr<Record> record = find(id, owner);
  if (record == nullptr) {
    result.error = absence_of(id, owner);
  } else if (record->busy) {
    result.error = Error::kBusy;
  } else {
    record->busy = true;
    record->last_used = clock_.now();
    record->last_used_at = clock_.wall_time();
    ++busy_sessions_;
    busy_bytes_ += record->state_bytes;
    result.lease = SessionLease(this, std::move(record));
  }
  return result;
}

SessionStore::LeaseResult SessionStore::lease_one_shot(const std::string& model_name,
                                                       std::shared_ptr<const Transformer> model,
                                                       std::int64_t max_values, int num_samples,
                                                       const Owner& owner) {
  LeaseResult result;
  std::shared_ptr<Record> record;
  result.error =
      new_record(model_name, std::move(model), max_values, num_samples,
                 /*takes_place=*/false, owner, &record, &result.bytes_needed, &result.bytes_free);
  if (result.error == Error::kNone) result.lease = SessionLease(this, std::move(record));
  return result;
}

void SessionStore::give_back(std::shared_ptr<Record> record) {
  if (!record->id.empty()) {
    MutexLock lock(mutex_);
    record->busy = false;
    --busy_sessions_;
    busy_bytes_ -= record->state_bytes;
    if (!record->discarded && !record->unloaded && !record->removed) {
      record->num_values = record->sequence->num_values();
      record->has_pending = record->sequence->pending.has_value();
      record->last_used = clock_.now();
      record->last_used_at = clock_.wall_time();
      return;
    }
    if (record->unloaded) remember_unloaded(*record);
    sessions_.erase(record->id);
    session_bytes_ -= record->state_bytes;
  }
  free_record(std::move(record));
}

SessionInfo SessionStore::info_of(const Record& record) {
  SessionInfo info;
  info.id = record.id;
  info.model = record.model_name;
  info.transformer = record.model;
  info.num_values = record.num_values;
  info.has_pending = record.has_pending;
  info.busy = record.busy;
  info.state_bytes = record.state_bytes;
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
  MutexLock lock(mutex_);
  for (auto it = sessions_.upper_bound(after_id); it != sessions_.end() && infos.size() < limit;
       ++it) {
    if (owner && it->second->owner != *owner) continue;
    if (model.empty() || it->second->model_name == model) infos.push_back(info_of(*it->second));
  }
  return infos;
}

SessionStore::Error SessionStore::take_out(const std::string& id, const Owner& owner, bool later) {
  std::shared_ptr<Record> record;
  {
    MutexLock lock(mutex_);
    record = find(id, owner);
    if (record == nullptr) return absence_of(id, owner);
    if (record->busy) {
      record->removed = record->removed || later;
      return Error::kBusy;
    }
    sessions_.erase(id);
    session_bytes_ -= record->state_bytes;
  }
  free_record(std::move(record));
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
  std::vector<std::shared_ptr<Record>> evicted;
  {
    MutexLock lock(mutex_);
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      if (!it->second->busy && it->second->last_used <= used_before) {
        session_bytes_ -= it->second->state_bytes;
        evicted.push_back(std::move(it->second));
        it = sessions_.erase(it);
      } else {
        ++it;
      }
    }
    evicted_ += evicted.size();
  }
  for (auto& record : evicted) free_record(std::move(record));
  return evicted.size();
}

std::size_t SessionStore::close_sessions(const Transformer& model) {
  std::vector<std::shared_ptr<Record>> closed;
  std::size_t count = 0;
  {
    MutexLock lock(mutex_);
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      Record& record = *it->second;
      if (record.model.get() != &model) {
        ++it;
        continue;
      }
      ++count;
      if (record.busy) {
        record.unloaded = true;
        ++it;
        continue;
      }
      remember_unloaded(record);
      session_bytes_ -= record.state_bytes;
      closed.push_back(std::move(it->second));
      it = sessions_.erase(it);
    }
  }
  for (auto& record : closed) free_record(std::move(record));
  return count;
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
    unloaded_.emplace(record.id, record.owner);
  } catch (const std::bad_alloc&) {  // then it is simply not found
  }
}

std::size_t SessionStore::bytes_in_use() const {
  MutexLock lock(mutex_);
  return bytes_in_use_;
}

SessionStore::Stats SessionStore::stats() const {
  MutexLock lock(mutex_);
  Stats stats;
  stats.busy_sessions = busy_sessions_;
  stats.idle_sessions = sessions_.size() - busy_sessions_;
  stats.busy_bytes = busy_bytes_;
  stats.idle_bytes = session_bytes_ - busy_bytes_;
  stats.one_shot_bytes = bytes_in_use_ - session_bytes_;
  stats.created = created_;
  stats.evicted = evicted_;
  return stats;
}

std::size_t SessionStore::num_sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

}  // namespace lintel
