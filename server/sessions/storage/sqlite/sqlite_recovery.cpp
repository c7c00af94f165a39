// SPDX-License-Identifier: Apache-2.0
// SqliteStorage: recovery when it is opened.
#include <algorithm>
#include <utility>

#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

void SqliteStorage::scan_journal() {
  for (SessionId& id : schema_->quarantined()) quarantined_.insert(std::move(id));
  std::set<std::int64_t> bad_records;  // whose session is unknown
  std::set<SessionId> bad, unfinished;
  last_seq_ = schema_->last_seq();
  std::int64_t before = 0;
  schema_->each_record([&](const SqliteSchema::Record& record) {
    if (before != 0 && record.seq != before + 1) {
      throw StorageError("records of the journal are missing after " + std::to_string(before));
    }
    before = record.seq;
    record_bytes_.push_back(static_cast<std::uint32_t>(record.body.size()));
    health_.journal_bytes += record.body.size();

    const std::optional<Write> write = decode_write(record.body);
    if (!record.whole || !write) {
      std::vector<SessionId> owners = schema_->with_id_hash(record.id_hash);
      if (write) owners.push_back(write->id);
      for (const auto& [id, tail] : tails_) {
        if (SqliteSchema::id_hash(id) == record.id_hash) owners.push_back(id);
      }
      bad.insert(owners.begin(), owners.end());
      bad_records.insert(record.seq);
      return;
    }
    const SessionId& id = write->id;
    if (quarantined_.contains(id)) return;
    SessionError outcome = SessionError::kNone;
    const auto found = tail_of(id, &outcome);
    if (found != tails_.end() && record.seq <= found->second.last_seq) return;  // folded since
    if (write->kind == Write::Kind::kCreate) {
      std::optional<StorageSession> made = StorageSession::created(*write);
      if (!made || outcome != SessionError::kNotFound) {
        bad.insert(id);
      } else {
        tails_.emplace(id, Tail{*std::move(made), false, {}, record.seq, record.seq});
      }
      return;
    }
    if (found == tails_.end()) {
      // The remaining records of a session that was removed and folded end with its kRemove.
      if (outcome == SessionError::kDamaged) bad.insert(id);
      if (write->kind == Write::Kind::kRemove) {
        unfinished.erase(id);
      } else {
        unfinished.insert(id);
      }
      return;
    }
    Tail& tail = found->second;
    StorageSession::Undo undo;
    if (tail.session.apply(*write, &undo) != SessionError::kNone) {
      bad.insert(id);
      return;
    }
    tail.last_seq = record.seq;
    if (tail.first_seq == 0) tail.first_seq = record.seq;
  });
  if (last_seq_ < acknowledged_->found()) {
    const std::string last = std::to_string(last_seq_);
    throw StorageError("records after " + last + ", which were acknowledged up to " +
                       std::to_string(acknowledged_->found()) +
                       ", are lost: sessions.db-wal is damaged or of another store. A copy of the "
                       "directory may have them; without " +
                       directory_.acknowledged().string() + " the store opens as of " + last);
  }
  if (before != last_seq_ || last_seq_ < schema_->noted_seq()) {
    throw StorageError("records of the journal are missing at its end");
  }
  bad.insert(unfinished.begin(), unfinished.end());
  for (auto at = tails_.begin(); at != tails_.end();) {
    const auto tail = at++;
    if (tail->second.first_seq == 0 || bad.contains(tail->first)) {
      tails_.erase(tail);
    } else {
      by_first_seq_[tail->second.first_seq] = tail->first;
      if (tail->second.session.removed()) unfolded_.insert(tail->first);
      if (!tail->second.session.row().call.empty()) ++health_.interrupted;
    }
  }
  set_aside(bad, bad_records);
  for (const SessionId& id : schema_->interrupted()) {
    if (!tails_.contains(id)) ++health_.interrupted;
  }
  health_.quarantined = quarantined_.size();
  health_.sessions = schema_->count();
  for (const auto& [id, tail] : tails_) {
    if (!tail.stored && !tail.session.removed()) ++health_.sessions;
    if (tail.stored && tail.session.removed()) --health_.sessions;
  }
}

void SqliteStorage::set_aside(const std::set<SessionId>& sessions,
                              const std::set<std::int64_t>& records) {
  if (sessions.empty() && records.empty()) return;
  connection_->run("BEGIN IMMEDIATE");
  for (const SessionId& id : sessions) schema_->quarantine(id);
  for (const std::int64_t seq : records) schema_->quarantine_record(seq);
  connection_->run("COMMIT");
  quarantined_.insert(sessions.begin(), sessions.end());
}

void SqliteStorage::count_slots() {
  for (const std::size_t slot_bytes : directory_.slot_sizes()) {
    slab_for(StateSlab::state_bytes_of(slot_bytes));  // also those that no state refers to
  }
  schema_->each_slot([this](std::size_t bytes, std::uint64_t where, const SessionId&) {
    slab_for(bytes).use(where);
  });
  // Changes in the journal that the rows do not have yet. Slots in use come first: a slot that one
  // session released may be another's by now.
  const auto each_difference = [this](bool of_journal, const auto& each) {
    for (const auto& [id, tail] : tails_) {
      static const std::vector<StateRef> kNone;
      const std::vector<StateRef>& now = tail.session.removed() ? kNone : tail.session.row().states;
      const std::vector<StateRef>& here = of_journal ? now : tail.stored_states;
      const std::vector<StateRef>& there = of_journal ? tail.stored_states : now;
      for (const StateRef& state : here) {
        if (std::ranges::find(there, state) == there.end()) each(state);
      }
    }
  };
  each_difference(true, [this](const StateRef& state) { slab_for(state.bytes).use(state.where); });
  each_difference(false,
                  [this](const StateRef& state) { slab_for(state.bytes).release(state.where); });
}

}  // namespace lintel
