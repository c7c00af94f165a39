// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_manager.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <span>
#include <utility>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"
#include "model/lora/adapter.h"
#include "server/core/random_bytes.h"
#include "server/sessions/session.h"

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

// Tokens that a sequence of at most so many tokens (0: unbounded) is fed: the last token never is,
// and a state that is full takes no more.
std::int64_t fed_tokens(const Transformer& model, std::int64_t limit) {
  return limit == 0 ? model.tokens_until_full() : limit - 1;
}

// Most tokens of a session; 0: unbounded. Text in windows may exceed the model's length.
std::int64_t tokens_limit(const Transformer& model, const SessionOptions& session) {
  const bool is_endless = session.window > 0 && model.config().modality != ModalityKind::kImage;
  return is_endless ? session.max_tokens
                    : least_limit(model.config().max_tokens(), session.max_tokens);
}

// Memory of the record, its id and names, its nodes in the map and in the order of last use, and
// its part of the owner's account: measured, with the allocator's own share
// (tests/server/sessions/session_bytes_test.cpp).
constexpr std::size_t kRecordBytes = 1024;

// Notes in a refusal for ever how many tokens were asked for, and how many fit. bytes(tokens): what
// so many need; it grows with them.
template <typename Bytes>
void note_most_tokens(std::int64_t asked, const Bytes& bytes, SessionRefusal& refusal) {
  if (refusal.error != SessionError::kTooLarge) return;
  refusal.expected = asked;
  std::int64_t fit = 0;
  std::int64_t too_many = asked;
  while (too_many - fit > 1) {
    const std::int64_t middle = fit + (too_many - fit) / 2;
    (bytes(middle) <= refusal.bytes_free ? fit : too_many) = middle;
  }
  refusal.highest = fit;
}

// Bytes of a one-shot call whose sequences are fed so many tokens each.
std::size_t one_shot_bytes(const Transformer& model, std::int64_t fed, int num_samples,
                           std::size_t call_bytes) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(SessionManager::admitted_bytes(model, fed),
                             static_cast<std::size_t>(num_samples), &bytes) ||
      __builtin_add_overflow(bytes, call_bytes, &bytes)) {
    return SIZE_MAX;
  }
  return bytes;
}

}  // namespace

std::size_t SessionManager::admitted_bytes(const Transformer& model, std::int64_t num_tokens) {
  const std::size_t bytes = model.sequence_bytes(num_tokens);
  return bytes > SIZE_MAX - kRecordBytes ? SIZE_MAX : bytes + kRecordBytes;
}

