// SqliteVault, what writes: the thread that commits, and what a transaction is made of.
#include <algorithm>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "server/core/thread_failures.h"
#include "server/sessions/storage/sqlite/sqlite_vault.h"
#include "server/sessions/storage/sqlite/vault_transaction.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel {
namespace {

using Kind = SessionVault::Write::Kind;

// Most sessions that one commit folds only because the journal is long: each is a few pages, and
// adds to the latency of that commit.
constexpr int kFoldsOfACommit = 16;

}  // namespace

void SqliteVault::commit(std::vector<Write> writes, Done done) {
  if (writes.empty()) return done({});
  std::size_t bytes = 0;
  for (const Write& write : writes) bytes += write.body.size() + sizeof(Write);
  std::vector<VaultOutcome> outcomes(writes.size(), VaultOutcome::kUnavailable);
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

void SqliteVault::write_until_closed() {
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

void SqliteVault::commit_or_break(std::vector<Batch>& batches) noexcept {
  if (survives(ServerThread::kStoreCommits, [&] { commit_batches(batches); })) return;
  for (Batch& batch : batches) std::ranges::fill(batch.outcomes, VaultOutcome::kBroken);
  survives(ServerThread::kStoreCommits, [&] {
    MutexLock lock(store_mutex_);
    break_off("a commit was cut off by an exception, which the log names");
  });
}

void SqliteVault::commit_batches(std::vector<Batch>& batches) {
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
        batch.outcomes[i] = is_refused ? VaultOutcome::kFull : write(batch.writes[i], transaction);
      }
    }
    if (!only_removals) fold_some(transaction);
  };
  const VaultOutcome outcome = transact_making_room(write_all, has_removals);
  if (outcome == VaultOutcome::kDone) return;
  for (Batch& batch : batches) std::ranges::fill(batch.outcomes, outcome);
}

VaultOutcome SqliteVault::transact(const std::function<void(Transaction&)>& body) {
  if (health_.state == Health::State::kBroken) return VaultOutcome::kBroken;
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
    return VaultOutcome::kUnavailable;
  } catch (const SqliteError& error) {
    fail();
    if (error.code() == SQLITE_NOMEM) return VaultOutcome::kUnavailable;
    if (error.code() != SQLITE_FULL) {
      break_off(error.what());
      return VaultOutcome::kBroken;
    }
    health_.state = Health::State::kFull;
    health_.why = error.what();
    return VaultOutcome::kFull;
  } catch (const std::exception& error) {  // of a slab, or one that nothing foresaw
    fail();
    break_off(error.what());
    return VaultOutcome::kBroken;
  }
  finish(transaction);
  acknowledged_->note(last_seq_);
  if (health_.state == Health::State::kFull) {
    health_.state = Health::State::kOk;
    health_.why.clear();
  }
  checkpoint(options_.log_bytes);
  return VaultOutcome::kDone;
}

void SqliteVault::checkpoint(std::size_t bytes) {
  if (connection_->log_bytes() <= bytes) return;
  try {
    schema_->note_seq(last_seq_);
    connection_->checkpoint();
  } catch (const SqliteError& error) {
    // What was committed stands in the log. A full disk leaves it there.
    if (error.code() != SQLITE_FULL && error.code() != SQLITE_NOMEM) break_off(error.what());
  }
}

void SqliteVault::break_off(const std::string& why) {
  health_.state = Health::State::kBroken;
  health_.why = why;
  connection_->leave_alone();
}

VaultOutcome SqliteVault::create(const Write& write, Transaction& transaction) {
  Row there;
  const VaultOutcome found = row_of(write.id, &there);
  if (found == VaultOutcome::kDone && there.digest == write.after) return VaultOutcome::kDone;
  if (found != VaultOutcome::kNotFound || tails_.contains(write.id)) return VaultOutcome::kFenced;
  std::optional<VaultSession> made = VaultSession::created(write);
  if (!made) return VaultOutcome::kCorrupt;
  const auto tail = tails_.emplace(write.id, Tail{*std::move(made), false, {}, 0, 0}).first;
  transaction.steps.push_back({.id = write.id, .created = true});
  ++transaction.created;
  transaction.states_before.try_emplace(write.id);
  transaction.names_states |= !tail->second.session.row().states.empty();
  record(write, tail->second, transaction);
  return VaultOutcome::kDone;
}

