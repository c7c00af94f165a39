#include "server/sessions/session_store.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <span>
#include <utility>

#include "server/core/random_bytes.h"
#include "server/sessions/session_record.h"

namespace lintel {
namespace {

// 128 bits that cannot be guessed, hexadecimal: where callers are not identified, the id alone
// gives access to the session.
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

// Tokens that a sequence of at most so many values (0: unbounded) is fed: the last value never is,
// and a state that is full takes no more.
std::int64_t fed_values(const Transformer& model, std::int64_t limit) {
  return limit == 0 ? model.tokens_until_full() : limit - 1;
}

// Most values of a session; 0: unbounded. Text in windows may exceed the model's length.
std::int64_t values_limit(const Transformer& model, const SessionOptions& session) {
  const bool is_endless = session.window > 0 && model.config().modality != ModalityKind::kImage;
  return is_endless ? session.max_values
                    : least_limit(model.config().max_values(), session.max_values);
}

// Measured, with the allocator's own share (tests/server/sessions/session_bytes_test.cpp): the
// record, its id and names, its nodes in the map and in the order of last use, its part of the
// owner's account.
constexpr std::size_t kRecordBytes = 1024;

}  // namespace

std::size_t SessionStore::admitted_bytes(const Transformer& model, std::int64_t num_tokens) {
  const std::size_t bytes = model.sequence_bytes(num_tokens);
  return bytes > SIZE_MAX - kRecordBytes ? SIZE_MAX : bytes + kRecordBytes;
}

std::size_t SessionStore::session_bytes(const Transformer& model, const SessionOptions& session,
                                        std::int64_t history_tokens, const SessionImage* image) {
  if (image == nullptr) image = session.initial.get();
  const std::int64_t limit = values_limit(model, session);
  const std::int64_t fed = fed_values(model, least_limit(limit, session.window));
  if (fed == kNeverFull) return SIZE_MAX;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(model.sequence_bytes(fed), std::size_t{1} + session.checkpoint_keep,
                             &bytes) ||
      __builtin_add_overflow(bytes, kRecordBytes, &bytes) ||
      __builtin_add_overflow(
          bytes, SessionHistory::bytes_of(history_of(model, session, history_tokens, image)),
          &bytes)) {
    return SIZE_MAX;
  }
  return bytes;
}

SessionHistory::Options SessionStore::history_of(const Transformer& model,
                                                 const SessionOptions& session,
                                                 std::int64_t history_tokens,
                                                 const SessionImage* image) {
  SessionHistory::Options history;
  history.vocab_size = model.head().num_values();
  history.is_bytes = model.config().modality == ModalityKind::kBytes;
  history.max_values = values_limit(model, session);
  history.kept_values = least_limit(session.history_tokens, history_tokens);
  // What the state lacks has to be there until it was read.
  const std::int64_t lacks = image == nullptr ? 0 : image->position - image->state_position;
  history.kept_values = std::max({history.kept_values, lacks, session.window, std::int64_t{1}});
  return history;
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
  while (true) {
    SessionMemory::Result result = memory_.reserve(owner, bytes, takes_place);
    if (!result.refusal || !make_room(result.refusal.error, owner)) return result;
  }
}

SessionStore::Made SessionStore::new_record(const std::string& model_name,
                                            std::shared_ptr<const Transformer> model,
                                            const SessionOptions& session, std::size_t bytes,
                                            bool takes_place, const Owner& owner,
                                            SharedAdapter adapter) {
  Made made;
  SessionMemory::Result admitted = reserve(owner, bytes, takes_place);
  made.refusal = admitted.refusal;
  if (made.refusal) return made;
  try {
    auto record = std::make_shared<SessionRecord>(std::move(admitted.reservation), session);
    if (takes_place) record->id = session.id_prefix + random_id();
    record->model_name = model_name;
    record->model = std::move(model);
    record->adapter = std::move(adapter);
    record->last_used = clock_.now();
    record->created_at = record->last_used_at = clock_.wall_time();
    made.record = std::move(record);
  } catch (const std::bad_alloc&) {  // the budget promises more than the machine has
    made.refusal.error = SessionError::kOutOfMemory;
  }
  return made;
}