std::size_t SessionManager::session_bytes(const Transformer& model, const SessionOptions& session,
                                          std::int64_t history_tokens, const SessionImage* image) {
  if (image == nullptr) image = session.initial.get();
  const std::int64_t limit = tokens_limit(model, session);
  const std::int64_t fed = fed_tokens(model, least_limit(limit, session.window));
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

SessionManager::Capacity SessionManager::capacity(const Transformer& model) const {
  const std::size_t memory = memory_.limit_bytes();
  const std::int64_t full = model.config().max_tokens();
  const bool grows = !model.constant_state();
  Capacity found;
  found.session_tokens =
      grows ? std::min(full == 0 ? kCapacityTokens : full, kCapacityTokens) : full;
  const std::size_t each =
      session_bytes(model, {.max_tokens = found.session_tokens}, options_.history_tokens);
  found.sessions = static_cast<std::int64_t>(memory / each);
  // The last token is never fed.
  const auto fits = [&](std::int64_t tokens) {
    return admitted_bytes(model, tokens - 1) <= memory;
  };
  if (!grows) {
    found.tokens = full;
    return found;
  }
  const std::int64_t until = model.tokens_until_full();
  const bool has_end = until != kNeverFull;
  if (has_end && fits(until + 1)) {
    found.tokens = full;
    return found;
  }
  // Between a length that fits, or 0, and one that does not.
  std::int64_t most = 0;
  std::int64_t above = has_end ? until + 1 : std::int64_t{1} << 40;
  if (full > 0) above = std::min(above, full + 1);
  while (above - most > 1) {
    const std::int64_t middle = most + (above - most) / 2;
    (fits(middle) ? most : above) = middle;
  }
  found.tokens = most;
  return found;
}

SessionHistory::Options SessionManager::history_of(const Transformer& model,
                                                   const SessionOptions& session,
                                                   std::int64_t history_tokens,
                                                   const SessionImage* image) {
  SessionHistory::Options history;
  history.vocab_size = model.head().vocab_size();
  history.tokenizer = model.tokenizer();
  history.max_tokens = tokens_limit(model, session);
  history.kept_tokens = least_limit(session.history_tokens, history_tokens);
  // Tokens that the state lacks have to be kept until they were read.
  const std::int64_t lacks = image == nullptr ? 0 : image->position - image->state_position;
  history.kept_tokens = std::max({history.kept_tokens, lacks, session.window, std::int64_t{1}});
  return history;
}

SessionManager::SessionManager(const Options& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      memory_(
          {.bytes = options.session_memory_bytes == kAutoBytes ? 0 : options.session_memory_bytes,
           .places = options.max_sessions,
           .bytes_per_owner = options.bytes_per_owner,
           .places_per_owner = options.max_sessions_per_owner}),
      line_([this](const Owner& owner,
                   std::size_t bytes) { return memory_.reserve(owner, bytes, false); },
            [this](SessionError refused, const Owner& owner) { return make_room(refused, owner); },
            clock) {
  memory_.notify_first(&line_);
}

SessionManager::~SessionManager() {
#ifndef NDEBUG
  MutexLock lock(mutex_);
  for (const auto& [id, record] : sessions_) assert(!record->busy);
#endif
}

SessionMemory::Result SessionManager::reserve(const Owner& owner, std::size_t bytes,
                                              bool takes_place) {
  while (true) {
    SessionMemory::Result result = memory_.reserve(owner, bytes, takes_place);
    if (!result.refusal || !make_room(result.refusal.error, owner)) return result;
  }
}

SessionManager::Made SessionManager::new_record(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                const SessionOptions& session, std::size_t bytes,
                                                bool takes_place, const Owner& owner,
                                                SharedAdapter adapter) {
  return new_record(model_name, std::move(model), session, reserve(owner, bytes, takes_place),
                    takes_place, std::move(adapter));
}

SessionManager::Made SessionManager::new_record(const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                const SessionOptions& session,
                                                SessionMemory::Result admitted, bool takes_place,
                                                SharedAdapter adapter) const {
  Made made;
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

SessionManager::CreateResult SessionManager::create(const std::string& model_name,
                                                    std::shared_ptr<const Transformer> model,
                                                    const SessionOptions& session,
                                                    const Owner& owner, SharedAdapter adapter) {
  return add(new_session(model_name, std::move(model), session, session.initial.get(), owner,
                         std::move(adapter)));
}

SessionManager::CreateResult SessionManager::add(Made made) {
  CreateResult result{{}, made.refusal};
  if (made.record == nullptr) return result;
  MutexLock lock(mutex_);
  result.info = info_of(*made.record);
  insert(made.record);
  ++created_;
  return result;
}

std::optional<SessionOptions> SessionManager::made_as(const std::string& id,
                                                      const Owner& owner) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) return std::nullopt;
  SessionOptions options = record->options;
  options.initial = nullptr;
  return options;
}

void SessionManager::set_stored(const std::string& id, const Owner& owner) {
  {
    MutexLock lock(mutex_);
    const std::shared_ptr<SessionRecord> record = find(id, owner);
    if (record == nullptr || record->stored) return;
    if (!record->busy) end_idle(*record);
    record->stored = true;
    if (!record->busy) begin_idle(*record);
  }
  line_.on_room();  // it may make room now
}

std::vector<SessionManager::Named> SessionManager::idle_stored(const Transformer* model) const {
  std::vector<Named> all;
  MutexLock lock(mutex_);
  all.reserve(idle_stored_.size());
  for (auto record = idle_stored_.rbegin(); record != idle_stored_.rend(); ++record) {
    if (model != nullptr && (*record)->model.get() != model) continue;
    all.push_back({(*record)->id, (*record)->reservation.owner()});
  }
  return all;
}

std::shared_ptr<SessionRecord> SessionManager::find(const std::string& id,
                                                    const Owner& owner) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->reservation.owner() != owner) return nullptr;
  return found->second;
}

std::list<SessionRecord*>& SessionManager::order_of(const SessionRecord& record) {
  return record.stored ? idle_stored_ : idle_;
}

void SessionManager::begin_idle(SessionRecord& record) {
  std::list<SessionRecord*>& order = order_of(record);
  order.splice(order.end(), record.aside);
  if (!record.stored) return;
  std::list<SessionRecord*>& of_owner = record.of_owner->idle_stored;
  of_owner.splice(of_owner.end(), record.owner_aside);
}

void SessionManager::end_idle(SessionRecord& record) {
  record.aside.splice(record.aside.end(), order_of(record), record.node);
  if (!record.stored) return;
  record.owner_aside.splice(record.owner_aside.end(), record.of_owner->idle_stored,
                            record.owner_node);
}

