#include "server/sessions/storage/sqlite/sqlite_vault.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "server/core/random_bytes.h"
#include "server/sessions/storage/sqlite/sqlite_connection.h"
#include "server/sessions/storage/sqlite/vault_schema.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel {

namespace {

VaultOutcome outcome_of_read(const SqliteError& error) {
  return error.code() == SQLITE_CORRUPT || error.code() == SQLITE_NOTADB
             ? VaultOutcome::kCorrupt
             : VaultOutcome::kUnavailable;
}

}  // namespace

SqliteVault::SqliteVault(Options options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), directory_(options_.directory) {
  MutexLock lock(store_mutex_);
  const auto fail = [this](const char* why) REQUIRES(store_mutex_) {
    // What is there stays as it was found, for people.
    if (connection_ != nullptr) connection_->leave_alone();
    throw VaultError("session store " + options_.directory.string() + ": " + why);
  };
  try {
    connection_ = std::make_unique<SqliteConnection>(directory_.database(), options_.sqlite_vfs);
    schema_ = std::make_unique<VaultSchema>(*connection_);
    acknowledged_ = std::make_unique<Acknowledged>(options_.open_file(directory_.acknowledged()));
    reserve_ = options_.open_file(directory_.reserve());
    reserve_->cut(options_.reserve_bytes);  // more where the process was killed as it made it
    scan_journal();
    count_slots();
    drop_states_beyond_limit();
    if (!make_reserve()) {
      health_.state = Health::State::kFull;
      health_.why = "there is no room on the disk";
    }
    if (health_.state == Health::State::kBroken) fail(health_.why.c_str());
  } catch (const VaultError& error) {
    fail(error.what());
  } catch (const SqliteError& error) {
    fail(error.what());
  } catch (const std::system_error& error) {
    fail(error.what());
  }
  writer_ = std::thread([this] { write_until_closed(); });
}

SqliteVault::~SqliteVault() {
  {
    MutexLock lock(queue_mutex_);
    closing_ = true;
    queue_changed_.notify_all();
  }
  writer_.join();
  MutexLock lock(store_mutex_);
  if (health_.state != Health::State::kBroken) checkpoint(0);
}

StateSlab& SqliteVault::slab_for(std::size_t state_bytes) {
  const std::size_t slot_bytes = StateSlab::slot_bytes_for(state_bytes);
  std::unique_ptr<StateSlab>& slab = slabs_[slot_bytes];
  if (slab == nullptr) {
    slab = std::make_unique<StateSlab>(options_.open_file(directory_.slab(slot_bytes)), slot_bytes,
                                       options_.slab_bytes);
  }
  return *slab;
}

VaultSchema::Found SqliteVault::stored(const SessionId& id) {
  VaultSchema::Found found;
  found.damaged = quarantined_.contains(id);
  if (found.damaged) return found;
  try {
    found = schema_->find(id);
  } catch (const SqliteError& error) {
    if (outcome_of_read(error) != VaultOutcome::kCorrupt) throw;
    found.damaged = true;
  }
  // A row that knows of records which the journal has not: those are lost.
  if (found.stored && found.stored->seq > last_seq_) return {.stored = {}, .damaged = true};
  return found;
}

SqliteVault::Tails::iterator SqliteVault::tail_of(const SessionId& id, VaultOutcome* outcome) {
  const auto there = tails_.find(id);
  if (there != tails_.end()) return there;
  VaultSchema::Found found = stored(id);
  *outcome = found.damaged ? VaultOutcome::kCorrupt : VaultOutcome::kNotFound;
  if (!found.stored) return tails_.end();
  std::vector<StateRef> states = found.stored->row.states;
  return tails_
      .emplace(id, Tail{VaultSession(std::move(found.stored->row)), true, std::move(states), 0,
                        found.stored->seq})
      .first;
}

VaultOutcome SqliteVault::row_of(const SessionId& id, Row* row) {
  const auto tail = tails_.find(id);
  if (tail != tails_.end()) {
    if (tail->second.session.removed()) return VaultOutcome::kNotFound;
    *row = tail->second.session.row();
    return VaultOutcome::kDone;
  }
  VaultSchema::Found found = stored(id);
  if (found.damaged) return VaultOutcome::kCorrupt;
  if (!found.stored) return VaultOutcome::kNotFound;
  *row = std::move(found.stored->row);
  return VaultOutcome::kDone;
}

void SqliteVault::forget_tail(Tails::iterator tail) {
  if (tail->second.first_seq != 0) by_first_seq_.erase(tail->second.first_seq);
  tails_.erase(tail);
}

SessionVault::Opened SqliteVault::open(const SessionId& id, const Owner& owner,
                                       const Digest* have) {
  MutexLock lock(store_mutex_);
  if (health_.state == Health::State::kBroken) return {.outcome = VaultOutcome::kBroken};
  try {
    Opened opened;
    opened.outcome = row_of(id, &opened.row);
    if (opened.outcome != VaultOutcome::kDone) return opened;
    if (opened.row.owner != owner) return {.outcome = VaultOutcome::kNotFound};
    if (held_.contains(id)) return {.outcome = VaultOutcome::kHeld, .holder = "this process"};
    if (have != nullptr && *have == opened.row.digest) opened.row.states.clear();
    fill_with_random(opened.claim.nonce);
    opened.claim.fence = ++last_fence_;
    held_[id] = {opened.claim, {}};
    return opened;
  } catch (const SqliteError& error) {
    return {.outcome = outcome_of_read(error)};
  }
}