VaultOutcome SqliteVault::write(const Write& write, Transaction& transaction) {
  if (write.kind == Kind::kCreate) return create(write, transaction);
  VaultOutcome outcome = VaultOutcome::kDone;
  const auto tail = tail_of(write.id, &outcome);
  if (tail == tails_.end()) return outcome;
  const auto held = held_.find(write.id);
  if (tail->second.session.stands(write)) {
    outcome = VaultOutcome::kDone;
  } else if (tail->second.session.removed()) {
    outcome = VaultOutcome::kNotFound;
  } else if (held == held_.end() || held->second.claim != write.claim) {
    outcome = VaultOutcome::kFenced;
  } else {
    return change(tail, write, transaction);
  }
  if (tail->second.first_seq == 0) forget_tail(tail);  // it was only looked at
  return outcome;
}

VaultOutcome SqliteVault::change(Tails::iterator found, const Write& write,
                                 Transaction& transaction) {
  Tail& tail = found->second;
  const bool is_values = write.kind == Kind::kValues;  // most writes are; no states change by them
  const std::vector<StateRef> states =
      is_values ? std::vector<StateRef>() : tail.session.row().states;
  const std::int64_t base = tail.session.row().base;
  VaultSession::Undo undo;
  const VaultOutcome outcome = tail.session.apply(write, &undo);
  if (outcome != VaultOutcome::kDone) {
    if (tail.first_seq == 0) forget_tail(found);
    return outcome;
  }
  transaction.steps.push_back({write.id, std::move(undo), tail.first_seq, tail.last_seq, false});
  record(write, tail, transaction);
  if (is_values) return VaultOutcome::kDone;
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
  // States that a call stores on its way are in the journal alone, as its values are.
  const bool is_idle = tail.session.row().call.empty();
  const bool has_new_states = transaction.states_before.at(write.id) != tail.session.row().states;
  if (removes || releases || (is_idle && has_new_states)) transaction.fold.insert(write.id);
  return VaultOutcome::kDone;
}

void SqliteVault::record(const Write& write, Tail& tail, Transaction& transaction) {
  const VaultBytes bytes = encode_write(write);
  tail.last_seq = ++last_seq_;
  if (tail.first_seq == 0) {
    tail.first_seq = last_seq_;
    by_first_seq_[last_seq_] = write.id;
  }
  transaction.record_bytes.push_back(static_cast<std::uint32_t>(bytes.size()));
  transaction.journal_bytes += bytes.size();
  schema_->append(last_seq_, write.id, bytes);
}

void SqliteVault::fold_some(Transaction& transaction) {
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
  // The last record stays, for those after it to be counted on from.
  transaction.keep_from = last_seq_;
  for (const auto& [seq, id] : by_first_seq_) {
    if (transaction.fold.contains(id)) continue;
    transaction.keep_from = seq;
    break;
  }
  schema_->drop_records_before(transaction.keep_from);
}

void SqliteVault::fold(const SessionId& id, Transaction& transaction) {
  const Tail& tail = tails_.at(id);
  if (tail.session.removed()) {
    schema_->remove(id, tail.stored_states);
  } else if (!schema_->store(tail.session, tail.last_seq, tail.stored_states)) {
    // Its earlier values are damaged: it can be read no more, and is kept for people.
    schema_->quarantine(id);
    transaction.damaged.push_back(id);
  }
  transaction.folded.push_back(id);
}

void SqliteVault::sync_base_states(const Transaction& transaction) {
  if (!transaction.names_states) return;
  for (const auto& [id, before] : transaction.states_before) {
    const Row& row = tails_.at(id).session.row();
    for (const StateRef& state : row.states) {
      // What lies before the history's base is in its states alone: they are no cache.
      if (row.base > 0) slab_for(state.bytes).sync();
    }
  }
}

void SqliteVault::free_slots() {
  std::vector<std::pair<StateSlab*, std::uint64_t>> slots;
  {
    MutexLock lock(store_mutex_);
    slots.swap(given_up_);
  }
  for (const auto& [slab, index] : slots) slab->release(index);
}

void SqliteVault::finish(Transaction& transaction) {
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
    const VaultSession& session = tails_.at(id).session;
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

void SqliteVault::take_back(Transaction& transaction) {
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