bool SessionManager::insert(const std::shared_ptr<SessionRecord>& record) {
  const auto owner = owners_.try_emplace(record->reservation.owner()).first;
  bool is_new = false;
  try {
    is_new = sessions_.emplace(record->id, record).second;
  } catch (...) {
    if (owner->second.count == 0) owners_.erase(owner);
    throw;
  }
  if (!is_new) return false;  // the one of that id keeps the owner's entry
  record->of_owner = &owner->second;
  ++owner->second.count;
  note_use(*record);
  session_bytes_ += record->reservation.bytes();
  return true;
}

void SessionManager::note_use(SessionRecord& record) {
  begin_idle(record);
  record.last_used = clock_.now();
  record.last_used_at = clock_.wall_time();
}

SessionManager::Sessions::node_type SessionManager::extract(Sessions::iterator session) {
  SessionRecord& record = *session->second;
  if (!record.busy) end_idle(record);
  session_bytes_ -= record.reservation.bytes();
  if (--std::exchange(record.of_owner, nullptr)->count == 0) {
    owners_.erase(record.reservation.owner());
  }
  return sessions_.extract(session);
}

SessionManager::LeaseResult SessionManager::lease(const std::string& id, const Owner& owner) {
  LeaseResult result;
  MutexLock lock(mutex_);
  std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) {
    result.refusal = absence_of(id, owner);
  } else if (record->busy) {
    result.refusal.error = SessionError::kBusy;
  } else {
    record->busy = true;
    record->tokens_at_lease = record->state_tokens;
    end_idle(*record);
    record->last_used = clock_.now();
    record->last_used_at = clock_.wall_time();
    ++busy_sessions_;
    busy_bytes_ += record->reservation.bytes();
    result.lease = SessionLease(this, std::move(record));
  }
  return result;
}

SessionPin SessionManager::pin(const std::string& id, const Owner& owner) {
  MutexLock lock(mutex_);
  std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) return {};
  ++record->pins;
  return {this, std::move(record)};
}

void SessionManager::unpin(SessionRecord& record) noexcept {
  {
    MutexLock lock(mutex_);
    if (--record.pins > 0) return;
  }
  line_.on_room();  // it may make room now
}

bool SessionManager::is_current(const SessionRecord& record) const {
  MutexLock lock(mutex_);
  return record.of_owner != nullptr;
}

SessionManager::LeaseResult SessionManager::lease_one_shot(const std::string& model_name,
                                                           std::shared_ptr<const Transformer> model,
                                                           std::int64_t max_tokens, int num_samples,
                                                           const Owner& owner,
                                                           std::size_t call_bytes,
                                                           SharedAdapter adapter, bool may_wait) {
  LeaseResult result;
  const std::int64_t limit = least_limit(model->config().max_tokens(), max_tokens);
  const std::int64_t fed = fed_tokens(*model, limit);
  if (fed == kNeverFull) {
    result.refusal.error = SessionError::kNeedsMaxTokens;
    return result;
  }
  const auto bytes_of = [&, &transformer = *model](std::int64_t tokens) {
    return one_shot_bytes(transformer, fed_tokens(transformer, tokens), num_samples, call_bytes);
  };
  const std::size_t bytes = bytes_of(limit);
  // Calls that wait for memory go first.
  const bool comes_later = line_.size() > 0 && bytes <= memory_.most_bytes();
  SessionMemory::Result admitted =
      comes_later ? SessionMemory::Result{{}, {SessionError::kOutOfMemory, bytes}}
                  : reserve(owner, bytes, /*takes_place=*/false);
  result.refusal = admitted.refusal;
  note_most_tokens(limit, bytes_of, result.refusal);
  const bool is_in_use = result.refusal.error == SessionError::kOutOfMemory ||
                         result.refusal.error == SessionError::kOwnerOutOfMemory;
  const bool waits = is_in_use && may_wait && options_.max_queue_wait.count() > 0;
  if (result.refusal && !waits) return result;
  Made made =
      new_record(model_name, std::move(model), {},
                 waits ? SessionMemory::Result{memory_.take(owner, 0), {}} : std::move(admitted),
                 /*takes_place=*/false, std::move(adapter));
  result.refusal = made.refusal;
  if (made.record == nullptr) return result;
  SessionRecord& record = *made.record;
  // The admitted number of tokens limits memory; it does not end the sequence.
  record.max_tokens = record.model->config().max_tokens();
  try {
    if (waits) {
      record.ticket.emplace(bytes);
    } else {
      begin_one_shot(record);
    }
    result.lease = SessionLease(this, std::move(made.record));
  } catch (const std::bad_alloc&) {
    result.refusal.error = SessionError::kOutOfMemory;
  }
  return result;
}