SessionStore::CreateResult SessionStore::create(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                const SessionOptions& session, const Owner& owner,
                                                SharedAdapter adapter) {
  return add(new_session(model_name, std::move(model), session, session.initial.get(), owner,
                         std::move(adapter)));
}

SessionStore::CreateResult SessionStore::add(Made made) {
  CreateResult result{{}, made.refusal};
  if (made.record == nullptr) return result;
  MutexLock lock(mutex_);
  result.info = info_of(*made.record);
  insert(made.record);
  ++created_;
  return result;
}

std::optional<SessionOptions> SessionStore::made_as(const std::string& id,
                                                    const Owner& owner) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) return std::nullopt;
  SessionOptions options = record->options;
  options.initial = nullptr;
  return options;
}

void SessionStore::set_stored(const std::string& id, const Owner& owner) {
  MutexLock lock(mutex_);
  const std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr || record->stored) return;
  if (!record->busy) end_idle(*record);
  record->stored = true;
  if (!record->busy) begin_idle(*record);
}

std::vector<SessionStore::Named> SessionStore::idle_stored() const {
  std::vector<Named> all;
  MutexLock lock(mutex_);
  all.reserve(idle_stored_.size());
  for (auto record = idle_stored_.rbegin(); record != idle_stored_.rend(); ++record) {
    all.push_back({(*record)->id, (*record)->reservation.owner()});
  }
  return all;
}

std::shared_ptr<SessionRecord> SessionStore::find(const std::string& id, const Owner& owner) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->reservation.owner() != owner) return nullptr;
  return found->second;
}

std::list<SessionRecord*>& SessionStore::order_of(const SessionRecord& record) {
  return record.stored ? idle_stored_ : idle_;
}

void SessionStore::begin_idle(SessionRecord& record) {
  std::list<SessionRecord*>& order = order_of(record);
  order.splice(order.end(), record.aside);
  if (!record.stored) return;
  std::list<SessionRecord*>& of_owner = record.of_owner->idle_stored;
  of_owner.splice(of_owner.end(), record.owner_aside);
}

void SessionStore::end_idle(SessionRecord& record) {
  record.aside.splice(record.aside.end(), order_of(record), record.node);
  if (!record.stored) return;
  record.owner_aside.splice(record.owner_aside.end(), record.of_owner->idle_stored,
                            record.owner_node);
}

bool SessionStore::insert(const std::shared_ptr<SessionRecord>& record) {
  const auto owner = owners_.try_emplace(record->reservation.owner()).first;
  bool is_new = false;
  try {
    is_new = sessions_.emplace(record->id, record).second;
  } catch (...) {
    if (owner->second.count == 0) owners_.erase(owner);
    throw;
  }
  if (!is_new) return false;  // so that the owner has one
  record->of_owner = &owner->second;
  ++owner->second.count;
  note_use(*record);
  session_bytes_ += record->reservation.bytes();
  return true;
}

void SessionStore::note_use(SessionRecord& record) {
  begin_idle(record);
  record.last_used = clock_.now();
  record.last_used_at = clock_.wall_time();
}

SessionStore::Sessions::node_type SessionStore::extract(Sessions::iterator session) {
  SessionRecord& record = *session->second;
  if (!record.busy) end_idle(record);
  session_bytes_ -= record.reservation.bytes();
  if (--std::exchange(record.of_owner, nullptr)->count == 0) {
    owners_.erase(record.reservation.owner());
  }
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
    record->values_at_lease = record->state_values;
    end_idle(*record);
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
  const std::int64_t limit = least_limit(model->config().max_values(), max_values);
  const std::int64_t fed = fed_values(*model, limit);
  if (fed == kNeverFull) {
    result.refusal.error = SessionError::kNeedsMaxTokens;
    return result;
  }
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(admitted_bytes(*model, fed), static_cast<std::size_t>(num_samples),
                             &bytes) ||
      __builtin_add_overflow(bytes, call_bytes, &bytes)) {
    bytes = SIZE_MAX;
  }
  Made made = new_record(model_name, std::move(model), {}, bytes, /*takes_place=*/false, owner,
                         std::move(adapter));
  result.refusal = made.refusal;
  if (made.record == nullptr) return result;
  SessionRecord& record = *made.record;
  // What it was admitted for is a matter of memory, not the end of its sequence.
  record.max_values = record.model->config().max_values();
  try {
    record.sequence.emplace(record.model->new_sequence(weights_of(record.adapter)));
    result.lease = SessionLease(this, std::move(made.record));
  } catch (const std::bad_alloc&) {
    result.refusal.error = SessionError::kOutOfMemory;
  }
  return result;
}