SessionVault::Opened SqliteVault::find(const SessionId& id, const Owner& owner) {
  MutexLock lock(store_mutex_);
  try {
    Opened found;
    found.outcome = row_of(id, &found.row);
    if (found.outcome == VaultOutcome::kDone && found.row.owner != owner) {
      return {.outcome = VaultOutcome::kNotFound};
    }
    return found;
  } catch (const SqliteError& error) {
    return {.outcome = outcome_of_read(error)};
  }
}

VaultOutcome SqliteVault::read_values(const SessionId& id, std::int64_t first,
                                      std::span<std::int32_t> values) {
  MutexLock lock(store_mutex_);
  try {
    Row row;
    const VaultOutcome outcome = row_of(id, &row);
    if (outcome != VaultOutcome::kDone) return outcome;
    const std::int64_t end = first + static_cast<std::int64_t>(values.size());
    if (first < row.base || end > row.position) return VaultOutcome::kNotFound;
    // Those of its rows, then those of the journal.
    const auto tail = tails_.find(id);
    const std::int64_t stored_end =
        tail == tails_.end() ? end : std::clamp(tail->second.session.first(), first, end);
    const auto of_rows = static_cast<std::size_t>(stored_end - first);
    if (schema_->read_values(id, first, values.first(of_rows)) != of_rows) {
      return VaultOutcome::kCorrupt;
    }
    if (of_rows < values.size()) {
      const VaultSession& session = tail->second.session;
      std::copy_n(session.values().begin() + (stored_end - session.first()),
                  values.size() - of_rows, values.begin() + static_cast<std::ptrdiff_t>(of_rows));
    }
    return VaultOutcome::kDone;
  } catch (const SqliteError& error) {
    return outcome_of_read(error);
  }
}

VaultOutcome SqliteVault::put_state(const SessionId& id, std::span<const std::byte> state,
                                    StateRef* ref) {
  StateSlab* slab = nullptr;
  Claim claim;
  try {
    {
      MutexLock lock(store_mutex_);
      if (health_.state == Health::State::kBroken) return VaultOutcome::kBroken;
      const auto held = held_.find(id);
      if (held == held_.end()) return VaultOutcome::kFenced;
      // What room there is the reserve has to have first.
      if (!has_reserve_ && options_.reserve_bytes > 0) return VaultOutcome::kFull;
      claim = held->second.claim;
      slab = &slab_for(state.size());
    }
    StateSlab::Slot slot;
    while (!slab->write(id, ref->position, state, &slot)) {
      if (slab->is_full() || !make_room_for_base(id, state.size())) return VaultOutcome::kFull;
    }
    ref->where = slot.index;
    ref->checksum = slot.checksum;
    ref->bytes = state.size();
  } catch (const std::system_error&) {
    return VaultOutcome::kUnavailable;
  }
  {
    MutexLock lock(store_mutex_);
    const auto held = held_.find(id);
    if (held != held_.end() && held->second.claim == claim) {
      nothing_to_drop_ = false;
      held->second.put.push_back(*ref);
      return VaultOutcome::kDone;
    }
  }
  slab->release(ref->where);  // released meanwhile
  return VaultOutcome::kFenced;
}

VaultOutcome SqliteVault::read_state(const StateRef& ref, std::span<std::byte> state) {
  try {
    StateSlab* slab = nullptr;
    {
      MutexLock lock(store_mutex_);
      slab = &slab_for(ref.bytes);
    }
    if (slab->read({ref.where, ref.checksum}, ref.position, state)) return VaultOutcome::kDone;
  } catch (const std::system_error&) {
    return VaultOutcome::kUnavailable;
  }
  MutexLock lock(store_mutex_);
  ++health_.states_lost;
  return VaultOutcome::kCorrupt;
}

std::vector<SessionVault::Row> SqliteVault::list(const std::string& model, const SessionId& after,
                                                 std::size_t limit,
                                                 const std::optional<Owner>& owner) {
  MutexLock lock(store_mutex_);
  // Ids of the index and of the journal, merged; then each row as it stands now.
  std::vector<Row> rows;
  auto tail = tails_.upper_bound(after);
  const auto take = [&](const SessionId& id) {
    Row row;
    if (rows.size() < limit && row_of(id, &row) == VaultOutcome::kDone &&
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
    // Those before the damage.
  }
  return rows;
}

void SqliteVault::renew(std::span<const SessionId> busy, Done done) {
  done(std::vector<VaultOutcome>(busy.size(), VaultOutcome::kDone));
}

std::size_t SqliteVault::sweep(std::size_t most) {
  const std::size_t removed = sweep_rows(most);
  free_slots();
  return removed;
}

std::size_t SqliteVault::sweep_rows(std::size_t most) {
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
        if (row_of(id, &row) != VaultOutcome::kDone || row.expires > now) continue;
        VaultOutcome why{};
        const Write remove{
            .kind = Write::Kind::kRemove, .id = id, .before = row.digest, .after = row.digest};
        if (change(tail_of(id, &why), remove, transaction) == VaultOutcome::kDone) ++removed;
      }
      if (!only_removals) fold_some(transaction);
    };
    if (transact_making_room(remove_them, /*has_removals=*/true) != VaultOutcome::kDone) {
      removed = 0;
    }
  } catch (const SqliteError&) {
    removed = 0;
  }
  return removed;
}

SessionVault::Health SqliteVault::health() const {
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

void SqliteVault::sync_states() {
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
    // States are a cache, each with a checksum: what is not there will be found missing.
  }
}

}  // namespace lintel