void SessionManager::begin_one_shot(SessionRecord& record) {
  record.sequence.emplace(record.model->new_sequence(weights_of(record.adapter)));
}

void SessionManager::give_back(std::shared_ptr<SessionRecord> record) noexcept {
  record->of_call.reset();
  if (record->id.empty()) return;
  end_call(*record);
  Sessions::node_type gone;  // freed without the mutex
  {
    MutexLock lock(mutex_);
    --busy_sessions_;
    busy_bytes_ -= record->reservation.bytes();
    if (record->discarded || record->unloaded || record->removed) {
      if (record->unloaded && !record->stored) {
        closed_.remember(record->id, record->reservation.owner());
      }
      gone = extract(sessions_.find(record->id));
      return;
    }
    record->busy = false;
    record->state_tokens = record->sequence->next_position();
    note_use(*record);
  }
  line_.on_room();  // it may make room now
}

// Adds to the history what it cannot know of a call, and keeps a state of the call's end.
void SessionManager::end_call(SessionRecord& record) noexcept {
  const SequenceState& sequence = *record.sequence;
  if (record.discarded || sequence.next_position() != record.history->position()) return;
  const std::int64_t num_tokens = sequence.next_position();
  if (num_tokens == record.tokens_at_lease) return;
  // A stop string was found there, and the next match begins after it.
  if (sequence.generated_tail.empty() && !record.history->tail_at(num_tokens).empty()) {
    record.history->begin_match();
  }
  try {
    record.checkpoints.take(sequence);
  } catch (const std::bad_alloc&) {  // one state fewer to go back to
  }
}

SessionInfo SessionManager::info_of(const SessionRecord& record) {
  const SessionHistory::Extent extent = record.history->extent();
  SessionInfo info;
  info.id = record.id;
  info.model = record.model_name;
  info.transformer = record.model.get();
  if (record.adapter != nullptr) info.adapter = record.adapter->name;
  info.num_tokens = std::max(extent.position, record.state_tokens);
  info.oldest_position = oldest_position(record, extent);
  info.digest = to_hex(extent.digest);
  info.has_pending = info.num_tokens > 0;
  info.busy = record.busy;
  info.state_bytes = record.reservation.bytes();
  info.max_tokens = record.max_tokens;
  info.window = record.options.window;
  info.durability = record.options.durability;
  const std::int64_t foreign = record.foreign_tokens;
  const bool has_own = info.num_tokens > foreign;  // tokens that this machine computed
  info.numerics = has_own ? "" : record.options.numerics;
  info.numerics_text = record.options.numerics_text;
  info.numerics_before = has_own ? record.options.numerics : "";
  info.numerics_changed_at = has_own && foreign > 0 ? foreign : record.options.numerics_changed_at;
  info.created = record.created_at;
  info.last_used = record.last_used_at;
  return info;
}

std::int64_t SessionManager::oldest_position(const SessionRecord& record,
                                             const SessionHistory::Extent& extent) {
  if (extent.base == 0) return 0;
  std::int64_t oldest = extent.position;
  const auto have = [&](std::int64_t position) {
    if (position >= extent.base) oldest = std::min(oldest, position);
  };
  if (!record.busy) have(record.state_tokens);
  if (record.options.initial != nullptr) have(record.options.initial->state_position);
  return std::min(oldest, record.checkpoints.oldest(extent.base).value_or(oldest));
}

std::optional<SessionInfo> SessionManager::get(const std::string& id, const Owner& owner) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<SessionRecord> record = find(id, owner);
  if (record == nullptr) return std::nullopt;
  return info_of(*record);
}

