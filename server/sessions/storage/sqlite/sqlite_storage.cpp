// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/sqlite_storage.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "server/core/random_bytes.h"
#include "server/core/threads.h"
#include "server/sessions/storage/sqlite/sqlite_connection.h"
#include "server/sessions/storage/sqlite/sqlite_schema.h"

namespace lintel {

namespace {

SessionError outcome_of_read(const SqliteError& error) {
  return error.code() == SQLITE_CORRUPT || error.code() == SQLITE_NOTADB ? SessionError::kDamaged
                                                                         : SessionError::kStoreAway;
}

}  // namespace

SqliteStorage::SqliteStorage(Options options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), directory_(options_.directory) {
  MutexLock lock(store_mutex_);
  const auto fail = [this](const char* why) REQUIRES(store_mutex_) {
    // The files are left as they were found, for inspection.
    if (connection_ != nullptr) connection_->leave_alone();
    throw StorageError("session store " + options_.directory.string() + ": " + why);
  };
  try {
    connection_ = std::make_unique<SqliteConnection>(directory_.database(), options_.sqlite_vfs);
    schema_ = std::make_unique<SqliteSchema>(*connection_);
    acknowledged_ =
        std::make_unique<CommitWatermark>(options_.open_file(directory_.acknowledged()));
    reserve_ = options_.open_file(directory_.reserve());
    reserve_->cut(options_.reserve_bytes);  // larger if the process was killed while making it
    scan_journal();
    count_slots();
    drop_states_beyond_limit();
    if (!make_reserve()) {
      health_.state = Health::State::kFull;
      health_.why = "there is no room on the disk";
    }
    if (health_.state == Health::State::kBroken) fail(health_.why.c_str());
  } catch (const StorageError& error) {
    fail(error.what());
  } catch (const SqliteError& error) {
    fail(error.what());
  } catch (const std::system_error& error) {
    fail(error.what());
  }
  writer_ = std::thread([this] { write_until_closed(); });
}

SqliteStorage::~SqliteStorage() {
  {
    MutexLock lock(queue_mutex_);
    closing_ = true;
    queue_changed_.notify_all();
  }
  writer_.join();
  MutexLock lock(store_mutex_);
  if (health_.state != Health::State::kBroken) checkpoint(0);
}

StateSlab& SqliteStorage::slab_for(std::size_t state_bytes) {
  const std::size_t slot_bytes = StateSlab::slot_bytes_for(state_bytes);
  std::unique_ptr<StateSlab>& slab = slabs_[slot_bytes];
  if (slab == nullptr) {
    slab = std::make_unique<StateSlab>(options_.open_file(directory_.slab(slot_bytes)), slot_bytes,
                                       options_.slab_bytes);
  }
  return *slab;
}

SqliteSchema::Found SqliteStorage::stored(const SessionId& id) {
  SqliteSchema::Found found;
  found.damaged = quarantined_.contains(id);
  if (found.damaged) return found;
  try {
    found = schema_->find(id);
  } catch (const SqliteError& error) {
    if (outcome_of_read(error) != SessionError::kDamaged) throw;
    found.damaged = true;
  }
  // The row is newer than the journal: its records are lost.
  if (found.stored && found.stored->seq > last_seq_) return {.stored = {}, .damaged = true};
  return found;
}

SqliteStorage::Tails::iterator SqliteStorage::tail_of(const SessionId& id, SessionError* outcome) {
  const auto there = tails_.find(id);
  if (there != tails_.end()) return there;
  SqliteSchema::Found found = stored(id);
  *outcome = found.damaged ? SessionError::kDamaged : SessionError::kNotFound;
  if (!found.stored) return tails_.end();
  std::vector<StateRef> states = found.stored->row.states;
  return tails_
      .emplace(id, Tail{StorageSession(std::move(found.stored->row)), true, std::move(states), 0,
                        found.stored->seq})
      .first;
}

SessionError SqliteStorage::row_of(const SessionId& id, Row* row) {
  const auto tail = tails_.find(id);
  if (tail != tails_.end()) {
    if (tail->second.session.removed()) return SessionError::kNotFound;
    *row = tail->second.session.row();
    return SessionError::kNone;
  }
  SqliteSchema::Found found = stored(id);
  if (found.damaged) return SessionError::kDamaged;
  if (!found.stored) return SessionError::kNotFound;
  *row = std::move(found.stored->row);
  return SessionError::kNone;
}

void SqliteStorage::forget_tail(Tails::iterator tail) {
  if (tail->second.first_seq != 0) by_first_seq_.erase(tail->second.first_seq);
  tails_.erase(tail);
}

SessionStorage::Opened SqliteStorage::open(const SessionId& id, const Owner& owner,
                                           const Digest* have) {
  MutexLock lock(store_mutex_);
  if (health_.state == Health::State::kBroken) return {.outcome = SessionError::kStoreBroken};
  try {
    Opened opened;
    opened.outcome = row_of(id, &opened.row);
    if (opened.outcome != SessionError::kNone) return opened;
    if (opened.row.owner != owner) return {.outcome = SessionError::kNotFound};
    if (held_.contains(id)) return {.outcome = SessionError::kHeld, .holder = "this process"};
    if (have != nullptr && *have == opened.row.digest) opened.row.states.clear();
    fill_with_random(opened.claim.nonce);
    opened.claim.fence = ++last_fence_;
    held_[id] = {opened.claim, {}};
    return opened;
  } catch (const SqliteError& error) {
    return {.outcome = outcome_of_read(error)};
  }
}

SessionStorage::Opened SqliteStorage::find(const SessionId& id, const Owner& owner) {
  MutexLock lock(store_mutex_);
  try {
    Opened found;
    found.outcome = row_of(id, &found.row);
    if (found.outcome == SessionError::kNone && found.row.owner != owner) {
      return {.outcome = SessionError::kNotFound};
    }
    return found;
  } catch (const SqliteError& error) {
    return {.outcome = outcome_of_read(error)};
  }
}

SessionError SqliteStorage::read_tokens(const SessionId& id, std::int64_t first,
                                        std::span<std::int32_t> tokens) {
  MutexLock lock(store_mutex_);
  try {
    Row row;
    const SessionError outcome = row_of(id, &row);
    if (outcome != SessionError::kNone) return outcome;
    const std::int64_t end = first + static_cast<std::int64_t>(tokens.size());
    if (first < row.base || end > row.position) return SessionError::kNotFound;
    // The tokens in its rows, then those in the journal.
    const auto tail = tails_.find(id);
    const std::int64_t stored_end =
        tail == tails_.end() ? end : std::clamp(tail->second.session.first(), first, end);
    const auto of_rows = static_cast<std::size_t>(stored_end - first);
    if (schema_->read_tokens(id, first, tokens.first(of_rows)) != of_rows) {
      return SessionError::kDamaged;
    }
    if (of_rows < tokens.size()) {
      const StorageSession& session = tail->second.session;
      std::copy_n(session.tokens().begin() + (stored_end - session.first()),
                  tokens.size() - of_rows, tokens.begin() + static_cast<std::ptrdiff_t>(of_rows));
    }
    return SessionError::kNone;
  } catch (const SqliteError& error) {
    return outcome_of_read(error);
  }
}

SessionError SqliteStorage::put_state(const SessionId& id, std::span<const std::byte> state,
                                      StateRef* ref) {
  StateSlab* slab = nullptr;
  Claim claim;
  try {
    {
      MutexLock lock(store_mutex_);
      if (health_.state == Health::State::kBroken) return SessionError::kStoreBroken;
      const auto held = held_.find(id);
      if (held == held_.end()) return SessionError::kFenced;
      // Free room is for the reserve first.
      if (!has_reserve_ && options_.reserve_bytes > 0) return SessionError::kStoreFull;
      claim = held->second.claim;
      slab = &slab_for(state.size());
    }
    StateSlab::Slot slot;
    while (!slab->write(id, ref->position, state, &slot)) {
      if (slab->is_full() || !make_room_for_base(id, state.size())) return SessionError::kStoreFull;
    }
    ref->where = slot.index;
    ref->checksum = slot.checksum;
    ref->bytes = state.size();
  } catch (const std::system_error&) {
    return SessionError::kStoreAway;
  }
  {
    MutexLock lock(store_mutex_);
    const auto held = held_.find(id);
    if (held != held_.end() && held->second.claim == claim) {
      nothing_to_drop_ = false;
      held->second.put.push_back(*ref);
      return SessionError::kNone;
    }
  }
  slab->release(ref->where);  // released meanwhile
  return SessionError::kFenced;
}

SessionError SqliteStorage::read_state(const StateRef& ref, std::span<std::byte> state) {
  try {
    StateSlab* slab = nullptr;
    {
      MutexLock lock(store_mutex_);
      slab = &slab_for(ref.bytes);
    }
    if (slab->read({ref.where, ref.checksum}, ref.position, state)) return SessionError::kNone;
  } catch (const std::system_error&) {
    return SessionError::kStoreAway;
  }
  MutexLock lock(store_mutex_);
  ++health_.states_lost;
  return SessionError::kDamaged;
}

std::vector<SessionStorage::Row> SqliteStorage::list(const std::string& model,
                                                     const SessionId& after, std::size_t limit,
                                                     const std::optional<Owner>& owner) {
  MutexLock lock(store_mutex_);
  // Ids of the index and of the journal, merged; then each session's current row.
  std::vector<Row> rows;
  auto tail = tails_.upper_bound(after);
  const auto take = [&](const SessionId& id) {
    Row row;
    if (rows.size() < limit && row_of(id, &row) == SessionError::kNone &&
        (model.empty() || row.model == model) && (!owner || row.owner == *owner)) {
      rows.push_back(std::move(row));
    }
  };
  try {
    schema_->list(model, after, owner, [&](const SessionId& id) {
      while (tail != tails_.end() && tail->first < id) take((tail++)->first);
      if (tail != tails_.end() && tail->first == id) ++tail;
      take(id);
      return rows.size() < limit;
    });
    while (tail != tails_.end() && rows.size() < limit) take((tail++)->first);
  } catch (const SqliteError&) {
    // Returns the rows before the damage.
  }
  return rows;
}

void SqliteStorage::renew(std::span<const SessionId> busy, Done done) {
  done(std::vector<SessionError>(busy.size(), SessionError::kNone));
}

std::size_t SqliteStorage::sweep(std::size_t most) {
  const std::size_t removed = sweep_rows(most);
  free_slots();
  return removed;
}

std::size_t SqliteStorage::sweep_rows(std::size_t most) {
  MutexLock lock(store_mutex_);
  if (health_.state == Health::State::kBroken) return 0;
  const auto now = clock_.wall_time();
  std::size_t removed = 0;
  try {
    const auto micros =
        std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
    std::vector<SessionId> ids = schema_->expired(micros, most + held_.size() + unfolded_.size());
    for (const auto& [id, tail] : tails_) {
      if (tail.session.row().expires <= now) ids.push_back(id);
    }
    if (ids.empty()) return 0;
    const auto remove_them = [&](Transaction& transaction,
                                 bool only_removals) REQUIRES(store_mutex_) {
      removed = 0;
      for (const SessionId& id : ids) {
        Row row;
        if (removed == most || held_.contains(id)) continue;
        if (row_of(id, &row) != SessionError::kNone || row.expires > now) continue;
        SessionError why{};
        const Write remove{
            .kind = Write::Kind::kRemove, .id = id, .before = row.digest, .after = row.digest};
        if (change(tail_of(id, &why), remove, transaction) == SessionError::kNone) ++removed;
      }
      if (!only_removals) fold_some(transaction);
    };
    if (transact_making_room(remove_them, /*has_removals=*/true) != SessionError::kNone) {
      removed = 0;
    }
  } catch (const SqliteError&) {
    removed = 0;
  }
  return removed;
}

SessionStorage::Health SqliteStorage::health() const {
  std::size_t queued = 0;
  {
    MutexLock lock(queue_mutex_);
    queued = queued_bytes_;
  }
  MutexLock lock(store_mutex_);
  Health health = health_;
  health.queued_bytes = queued;
  return health;
}

void SqliteStorage::sync_states() {
  std::vector<StateSlab*> slabs;
  {
    MutexLock lock(store_mutex_);
    if (health_.state != Health::State::kBroken && !has_reserve_ && make_reserve()) {
      health_.state = Health::State::kOk;
      health_.why.clear();
    }
    for (const auto& [bytes, slab] : slabs_) slabs.push_back(slab.get());
  }
  try {
    for (StateSlab* const slab : slabs) slab->sync();
  } catch (const std::system_error&) {
    // States are a cache, each with a checksum: a lost one is detected when it is read.
  }
}

// SqliteStorage: freeing room when the disk is full.

namespace {

constexpr std::size_t kFirstDrop = std::size_t{1} << 20;  // of states, doubled each time
constexpr std::size_t kSessionsAtOnce = 256;
constexpr std::size_t kLeastReserve = 8;  // the smallest part

}  // namespace

SessionError SqliteStorage::transact_making_room(
    const std::function<void(Transaction&, bool only_removals)>& body, bool has_removals) {
  const auto write_all = [&](Transaction& transaction) { body(transaction, false); };
  SessionError outcome = SessionError::kStoreFull;
  if (health_.state == Health::State::kBroken || make_reserve()) {
    outcome = transact(write_all);
    if (outcome == SessionError::kStoreFull && connection_->log_bytes() > 0) {
      empty_log(/*cuts_log=*/false);
      outcome = transact(write_all);
    }
    for (std::size_t bytes = kFirstDrop;
         outcome == SessionError::kStoreFull && drop_states(bytes) > 0; bytes *= 2) {
      outcome = transact(write_all);
    }
  } else if (health_.state == Health::State::kOk) {
    health_.state = Health::State::kFull;
    health_.why = "there is no room on the disk";
  }
  if (outcome != SessionError::kStoreFull || !has_removals) return outcome;
  // The reserve, and the room of the log, are for writes that free room.
  cut_reserve();
  const std::string why = health_.why;
  std::set<SessionId> later;
  const auto remove = [&](Transaction& transaction) {
    body(transaction, true);
    later = transaction.fold;
  };
  outcome = transact(remove);
  if (outcome == SessionError::kStoreFull) {
    empty_log(/*cuts_log=*/true);
    outcome = transact(remove);
  }
  if (outcome != SessionError::kNone) return outcome;
  unfolded_.merge(later);
  empty_log(/*cuts_log=*/true);
  // Folding frees their pages for later writes, if there is room for the fold.
  transact([&](Transaction& transaction) REQUIRES(store_mutex_) { fold_some(transaction); });
  if (health_.state == Health::State::kBroken) return SessionError::kNone;
  empty_log(/*cuts_log=*/true);
  if (health_.state == Health::State::kOk) {  // a removal that succeeded does not change this
    health_.state = Health::State::kFull;
    health_.why = why;
  }
  return outcome;
}

void SqliteStorage::empty_log(bool cuts_log) {
  if (health_.state == Health::State::kBroken) return;
  const auto as_far_as_there_is_room = [&](const auto& step) REQUIRES(store_mutex_) {
    try {
      step();
    } catch (const SqliteError& error) {
      if (error.code() != SQLITE_FULL && error.code() != SQLITE_NOMEM) break_off(error.what());
    }
  };
  as_far_as_there_is_room([&]() REQUIRES(store_mutex_) { schema_->note_seq(last_seq_); });
  if (health_.state == Health::State::kBroken) return;
  as_far_as_there_is_room([&]() REQUIRES(store_mutex_) { connection_->checkpoint(cuts_log); });
}

bool SqliteStorage::make_reserve() {
  if (has_reserve_ || options_.reserve_bytes == 0) return true;
  std::byte last{};
  has_reserve_ = reserve_->read(options_.reserve_bytes - 1, std::span(&last, 1), {}) == 1;
  const auto is_over = [&]() REQUIRES(store_mutex_) {
    return has_reserve_ || health_.state == Health::State::kBroken;  // reported there
  };
  if (is_over() || write_reserve(options_.reserve_bytes) || is_over()) return true;
  if (connection_->log_bytes() > 0) empty_log(/*cuts_log=*/true);
  while (!write_reserve(options_.reserve_bytes) && !is_over()) {
    if (drop_states(options_.reserve_bytes) > 0) continue;
    // A smaller reserve leaves the rest of the room to writes.
    for (std::size_t part = 2; part <= kLeastReserve && !is_over(); part *= 2) {
      write_reserve(options_.reserve_bytes / part);
    }
    return is_over();
  }
  return true;
}

void SqliteStorage::cut_reserve() {
  has_reserve_ = false;
  try {
    reserve_->cut(0);
  } catch (const std::system_error&) {  // what is left of it is written over
  }
}

bool SqliteStorage::write_reserve(std::size_t bytes) {
  try {
    take_room(*reserve_, 0, 2 * bytes);  // first twice as much: so much room remains for writes
    reserve_->cut(bytes);
    has_reserve_ = true;
  } catch (const std::system_error& error) {
    if (!is_want_of_room(error)) break_off(error.what());
    cut_reserve();
  }
  return has_reserve_;
}

std::size_t SqliteStorage::drop_states(std::size_t bytes) {
  if (nothing_to_drop_) return 0;
  std::size_t freed = 0;
  try {
    const bool began_in_between = !dropped_up_to_.id.empty();
    for (int round = began_in_between ? 0 : 1; round < 2 && freed < bytes; ++round) {
      while (freed < bytes) {
        const std::vector<SqliteSchema::Expiring> next =
            schema_->by_expiry(dropped_up_to_, kSessionsAtOnce);
        for (const SqliteSchema::Expiring& session : next) {
          dropped_up_to_ = session;
          freed += drop_states_of(session.id);
          if (freed >= bytes) return freed;
        }
        if (next.empty()) break;
      }
      dropped_up_to_ = {};
      for (const auto& [id, tail] : tails_) {
        if (!tail.stored && freed < bytes) freed += drop_states_of(id);
      }
    }
  } catch (const SqliteError&) {  // states of a damaged page are not dropped
  } catch (const std::system_error&) {
  }
  nothing_to_drop_ = freed == 0;
  return freed;
}

std::size_t SqliteStorage::drop_states_of(const SessionId& id) {
  // A call may be about to begin its history with one of them.
  if (held_.contains(id)) return 0;
  Row row;
  if (row_of(id, &row) != SessionError::kNone || row.base > 0) return 0;
  std::size_t freed = 0;
  for (const StateRef& state : row.states) {
    const std::size_t bytes = slab_for(state.bytes).drop(state.where);
    if (bytes > 0) ++health_.states_dropped;
    freed += bytes;
  }
  return freed;
}

bool SqliteStorage::make_room_for_base(const SessionId& id, std::size_t state_bytes) {
  MutexLock lock(store_mutex_);
  Row row;
  const bool is_base = row_of(id, &row) == SessionError::kNone && row.base > 0;
  return is_base && drop_states(StateSlab::slot_bytes_for(state_bytes)) > 0;
}

bool SqliteStorage::holds_state(const StateRef& ref) {
  StateSlab* slab = nullptr;
  {
    MutexLock lock(store_mutex_);
    slab = &slab_for(ref.bytes);
  }
  return slab->has_data(ref.where);
}

void SqliteStorage::drop_states_beyond_limit() {
  std::set<SessionId> sessions;
  const auto is_beyond = [&](std::size_t bytes, std::uint64_t where) REQUIRES(store_mutex_) {
    return slab_for(bytes).is_beyond_limit(where);
  };
  schema_->each_slot([&](std::size_t bytes, std::uint64_t where, const SessionId& id)
                         REQUIRES(store_mutex_) {
                           if (is_beyond(bytes, where)) sessions.insert(id);
                         });
  for (const auto& [id, tail] : tails_) {
    for (const StateRef& state : tail.session.row().states) {
      if (is_beyond(state.bytes, state.where)) sessions.insert(id);
    }
  }
  for (const SessionId& id : sessions) {
    Row row;
    if (row_of(id, &row) != SessionError::kNone || row.base > 0) continue;
    for (const StateRef& state : row.states) {
      if (!is_beyond(state.bytes, state.where)) continue;
      if (slab_for(state.bytes).drop(state.where) > 0) ++health_.states_dropped;
    }
  }
  for (const auto& [bytes, slab] : slabs_) slab->trim();
}

std::size_t SqliteStorage::shorten_expiry(std::int64_t seconds, const ExpiryOf& expiry_of) {
  std::size_t removed = 0;
  {
    MutexLock lock(store_mutex_);
    const std::int64_t noted = schema_->noted_expiry();
    if (noted == seconds || health_.state == Health::State::kBroken) return 0;
    bool is_whole = true;
    if (noted == 0 || seconds < noted) {
      SessionId after;
      for (SessionError outcome{}; outcome != SessionError::kNotFound;) {
        outcome = shorten_some(expiry_of, after, removed);
        is_whole =
            is_whole && (outcome == SessionError::kNone || outcome == SessionError::kNotFound);
      }
    }
    if (is_whole) {
      transact_making_room([&](Transaction&, bool)
                               REQUIRES(store_mutex_) { schema_->note_expiry(seconds); },
                           /*has_removals=*/false);
    }
  }
  free_slots();
  return removed;
}

SessionError SqliteStorage::shorten_some(const ExpiryOf& expiry_of, SessionId& after,
                                         std::size_t& removed) {
  std::vector<SessionId> ids;
  schema_->list("", after, std::nullopt, [&](const SessionId& id) {
    ids.push_back(id);
    return ids.size() < kSessionsAtOnce;
  });
  // Sessions in the journal that come before the next page.
  const SessionId last = ids.size() < kSessionsAtOnce ? SessionId() : ids.back();
  for (auto tail = tails_.upper_bound(after); tail != tails_.end(); ++tail) {
    if (last.empty() || tail->first < last) ids.push_back(tail->first);
  }
  if (ids.empty()) return SessionError::kNotFound;
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  after = ids.back();
  const auto now = clock_.wall_time();
  std::size_t gone = 0;
  const SessionError outcome = transact_making_room(
      [&](Transaction& transaction, bool only_removals) REQUIRES(store_mutex_) {
        gone = 0;
        for (const SessionId& id : ids) {
          Row row;
          if (row_of(id, &row) != SessionError::kNone) continue;
          const auto expires = expiry_of(row);
          if (!expires || *expires >= row.expires) continue;
          const bool is_over = *expires <= now;
          if (!is_over && only_removals) continue;
          const StorageBytes body = encode_change({.expires = *expires});
          SessionError why{};
          const Write write{.kind = is_over ? Write::Kind::kRemove : Write::Kind::kState,
                            .id = id,
                            .before = row.digest,
                            .after = row.digest,
                            .position = row.position,
                            .body = is_over ? std::span<const std::byte>() : std::span(body)};
          if (change(tail_of(id, &why), write, transaction) != SessionError::kNone) continue;
          transaction.fold.insert(id);
          if (is_over) ++gone;
        }
        if (!only_removals) fold_some(transaction);
      },
      /*has_removals=*/true);
  if (outcome == SessionError::kNone) removed += gone;
  return outcome;
}

// SqliteStorage: the committing thread and its transactions.

namespace {

using Kind = SessionStorage::Write::Kind;

// Most sessions that one commit folds only because the journal is long: each is a few pages, and
// adds to the latency of that commit.
constexpr int kFoldsOfACommit = 16;

}  // namespace

void SqliteStorage::commit(std::vector<Write> writes, Done done) {
  if (writes.empty()) return done({});
  std::size_t bytes = 0;
  for (const Write& write : writes) bytes += write.body.size() + sizeof(Write);
  std::vector<SessionError> outcomes(writes.size(), SessionError::kStoreAway);
  {
    MutexLock lock(queue_mutex_);
    if (queued_bytes_ == 0 || queued_bytes_ + bytes <= options_.queue_bytes) {
      queue_.emplace_back();
      queue_.back() = {std::move(writes), std::move(done), bytes, std::move(outcomes)};
      queued_bytes_ += bytes;
      queue_changed_.notify_all();
      return;
    }
  }
  done(outcomes);
}

void SqliteStorage::write_until_closed() {
  TimePoint last_began{};
  bool hurry = true;  // the last commit was of one session
  while (true) {
    std::vector<Batch> batches;
    {
      MutexLock lock(queue_mutex_);
      while (queue_.empty() && !closing_) queue_changed_.wait(queue_mutex_);
      if (queue_.empty()) return;
      while (!hurry && !closing_) {
        const Duration left =
            last_began + options_.commit_interval - std::chrono::steady_clock::now();
        if (left <= Duration::zero()) break;
        queue_changed_.wait_for(queue_mutex_, left);
      }
      batches.swap(queue_);
    }
    last_began = std::chrono::steady_clock::now();
    const SessionId& first = batches.front().writes.front().id;
    std::size_t bytes = 0;
    hurry = true;
    for (const Batch& batch : batches) {
      bytes += batch.bytes;
      for (const Write& write : batch.writes) hurry = hurry && write.id == first;
    }
    commit_or_break(batches);
    survives(ServerThread::kStoreCommits, [this] { free_slots(); });
    {
      MutexLock lock(queue_mutex_);
      queued_bytes_ -= bytes;
    }
    for (Batch& batch : batches) {
      survives(ServerThread::kStoreCommits, [&] { batch.done(batch.outcomes); });
    }
  }
}

void SqliteStorage::commit_or_break(std::vector<Batch>& batches) noexcept {
  if (survives(ServerThread::kStoreCommits, [&] { commit_batches(batches); })) return;
  for (Batch& batch : batches) std::ranges::fill(batch.outcomes, SessionError::kStoreBroken);
  survives(ServerThread::kStoreCommits, [&] {
    MutexLock lock(store_mutex_);
    break_off("a commit was cut off by an exception, which the log names");
  });
}

void SqliteStorage::commit_batches(std::vector<Batch>& batches) {
  MutexLock lock(store_mutex_);
  const auto makes_room = [](const Write& write) {
    return write.kind == Kind::kRemove || write.kind == Kind::kRelease;
  };
  const bool has_removals = std::ranges::any_of(
      batches, [&](const Batch& batch) { return std::ranges::any_of(batch.writes, makes_room); });
  const auto write_all = [&](Transaction& transaction, bool only_removals) REQUIRES(store_mutex_) {
    for (Batch& batch : batches) {
      for (std::size_t i = 0; i < batch.writes.size(); ++i) {
        const bool is_refused = only_removals && !makes_room(batch.writes[i]);
        batch.outcomes[i] =
            is_refused ? SessionError::kStoreFull : write(batch.writes[i], transaction);
      }
    }
    if (!only_removals) fold_some(transaction);
  };
  const SessionError outcome = transact_making_room(write_all, has_removals);
  if (outcome == SessionError::kNone) return;
  for (Batch& batch : batches) std::ranges::fill(batch.outcomes, outcome);
}

SessionError SqliteStorage::transact(const std::function<void(Transaction&)>& body) {
  if (health_.state == Health::State::kBroken) return SessionError::kStoreBroken;
  Transaction transaction;
  transaction.last_seq = last_seq_;
  const auto fail = [&] {
    connection_->roll_back();
    take_back(transaction);
  };
  try {
    connection_->run("BEGIN IMMEDIATE");
    body(transaction);
    sync_base_states(transaction);
    connection_->run("COMMIT");
  } catch (const std::bad_alloc&) {
    fail();
    return SessionError::kStoreAway;
  } catch (const SqliteError& error) {
    fail();
    if (error.code() == SQLITE_NOMEM) return SessionError::kStoreAway;
    if (error.code() != SQLITE_FULL) {
      break_off(error.what());
      return SessionError::kStoreBroken;
    }
    health_.state = Health::State::kFull;
    health_.why = error.what();
    return SessionError::kStoreFull;
  } catch (const std::exception& error) {  // of a slab, or an unexpected one
    fail();
    break_off(error.what());
    return SessionError::kStoreBroken;
  }
  finish(transaction);
  acknowledged_->note(last_seq_);
  if (health_.state == Health::State::kFull) {
    health_.state = Health::State::kOk;
    health_.why.clear();
  }
  checkpoint(options_.log_bytes);
  return SessionError::kNone;
}

void SqliteStorage::checkpoint(std::size_t bytes) {
  if (connection_->log_bytes() <= bytes) return;
  try {
    schema_->note_seq(last_seq_);
    connection_->checkpoint();
  } catch (const SqliteError& error) {
    // Committed data is in the log. A full disk leaves it there.
    if (error.code() != SQLITE_FULL && error.code() != SQLITE_NOMEM) break_off(error.what());
  }
}

void SqliteStorage::break_off(const std::string& why) {
  health_.state = Health::State::kBroken;
  health_.why = why;
  connection_->leave_alone();
}

SessionError SqliteStorage::create(const Write& write, Transaction& transaction) {
  Row there;
  const SessionError found = row_of(write.id, &there);
  if (found == SessionError::kNone && there.digest == write.after) return SessionError::kNone;
  if (found != SessionError::kNotFound || tails_.contains(write.id)) return SessionError::kFenced;
  std::optional<StorageSession> made = StorageSession::created(write);
  if (!made) return SessionError::kDamaged;
  const auto tail = tails_.emplace(write.id, Tail{*std::move(made), false, {}, 0, 0}).first;
  transaction.steps.push_back({.id = write.id, .created = true});
  ++transaction.created;
  transaction.states_before.try_emplace(write.id);
  transaction.names_states |= !tail->second.session.row().states.empty();
  record(write, tail->second, transaction);
  return SessionError::kNone;
}

SessionError SqliteStorage::write(const Write& write, Transaction& transaction) {
  if (write.kind == Kind::kCreate) return create(write, transaction);
  SessionError outcome = SessionError::kNone;
  const auto tail = tail_of(write.id, &outcome);
  if (tail == tails_.end()) return outcome;
  const auto held = held_.find(write.id);
  if (tail->second.session.stands(write)) {
    outcome = SessionError::kNone;
  } else if (tail->second.session.removed()) {
    outcome = SessionError::kNotFound;
  } else if (held == held_.end() || held->second.claim != write.claim) {
    outcome = SessionError::kFenced;
  } else {
    return change(tail, write, transaction);
  }
  if (tail->second.first_seq == 0) forget_tail(tail);  // it was only read
  return outcome;
}

SessionError SqliteStorage::change(Tails::iterator found, const Write& write,
                                   Transaction& transaction) {
  Tail& tail = found->second;
  const bool is_values = write.kind == Kind::kValues;  // most writes are; no states change by them
  const std::vector<StateRef> states =
      is_values ? std::vector<StateRef>() : tail.session.row().states;
  const std::int64_t base = tail.session.row().base;
  StorageSession::Undo undo;
  const SessionError outcome = tail.session.apply(write, &undo);
  if (outcome != SessionError::kNone) {
    if (tail.first_seq == 0) forget_tail(found);
    return outcome;
  }
  transaction.steps.push_back({write.id, std::move(undo), tail.first_seq, tail.last_seq, false});
  record(write, tail, transaction);
  if (is_values) return SessionError::kNone;
  transaction.states_before.try_emplace(write.id, states);
  transaction.names_states |=
      states != tail.session.row().states || base != tail.session.row().base;
  const bool removes = write.kind == Kind::kRemove, releases = write.kind == Kind::kRelease;
  const bool ends = write.kind == Kind::kEnd;
  if (removes) ++transaction.removed;
  const auto held = held_.find(write.id);
  if (held != held_.end() && (removes || releases || ends)) {
    transaction.let_go.emplace_back(write.id, std::move(held->second));
    held_.erase(held);
  }
  // States that a call stores while it runs are only in the journal, as its tokens are.
  const bool is_idle = tail.session.row().call.empty();
  const bool has_new_states = transaction.states_before.at(write.id) != tail.session.row().states;
  if (removes || releases || (is_idle && has_new_states)) transaction.fold.insert(write.id);
  return SessionError::kNone;
}

void SqliteStorage::record(const Write& write, Tail& tail, Transaction& transaction) {
  const StorageBytes bytes = encode_write(write);
  tail.last_seq = ++last_seq_;
  if (tail.first_seq == 0) {
    tail.first_seq = last_seq_;
    by_first_seq_[last_seq_] = write.id;
  }
  transaction.record_bytes.push_back(static_cast<std::uint32_t>(bytes.size()));
  transaction.journal_bytes += bytes.size();
  schema_->append(last_seq_, write.id, bytes);
}

void SqliteStorage::fold_some(Transaction& transaction) {
  int late = 0;
  for (auto id = unfolded_.begin(); id != unfolded_.end() && late < kFoldsOfACommit; ++id) {
    if (tails_.contains(*id) && transaction.fold.insert(*id).second) ++late;
  }
  for (const SessionId& id : transaction.fold) fold(id, transaction);
  auto oldest = by_first_seq_.begin();
  if (health_.journal_bytes + transaction.journal_bytes > options_.journal_bytes) {
    for (int folds = 0; folds < kFoldsOfACommit && oldest != by_first_seq_.end(); ++oldest) {
      if (transaction.fold.insert(oldest->second).second) {
        fold(oldest->second, transaction);
        ++folds;
      }
    }
  }
  if (transaction.folded.empty()) return;
  // The last record stays, so that the next ones are numbered after it.
  transaction.keep_from = last_seq_;
  for (const auto& [seq, id] : by_first_seq_) {
    if (transaction.fold.contains(id)) continue;
    transaction.keep_from = seq;
    break;
  }
  schema_->drop_records_before(transaction.keep_from);
}

void SqliteStorage::fold(const SessionId& id, Transaction& transaction) {
  const Tail& tail = tails_.at(id);
  if (tail.session.removed()) {
    schema_->remove(id, tail.stored_states);
  } else if (!schema_->store(tail.session, tail.last_seq, tail.stored_states)) {
    // Its earlier tokens are damaged: it can no longer be read, and is kept for inspection.
    schema_->quarantine(id);
    transaction.damaged.push_back(id);
  }
  transaction.folded.push_back(id);
}

void SqliteStorage::sync_base_states(const Transaction& transaction) {
  if (!transaction.names_states) return;
  for (const auto& [id, before] : transaction.states_before) {
    const Row& row = tails_.at(id).session.row();
    for (const StateRef& state : row.states) {
      // Tokens before the history's base are only in its states, which are required.
      if (row.base > 0) slab_for(state.bytes).sync();
    }
  }
}

void SqliteStorage::free_slots() {
  std::vector<std::pair<StateSlab*, std::uint64_t>> slots;
  {
    MutexLock lock(store_mutex_);
    slots.swap(given_up_);
  }
  for (const auto& [slab, index] : slots) slab->release(index);
}

void SqliteStorage::finish(Transaction& transaction) {
  ++health_.commits;
  health_.writes += transaction.steps.size();
  health_.sessions += transaction.created;
  health_.sessions -= transaction.removed;
  const auto named_now = [&](const SessionId& id, const StateRef& state) {
    const auto held = held_.find(id);
    if (held != held_.end() && std::erase(held->second.put, state) > 0) return;
    for (auto& [other, gone] : transaction.let_go) {
      if (other == id && std::erase(gone.put, state) > 0) return;
    }
    slab_for(state.bytes).use(state.where);  // another session's, too
  };
  static const std::vector<StateRef> kNone;
  const auto states_of = [&](const SessionId& id) -> const std::vector<StateRef>& {
    const StorageSession& session = tails_.at(id).session;
    return session.removed() ? kNone : session.row().states;
  };
  const auto has = [](const std::vector<StateRef>& states, const StateRef& state) {
    return std::ranges::find(states, state) != states.end();
  };
  for (const auto& [id, before] : transaction.states_before) {
    for (const StateRef& state : states_of(id)) {
      if (!has(before, state)) named_now(id, state);
    }
  }
  for (const auto& [id, before] : transaction.states_before) {
    for (const StateRef& state : before) {
      if (!has(states_of(id), state)) given_up_.emplace_back(&slab_for(state.bytes), state.where);
    }
  }
  for (const auto& [id, gone] : transaction.let_go) {
    for (const StateRef& state : gone.put) {
      given_up_.emplace_back(&slab_for(state.bytes), state.where);
    }
  }

  record_bytes_.insert(record_bytes_.end(), transaction.record_bytes.begin(),
                       transaction.record_bytes.end());
  health_.journal_bytes += transaction.journal_bytes;
  while (!record_bytes_.empty() && first_record() < transaction.keep_from) {
    health_.journal_bytes -= record_bytes_.front();
    record_bytes_.pop_front();
  }
  for (const SessionId& id : transaction.folded) {
    unfolded_.erase(id);
    forget_tail(tails_.find(id));
  }
  if (!transaction.let_go.empty() || !transaction.states_before.empty()) nothing_to_drop_ = false;
  quarantined_.insert(transaction.damaged.begin(), transaction.damaged.end());
  health_.quarantined = quarantined_.size();
}

void SqliteStorage::take_back(Transaction& transaction) {
  for (auto step = transaction.steps.rbegin(); step != transaction.steps.rend(); ++step) {
    const auto found = tails_.find(step->id);
    Tail& tail = found->second;
    if (!step->created) tail.session.take_back(std::move(step->undo));
    if (step->first_seq != tail.first_seq) by_first_seq_.erase(tail.first_seq);
    tail.first_seq = step->first_seq;
    tail.last_seq = step->last_seq;
    if (tail.first_seq == 0) tails_.erase(found);
  }
  for (auto& [id, held] : transaction.let_go) held_[id] = std::move(held);
  last_seq_ = transaction.last_seq;
}

}  // namespace lintel