void SessionStore::give_back(std::shared_ptr<SessionRecord> record) noexcept {
  record->of_call.reset();
  if (record->id.empty()) return;
  end_call(*record);
  Sessions::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  --busy_sessions_;
  busy_bytes_ -= record->reservation.bytes();
  if (!record->discarded && !record->unloaded && !record->removed) {
    record->busy = false;
    record->state_values = record->sequence->next_position();
    note_use(*record);
    return;
  }
  if (record->unloaded && !record->stored)
    closed_.remember(record->id, record->reservation.owner());
  gone = extract(sessions_.find(record->id));
}

// What the history cannot know of a call, and the state that is kept of its end.
void SessionStore::end_call(SessionRecord& record) noexcept {
  const SequenceState& sequence = *record.sequence;
  if (record.discarded || sequence.next_position() != record.history->position()) return;
  const std::int64_t num_values = sequence.next_position();
  if (num_values == record.values_at_lease) return;
  // A stop string was found there, and the next match begins after it.
  if (sequence.generated_tail.empty() && !record.history->tail_at(num_values).empty()) {
    record.history->begin_match();
  }
  try {
    record.checkpoints.take(sequence);
  } catch (const std::bad_alloc&) {  // one fewer to go back to
  }
}

SessionInfo SessionStore::info_of(const SessionRecord& record) {
  const SessionHistory::Extent extent = record.history->extent();
  SessionInfo info;
  info.id = record.id;
  info.model = record.model_name;
  info.transformer = record.model.get();
  if (record.adapter != nullptr) info.adapter = record.adapter->name;
  info.num_values = std::max(extent.position, record.state_values);
  info.oldest_position = oldest_position(record, extent);
  info.digest = to_hex(extent.digest);
  info.has_pending = info.num_values > 0;
  info.busy = record.busy;
  info.state_bytes = record.reservation.bytes();
  info.max_values = record.max_values;
  info.window = record.options.window;
  info.durability = record.options.durability;
  const std::int64_t foreign = record.foreign_values;
  const bool has_own = info.num_values > foreign;  // values that this machine computed
  info.numerics = has_own ? "" : record.options.numerics;
  info.numerics_text = record.options.numerics_text;
  info.numerics_before = has_own ? record.options.numerics : "";
  info.numerics_changed_at = has_own && foreign > 0 ? foreign : record.options.numerics_changed_at;
  info.created = record.created_at;
  info.last_used = record.last_used_at;
  return info;
}

std::int64_t SessionStore::oldest_position(const SessionRecord& record,
                                           const SessionHistory::Extent& extent) {
  if (extent.base == 0) return 0;
  std::int64_t oldest = extent.position;
  const auto have = [&](std::int64_t position) {
    if (position >= extent.base) oldest = std::min(oldest, position);
  };
  if (!record.busy) have(record.state_values);
  if (record.options.initial != nullptr) have(record.options.initial->state_position);
  return std::min(oldest, record.checkpoints.oldest(extent.base).value_or(oldest));
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
  stats.forked = forked_;
  stats.rewound = rewound_;
  stats.parked = parked_;
  stats.woken = woken_;
  stats.examined = examined_;
  return stats;
}

std::size_t SessionStore::num_sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

}  // namespace lintel