std::vector<SessionInfo> SessionManager::list(const std::string& model, const std::string& after_id,
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

std::size_t SessionManager::bytes_in_use() const { return memory_.bytes_in_use(); }

SessionManager::Stats SessionManager::stats() const {
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
  stats.unloaded = unloaded_;
  stats.loaded = loaded_;
  stats.examined = examined_;
  return stats;
}

std::size_t SessionManager::num_sessions() const {
  MutexLock lock(mutex_);
  return sessions_.size();
}

// SessionManager: fork, rewind and history.

SessionManager::Source SessionManager::find_source(const std::string& id, const Owner& owner) {
  Source source;
  LeaseResult leased = lease(id, owner);
  source.refusal = leased.refusal;
  if (leased.lease) {
    source.record = leased.lease.record_;
    source.held = std::move(leased.lease);
  } else if (leased.refusal.error == SessionError::kBusy) {
    MutexLock lock(mutex_);
    source.record = find(id, owner);
    if (source.record == nullptr) source.refusal = absence_of(id, owner);  // gone since
  }
  return source;
}

SessionRefusal SessionManager::out_of_range(const SessionRecord& record) const {
  SessionRefusal refusal{SessionError::kOutOfRange};
  const SessionHistory::Extent extent = record.history->extent();
  MutexLock lock(mutex_);
  refusal.lowest = oldest_position(record, extent);
  refusal.highest = extent.position;
  return refusal;
}

SessionManager::ForkResult SessionManager::fork(const std::string& id, const Owner& owner,
                                                std::optional<std::int64_t> position, int count,
                                                std::optional<Durability> durability) {
  ForkResult result;
  const auto refused = [&](const SessionRefusal& refusal) {
    result.refusal = refusal;
    result.infos.clear();
    return std::move(result);
  };
  Source source = find_source(id, owner);
  if (source.record == nullptr || (!source.held && !position)) return refused(source.refusal);
  const SessionRecord& origin = *source.record;
  const std::int64_t num_tokens = position.value_or(origin.history->position());

  SessionOptions session = origin.options;
  session.durability = durability.value_or(session.durability);
  session.id_prefix.clear();  // a copy has no name
  const std::int64_t foreign = [&] {
    MutexLock lock(mutex_);
    return std::min(origin.foreign_tokens, num_tokens);
  }();
  std::vector<std::shared_ptr<SessionRecord>> forks;
  Sessions added;
  try {
    for (int i = 0; i < count; ++i) {
      // All are admitted before the first is made; an abandoned attempt releases them with `forks`.
      Made made = new_record(origin.model_name, origin.model, session, origin.reservation.bytes(),
                             /*takes_place=*/true, owner, origin.adapter);
      if (made.refusal) return refused(made.refusal);
      made.record->max_tokens = origin.max_tokens;
      forks.push_back(std::move(made.record));
    }
    for (const std::shared_ptr<SessionRecord>& fork : forks) {
      fork->history = origin.history->fork(num_tokens);
      if (fork->history == nullptr) return refused(out_of_range(origin));
      const NearestState nearest(origin, source.held ? &*origin.sequence : nullptr,
                                 fork->history->base(), num_tokens);
      if (!nearest) return refused(out_of_range(origin));
      fork->sequence.emplace(nearest.copy());
      fork->state_tokens = fork->sequence->next_position();
      if (fork->state_tokens == num_tokens) remember_tail(*fork->sequence, *fork->history);
      fork->checkpoints.share(origin.checkpoints, num_tokens);
      fork->foreign_tokens = foreign;
      added.emplace(fork->id, fork);
    }
    result.infos.reserve(forks.size());
    for (const auto& fork : forks) result.infos.push_back(info_of(*fork));
  } catch (const std::bad_alloc&) {
    return refused({SessionError::kOutOfMemory});
  }
  source.held = SessionLease();

  MutexLock lock(mutex_);
  // Its model may have gone meanwhile: then it closes no more sessions.
  if (find(id, owner) != source.record || origin.unloaded) return refused(absence_of(id, owner));
  sessions_.merge(added);
  for (const auto& fork : forks) {
    fork->of_owner = origin.of_owner;
    ++fork->of_owner->count;
    note_use(*fork);
    session_bytes_ += fork->reservation.bytes();
    ++forked_;
  }
  return result;
}

SessionManager::CreateResult SessionManager::rewind(const std::string& id, const Owner& owner,
                                                    std::int64_t position,
                                                    const std::optional<Digest>& expected) {
  CreateResult result;
  LeaseResult leased = lease(id, owner);
  result.refusal = leased.refusal;
  if (!leased.lease) return result;
  const std::shared_ptr<SessionRecord> record = leased.lease.record_;
  result.refusal = rewind(leased.lease, position, expected);
  leased.lease = SessionLease();
  // The session is idle: its own state counts for the positions that can be reached, too.
  if (result.refusal.error == SessionError::kOutOfRange) result.refusal = out_of_range(*record);
  if (result.refusal) return result;
  MutexLock lock(mutex_);
  if (find(id, owner) == nullptr) {  // deleted or closed meanwhile
    result.refusal = absence_of(id, owner);
    return result;
  }
  ++rewound_;
  result.info = info_of(*record);
  return result;
}

SessionRefusal SessionManager::rewind(SessionLease& lease, std::int64_t position,
                                      const std::optional<Digest>& expected,
                                      const StoredState* stored) {
  SessionRecord& record = *lease.record_;
  const SessionHistory::Extent extent = record.history->extent();
  if (expected && *expected != extent.digest) return {SessionError::kDigestMismatch};
  SequenceState& sequence = *record.sequence;
  const NearestState nearest(record, &sequence, extent.base, position);
  const bool takes_stored = stored != nullptr && extent.base <= stored->num_tokens &&
                            stored->num_tokens <= position &&
                            stored->num_tokens > std::max<std::int64_t>(nearest.num_tokens(), 0);
  if (position < extent.base || position > extent.position || (!nearest && !takes_stored)) {
    return out_of_range(record);
  }
  try {
    if (takes_stored) {
      // Counts both states until the old one is freed.
      const SessionMemory::Reservation both =
          memory_.take(lease.owner(), record.reservation.bytes());
      SequenceState loaded = record.model->new_sequence(weights_of(record.adapter));
      PagedStateReader reader(stored->bytes, stored->pages);
      loaded.load(reader, stored->num_tokens);
      sequence = std::move(loaded);
    } else if (nearest.is_empty()) {
      sequence.reset();
    } else if (!nearest.is(sequence)) {
      // Counts both states until the old one is freed.
      const SessionMemory::Reservation both =
          memory_.take(lease.owner(), record.reservation.bytes());
      sequence = nearest.copy();
    }
    record.history->rewind(position);
    record.checkpoints.cut(extent.base, position);
  } catch (const std::bad_alloc&) {
    return {SessionError::kOutOfMemory};
  }
  if (sequence.next_position() == position) remember_tail(sequence, *record.history);
  record.tokens_at_lease = sequence.next_position();  // nothing was added
  MutexLock lock(mutex_);
  record.foreign_tokens = std::min(record.foreign_tokens, position);
  return {};
}

SessionManager::HistoryResult SessionManager::history(const std::string& id, const Owner& owner,
                                                      std::int64_t from,
                                                      std::optional<std::int64_t> to) const {
  HistoryResult result;
  std::shared_ptr<SessionRecord> record;
  {
    MutexLock lock(mutex_);
    record = find(id, owner);
    if (record == nullptr) result.refusal = absence_of(id, owner);
  }
  if (record == nullptr) return result;
  // A fork has the tokens of one moment: a worker may append meanwhile.
  const std::int64_t end = to.value_or(record->history->position());
  const auto past = end < 0 ? nullptr : record->history->fork(end);
  if (past == nullptr || from < past->base() || from > end) {
    const SessionHistory::Extent extent = record->history->extent();
    result.refusal = {SessionError::kOutOfRange, 0, 0, extent.base, extent.position};
    return result;
  }
  result.first = from;
  result.tokens = past->tokens(from, end);
  result.marks = past->marks(from, end);
  if (!result.marks.empty() && result.marks.back().position == end) result.marks.pop_back();
  return result;
}

// SessionManager: making images of sessions, and sessions of images.

namespace {

// Checks that an image is consistent and fits this model, before memory is admitted for it.
void check_image(const SessionImage& image, const Transformer& model, std::int64_t limit) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw ModelError(std::string("session image: ") + what);
  };
  const auto num_tokens = static_cast<std::int64_t>(image.tokens.size());
  require(
      image.base >= 0 && image.position >= image.base && num_tokens == image.position - image.base,
      "its tokens are not those from its base to its position");
  require(limit == 0 || image.position <= limit, "it has more tokens than the session may have");
  require(!image.state_bytes().empty() || image.base == 0, "it has neither all tokens nor a state");
  require(image.state_position >= image.base && image.state_position <= image.position &&
              image.state_bytes().empty() == (image.state_position == 0),
          "its state is not one of its tokens");
  const int vocab_size = model.head().vocab_size();
  require(std::all_of(image.tokens.begin(), image.tokens.end(),
                      [&](std::int32_t token) { return token >= 0 && token < vocab_size; }),
          "it has tokens that the model does not know");
  const auto unordered = std::adjacent_find(
      image.marks.begin(), image.marks.end(),
      [](const HistoryMark& a, const HistoryMark& b) { return a.position >= b.position; });
  require(unordered == image.marks.end(), "its marks are not in order");
}

}  // namespace

