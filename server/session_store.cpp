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
  std::string model_name;
  std::shared_ptr<const Transformer> model;  // before `sequence`, which refers to it
  std::optional<SequenceState> sequence;
  std::int64_t max_values = 0;
  std::size_t state_bytes = 0;  // admitted
  bool takes_place = false;     // of max_sessions

  bool busy = false;
  bool discarded = false;
  std::int64_t num_values = 0;  // as of the last time the session was idle
  bool has_pending = false;
  TimePoint last_used;
  std::chrono::system_clock::time_point created_at;
  std::chrono::system_clock::time_point last_used_at;
};

namespace {

// 128 bits that cannot be guessed, hexadecimal: whoever has an id can use the session.
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

SessionStore::Error SessionStore::reserve(std::size_t bytes, bool takes_place,
                                          std::size_t* bytes_free) {
  for (bool evicted = false;; evicted = true) {
    Error error = Error::kNone;
    {
      MutexLock lock(mutex_);
      *bytes_free = options_.session_memory_bytes - bytes_in_use_;
      if (takes_place && options_.max_sessions != 0 && places_in_use_ >= options_.max_sessions) {
        error = Error::kTooManySessions;
      } else if (bytes > *bytes_free) {
        error = Error::kOutOfMemory;
      } else {
        bytes_in_use_ += bytes;
        if (takes_place) ++places_in_use_;
        return Error::kNone;
      }
    }
    if (evicted || evict_idle() == 0) return error;
  }
}

void SessionStore::unreserve(std::size_t bytes, bool takes_place) {
  MutexLock lock(mutex_);
  assert(bytes_in_use_ >= bytes);
  bytes_in_use_ -= bytes;
  if (takes_place) --places_in_use_;
}

SessionStore::Error SessionStore::new_record(const std::string& model_name,
                                             std::shared_ptr<const Transformer> model,
                                             std::int64_t max_values, int num_samples,
                                             bool takes_place, std::shared_ptr<Record>* record,
                                             std::size_t* bytes_needed, std::size_t* bytes_free) {
  const std::int64_t limit = value_limit(model->config(), max_values);
  if (limit == 0 && !model->constant_state()) return Error::kNeedsMaxTokens;
  // The last value of a sequence is never fed.
  const std::size_t bytes_each = model->state_bytes(std::max<std::int64_t>(limit - 1, 0));
  if (__builtin_mul_overflow(bytes_each, static_cast<std::size_t>(num_samples), bytes_needed)) {
    *bytes_needed = SIZE_MAX;
  }
  const Error error = reserve(*bytes_needed, takes_place, bytes_free);
  if (error != Error::kNone) return error;
  try {
    auto made = std::make_shared<Record>();
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
    unreserve(*bytes_needed, takes_place);
    return Error::kOutOfMemory;
  }
  return Error::kNone;
}

void SessionStore::free_record(std::shared_ptr<Record> record) {
  const std::size_t bytes = record->state_bytes;
  const bool takes_place = record->takes_place;
  record.reset();
  unreserve(bytes, takes_place);
}

SessionStore::CreateResult SessionStore::create(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                std::int64_t max_values) {
  CreateResult result;
  std::shared_ptr<Record> record;
  result.error =
      new_record(model_name, std::move(model), max_values, /*num_samples=*/1,
                 /*takes_place=*/true, &record, &result.bytes_needed, &result.bytes_free);
  if (result.error != Error::kNone) return result;
  try {
    record->id = random_id();
    result.info = info_of(*record);
    MutexLock lock(mutex_);
    sessions_.emplace(record->id, record);
  } catch (...) {
    free_record(std::move(record));
    throw;
  }
  return result;
}

SessionStore::LeaseResult SessionStore::lease(const std::string& id) {
  LeaseResult result;
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    result.error = Error::kNotFound;
  } else if (found->second->busy) {
    result.error = Error::kBusy;
  } else {
    found->second->busy = true;
    found->second->last_used = clock_.now();
    found->second->last_used_at = clock_.wall_time();
    result.lease = SessionLease(this, found->second);
  }
  return result;
}

SessionStore::LeaseResult SessionStore::lease_one_shot(const std::string& model_name,
                                                       std::shared_ptr<const Transformer> model,
                                                       std::int64_t max_values, int num_samples) {
  LeaseResult result;
  std::shared_ptr<Record> record;
  result.error =
      new_record(model_name, std::move(model), max_values, num_samples,
                 /*takes_place=*/false, &record, &result.bytes_needed, &result.bytes_free);
  if (result.error == Error::kNone) result.lease = SessionLease(this, std::move(record));
  return result;
}

void SessionStore::give_back(std::shared_ptr<Record> record) {
  if (!record->id.empty()) {
    MutexLock lock(mutex_);
    record->busy = false;
    if (!record->discarded) {
      record->num_values = record->sequence->num_values();
      record->has_pending = record->sequence->pending.has_value();
      record->last_used = clock_.now();
      record->last_used_at = clock_.wall_time();
      return;
    }
    sessions_.erase(record->id);
  }
  free_record(std::move(record));
}

SessionInfo SessionStore::info_of(const Record& record) {
  SessionInfo info;
  info.id = record.id;
  info.model = record.model_name;
  info.num_values = record.num_values;
  info.has_pending = record.has_pending;
  info.busy = record.busy;
  info.state_bytes = record.state_bytes;
  info.max_values = record.max_values;
  info.created = record.created_at;
  info.last_used = record.last_used_at;
  return info;
}

std::optional<SessionInfo> SessionStore::get(const std::string& id) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return std::nullopt;
  return info_of(*found->second);
}

std::vector<SessionInfo> SessionStore::list(const std::string& model, const std::string& after_id,
                                            std::size_t limit) const {
  std::vector<SessionInfo> infos;
  MutexLock lock(mutex_);
  for (auto it = sessions_.upper_bound(after_id); it != sessions_.end() && infos.size() < limit;
       ++it) {
    if (model.empty() || it->second->model_name == model) infos.push_back(info_of(*it->second));
  }
  return infos;
}

SessionStore::Error SessionStore::remove(const std::string& id) {
  std::shared_ptr<Record> record;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return Error::kNotFound;
    if (found->second->busy) return Error::kBusy;
    record = std::move(found->second);
    sessions_.erase(found);
  }
  free_record(std::move(record));
  return Error::kNone;
}

std::size_t SessionStore::evict_idle() {
  if (options_.idle_timeout.count() == 0) return 0;
  const TimePoint used_before = clock_.now() - options_.idle_timeout;
  std::vector<std::shared_ptr<Record>> evicted;
  {
    MutexLock lock(mutex_);
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      if (!it->second->busy && it->second->last_used <= used_before) {
        evicted.push_back(std::move(it->second));
        it = sessions_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (auto& record : evicted) free_record(std::move(record));
  return evicted.size();
}

std::size_t SessionStore::bytes_in_use() const {
  MutexLock lock(mutex_);
  return bytes_in_use_;
}

std::size_t SessionStore::num_sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

}  // namespace lintel