SessionManager::Made SessionManager::new_session(const std::string& model_name,
                                                 std::shared_ptr<const Transformer> model,
                                                 SessionOptions session, const SessionImage* image,
                                                 const Owner& owner, SharedAdapter adapter) {
  const SessionHistory::Options history =
      history_of(*model, session, options_.history_tokens, image);
  const std::size_t bytes = session_bytes(*model, session, options_.history_tokens, image);
  Made made;
  if (history.max_tokens == 0 && session.window == 0 && model->tokens_until_full() == kNeverFull) {
    made.refusal.error = SessionError::kNeedsMaxTokens;
    return made;
  }
  if (image != nullptr) check_image(*image, *model, history.max_tokens);
  if (image == nullptr || image->base == 0) session.initial = nullptr;
  made = new_record(model_name, model, session, bytes, /*takes_place=*/true, owner,
                    std::move(adapter));
  note_most_tokens(
      history.max_tokens,
      [&](std::int64_t tokens) {
        SessionOptions shorter = session;
        shorter.max_tokens = tokens;
        return session_bytes(*model, shorter, options_.history_tokens, image);
      },
      made.refusal);
  if (made.record == nullptr) return made;
  SessionRecord& record = *made.record;
  record.max_tokens = history.max_tokens;
  try {
    record.sequence.emplace(record.model->new_sequence(weights_of(record.adapter)));
    record.history = std::make_unique<SessionHistory>(history);
    if (image == nullptr) return made;
    SequenceState& sequence = *record.sequence;
    if (!image->state_bytes().empty()) {
      PagedStateReader reader(image->state_bytes(), image->pages);
      sequence.load(reader, image->state_position);
      if (sequence.next_position() != image->state_position || !reader.all_read()) {
        throw ModelError("session image: its state is not as long as it says");
      }
      // No machine would compute what it holds now.
      if (reader.has_converted() && !record.options.numerics.empty()) {
        record.options.numerics = kUnknownNumerics;
      }
    }
    if (image->base > 0) {
      record.history->begin_at(
          image->base, image->base_digest,
          sequence.next_position() == image->base ? sequence.generated_tail : "");
    }
    record.history->append(*image);
    if (record.history->extent().digest != image->digest) {
      throw ModelError("session image: its tokens do not have the digest that it says");
    }
    record.state_tokens = sequence.next_position();
    if (!record.options.numerics.empty()) record.foreign_tokens = image->position;
  } catch (const std::bad_alloc&) {
    made.record = nullptr;
    made.refusal.error = SessionError::kOutOfMemory;
  }
  return made;
}

SessionManager::CreateResult SessionManager::restore(const std::string& model_name,
                                                     std::shared_ptr<const Transformer> model,
                                                     const SessionImage& image, const Owner& owner,
                                                     SharedAdapter adapter,
                                                     const SessionOptions& session) {
  SessionOptions whole = session;
  whole.max_tokens = image.max_tokens;
  whole.window = image.window;
  return add(new_session(model_name, std::move(model), std::move(whole), &image, owner,
                         std::move(adapter)));
}

SessionManager::LoadResult SessionManager::load(const StoredSession& stored,
                                                const std::string& model_name,
                                                std::shared_ptr<const Transformer> model,
                                                const SessionImage& image, const Owner& owner,
                                                SharedAdapter adapter) {
  LoadResult result;
  Made made =
      new_session(model_name, std::move(model), stored.options, &image, owner, std::move(adapter));
  result.refusal = made.refusal;
  if (made.record == nullptr) return result;
  SessionRecord& record = *made.record;
  record.id = stored.id;
  record.stored = true;
  record.created_at = stored.created;
  MutexLock lock(mutex_);
  if (!insert(made.record)) {
    result.refusal.error = SessionError::kBusy;
    return result;
  }
  record.last_used_at = stored.last_used;
  ++loaded_;
  ++record.pins;
  result.pin = SessionPin(this, std::move(made.record));
  return result;
}

SessionManager::ImageResult SessionManager::image(const std::string& id, const Owner& owner,
                                                  std::optional<std::int64_t> position,
                                                  bool with_history, bool with_state,
                                                  const StatePlace& place, bool in_pages) {
  ImageResult result;
  const Source source = find_source(id, owner);
  result.refusal = source.refusal;
  if (source.record == nullptr || (!source.held && !position)) return result;
  const SessionRecord& record = *source.record;
  SessionImage& image = result.image;
  image.position = position.value_or(record.history->position());
  try {
    const auto past = record.history->fork(image.position);
    const NearestState nearest(record, source.held ? &*record.sequence : nullptr,
                               past == nullptr ? 0 : past->base(), image.position);
    if (past == nullptr || !nearest) {
      result.refusal = out_of_range(record);
      return result;
    }
    result.refusal = {};
    image.model = record.model_name;
    if (record.adapter != nullptr) {
      image.adapter = record.adapter->name;
      image.adapter_fingerprint = record.adapter->weights->fingerprint();
    }
    image.max_tokens = record.max_tokens;
    image.window = record.options.window;
    image.base = past->base();
    const bool has_state = (with_state || image.base > 0) && !nearest.is_empty();
    if (has_state) image.state_position = nearest.num_tokens();
    if (!with_history && image.state_position > 0) {
      // The tokens that the state lacks, those that the tail after it may reach back to, and those
      // from which a window is rebuilt.
      const std::int64_t reach = image.state_position == image.position
                                     ? 0
                                     : static_cast<std::int64_t>(SessionHistory::kMostTailBytes);
      image.base = std::max(image.base, image.state_position - std::max(reach, image.window));
    }
    image.tokens = past->tokens(image.base, image.position);
    image.marks = past->marks(image.base, image.position);
    image.digest = past->extent().digest;
    image.base_digest = *past->digest_at(image.base);
    if (has_state && in_pages) {
      nearest.save_pages(image.state, image.pages);
    } else if (has_state) {
      nearest.save(place ? place(image, nearest.saved_bytes()) : image.state);
    }
  } catch (const std::bad_alloc&) {
    result.refusal.error = SessionError::kOutOfMemory;
  }
  return result;
}

// SessionManager: removing sessions, and errors about removed ones.

bool SessionManager::make_room(SessionError refused, const Owner& owner) {
  if (evict_idle() > 0) return true;
  if (refused == SessionError::kTooLarge) return false;
  const bool for_owner =
      refused == SessionError::kOwnerTooManySessions || refused == SessionError::kOwnerOutOfMemory;
  Sessions::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const auto of_owner = for_owner ? owners_.find(owner) : owners_.end();
  if (for_owner && of_owner == owners_.end()) return false;
  const std::list<SessionRecord*>& order = for_owner ? of_owner->second.idle_stored : idle_stored_;
  // Only the few sessions that calls look at just now are pinned.
  const auto longest_unused = std::ranges::find_if(order, [&](const SessionRecord* record) {
    ++examined_;
    return record->pins == 0;
  });
  if (longest_unused == order.end()) return false;
  gone = extract(sessions_.find((*longest_unused)->id));
  ++unloaded_;
  return true;
}

SessionRefusal SessionManager::take_out(const std::string& id, const Owner& owner, bool later) {
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

SessionRefusal SessionManager::remove(const std::string& id, const Owner& owner) {
  return take_out(id, owner, /*later=*/false);
}

void SessionManager::remove_when_idle(const std::string& id, const Owner& owner) {
  take_out(id, owner, /*later=*/true);
}

std::size_t SessionManager::evict_idle() {
  if (options_.idle_timeout.count() == 0) return 0;
  const TimePoint used_before = clock_.now() - options_.idle_timeout;
  Sessions evicted;  // freed without the mutex
  MutexLock lock(mutex_);
  for (auto next = idle_.begin(); next != idle_.end();) {
    ++examined_;
    const SessionRecord& longest_unused = **next++;
    if (longest_unused.last_used > used_before) break;
    if (longest_unused.pins > 0) continue;
    evicted.insert(extract(sessions_.find(longest_unused.id)));
  }
  evicted_ += evicted.size();
  return evicted.size();
}

std::size_t SessionManager::close_sessions(const Transformer& model) {
  return close_sessions_that(
      [&](const SessionRecord& record) { return record.model.get() == &model; });
}

std::size_t SessionManager::close_sessions(const ServedAdapter& adapter) {
  return close_sessions_that(
      [&](const SessionRecord& record) { return record.adapter.get() == &adapter; });
}

template <typename Goes>
std::size_t SessionManager::close_sessions_that(const Goes& goes) {
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

bool SessionManager::has_unstored_sessions(const Transformer& model) const {
  std::string after;
  while (true) {
    MutexLock lock(mutex_);
    auto it = sessions_.upper_bound(after);
    for (std::size_t seen = 0; seen < kWalkAtATime; ++seen, ++it) {
      if (it == sessions_.end()) return false;
      if (it->second->model.get() == &model && !it->second->stored) return true;
      after = it->first;
    }
  }
}

SessionRefusal SessionManager::absence(const std::string& id, const Owner& owner) const {
  MutexLock lock(mutex_);
  return absence_of(id, owner);
}

SessionRefusal SessionManager::absence_of(const std::string& id, const Owner& owner) const {
  return {closed_.had(id, owner) ? SessionError::kUnloaded : SessionError::kNotFound};
}

}  // namespace lintel
