// SqliteVault, what it does where the disk is full: which room there is to free, and for whom.
#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "server/sessions/storage/sqlite/sqlite_vault.h"
#include "server/sessions/storage/sqlite/vault_transaction.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel {
namespace {

constexpr std::size_t kFirstDrop = std::size_t{1} << 20;  // of states, then twice as much each time
constexpr std::size_t kSessionsAtOnce = 256;
constexpr std::size_t kReservePiece = std::size_t{64} << 10;
constexpr std::size_t kLeastReserve = 8;  // a part of it

bool is_want_of_room(const std::system_error& error) {
  const int code = error.code().value();
  return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

}  // namespace

VaultOutcome SqliteVault::transact_making_room(
    const std::function<void(Transaction&, bool only_removals)>& body, bool has_removals) {
  const auto write_all = [&](Transaction& transaction) { body(transaction, false); };
  VaultOutcome outcome = VaultOutcome::kFull;
  if (health_.state == Health::State::kBroken || make_reserve()) {
    outcome = transact(write_all);
    if (outcome == VaultOutcome::kFull && connection_->log_bytes() > 0) {
      empty_log(/*cuts_log=*/false);
      outcome = transact(write_all);
    }
    for (std::size_t bytes = kFirstDrop; outcome == VaultOutcome::kFull && drop_states(bytes) > 0;
         bytes *= 2) {
      outcome = transact(write_all);
    }
  } else if (health_.state == Health::State::kOk) {
    health_.state = Health::State::kFull;
    health_.why = "there is no room on the disk";
  }
  if (outcome != VaultOutcome::kFull || !has_removals) return outcome;
  // The reserve, and what the log takes, are for those that give room back.
  cut_reserve();
  const std::string why = health_.why;
  std::set<SessionId> later;
  const auto remove = [&](Transaction& transaction) {
    body(transaction, true);
    later = transaction.fold;
  };
  outcome = transact(remove);
  if (outcome == VaultOutcome::kFull) {
    empty_log(/*cuts_log=*/true);
    outcome = transact(remove);
  }
  if (outcome != VaultOutcome::kDone) return outcome;
  unfolded_.merge(later);
  empty_log(/*cuts_log=*/true);
  // Their pages are free for what comes next, if there is room to say so.
  transact([&](Transaction& transaction) REQUIRES(store_mutex_) { fold_some(transaction); });
  if (health_.state == Health::State::kBroken) return VaultOutcome::kDone;
  empty_log(/*cuts_log=*/true);
  if (health_.state == Health::State::kOk) {  // that it took a removal says nothing of the rest
    health_.state = Health::State::kFull;
    health_.why = why;
  }
  return outcome;
}

void SqliteVault::empty_log(bool cuts_log) {
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

bool SqliteVault::make_reserve() {
  if (has_reserve_ || options_.reserve_bytes == 0) return true;
  std::byte last{};
  has_reserve_ = reserve_->read(options_.reserve_bytes - 1, std::span(&last, 1), {}) == 1;
  const auto is_over = [&]() REQUIRES(store_mutex_) {
    return has_reserve_ || health_.state == Health::State::kBroken;  // which it reports itself
  };
  if (is_over() || write_reserve(options_.reserve_bytes) || is_over()) return true;
  if (connection_->log_bytes() > 0) empty_log(/*cuts_log=*/true);
  while (!write_reserve(options_.reserve_bytes) && !is_over()) {
    if (drop_states(options_.reserve_bytes) > 0) continue;
    // Less of it, and the rest of the room is for writes.
    for (std::size_t part = 2; part <= kLeastReserve && !is_over(); part *= 2) {
      write_reserve(options_.reserve_bytes / part);
    }
    return is_over();
  }
  return true;
}

void SqliteVault::cut_reserve() {
  has_reserve_ = false;
  try {
    reserve_->cut(0);
  } catch (const std::system_error&) {  // what is left of it is written over
  }
}

bool SqliteVault::write_reserve(std::size_t bytes) {
  // Bytes that no file system makes fewer of; and twice as many at first, for as much room is to be
  // left to writes.
  std::minstd_rand random(1);
  std::vector<std::byte> piece(std::min(kReservePiece, bytes));
  try {
    for (std::size_t at = 0; at < 2 * bytes; at += piece.size()) {
      for (std::byte& byte : piece) byte = static_cast<std::byte>(random() >> 8);
      reserve_->write(at, piece, {});
    }
    reserve_->cut(bytes);
    has_reserve_ = true;
  } catch (const std::system_error& error) {
    if (!is_want_of_room(error)) break_off(error.what());
    cut_reserve();
  }
  return has_reserve_;
}

std::size_t SqliteVault::drop_states(std::size_t bytes) {
  if (nothing_to_drop_) return 0;
  std::size_t freed = 0;
  try {
    const bool began_in_between = !dropped_up_to_.id.empty();
    for (int round = began_in_between ? 0 : 1; round < 2 && freed < bytes; ++round) {
      while (freed < bytes) {
        const std::vector<VaultSchema::Expiring> next =
            schema_->by_expiry(dropped_up_to_, kSessionsAtOnce);
        for (const VaultSchema::Expiring& session : next) {
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
  } catch (const SqliteError&) {  // what a damaged page has is not dropped
  } catch (const std::system_error&) {
  }
  nothing_to_drop_ = freed == 0;
  return freed;
}

std::size_t SqliteVault::drop_states_of(const SessionId& id) {
  // A call may be about to make one of them the beginning of its history.
  if (held_.contains(id)) return 0;
  Row row;
  if (row_of(id, &row) != VaultOutcome::kDone || row.base > 0) return 0;
  std::size_t freed = 0;
  for (const StateRef& state : row.states) {
    const std::size_t bytes = slab_for(state.bytes).drop(state.where);
    if (bytes > 0) ++health_.states_dropped;
    freed += bytes;
  }
  return freed;
}

bool SqliteVault::make_room_for_base(const SessionId& id, std::size_t state_bytes) {
  MutexLock lock(store_mutex_);
  Row row;
  const bool is_base = row_of(id, &row) == VaultOutcome::kDone && row.base > 0;
  return is_base && drop_states(StateSlab::slot_bytes_for(state_bytes)) > 0;
}

bool SqliteVault::holds_state(const StateRef& ref) {
  StateSlab* slab = nullptr;
  {
    MutexLock lock(store_mutex_);
    slab = &slab_for(ref.bytes);
  }
  return slab->has_data(ref.where);
}

void SqliteVault::drop_states_beyond_limit() {
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
    if (row_of(id, &row) != VaultOutcome::kDone || row.base > 0) continue;
    for (const StateRef& state : row.states) {
      if (!is_beyond(state.bytes, state.where)) continue;
      if (slab_for(state.bytes).drop(state.where) > 0) ++health_.states_dropped;
    }
  }
  for (const auto& [bytes, slab] : slabs_) slab->trim();
}

std::size_t SqliteVault::shorten_expiry(std::int64_t seconds, const ExpiryOf& expiry_of) {
  std::size_t removed = 0;
  {
    MutexLock lock(store_mutex_);
    const std::int64_t noted = schema_->noted_expiry();
    if (noted == seconds || health_.state == Health::State::kBroken) return 0;
    bool is_whole = true;
    if (noted == 0 || seconds < noted) {
      SessionId after;
      for (VaultOutcome outcome{}; outcome != VaultOutcome::kNotFound;) {
        outcome = shorten_some(expiry_of, after, removed);
        is_whole =
            is_whole && (outcome == VaultOutcome::kDone || outcome == VaultOutcome::kNotFound);
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

VaultOutcome SqliteVault::shorten_some(const ExpiryOf& expiry_of, SessionId& after,
                                       std::size_t& removed) {
  std::vector<SessionId> ids;
  schema_->list("", after, std::nullopt, [&](const SessionId& id) {
    ids.push_back(id);
    return ids.size() < kSessionsAtOnce;
  });
  // Of the journal's those that come before the next page.
  const SessionId last = ids.size() < kSessionsAtOnce ? SessionId() : ids.back();
  for (auto tail = tails_.upper_bound(after); tail != tails_.end(); ++tail) {
    if (last.empty() || tail->first < last) ids.push_back(tail->first);
  }
  if (ids.empty()) return VaultOutcome::kNotFound;
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  after = ids.back();
  const auto now = clock_.wall_time();
  std::size_t gone = 0;
  const VaultOutcome outcome = transact_making_room(
      [&](Transaction& transaction, bool only_removals) REQUIRES(store_mutex_) {
        gone = 0;
        for (const SessionId& id : ids) {
          Row row;
          if (row_of(id, &row) != VaultOutcome::kDone) continue;
          const auto expires = expiry_of(row);
          if (!expires || *expires >= row.expires) continue;
          const bool is_over = *expires <= now;
          if (!is_over && only_removals) continue;
          const VaultBytes body = encode_change({.expires = *expires});
          VaultOutcome why{};
          const Write write{.kind = is_over ? Write::Kind::kRemove : Write::Kind::kState,
                            .id = id,
                            .before = row.digest,
                            .after = row.digest,
                            .position = row.position,
                            .body = is_over ? std::span<const std::byte>() : std::span(body)};
          if (change(tail_of(id, &why), write, transaction) != VaultOutcome::kDone) continue;
          transaction.fold.insert(id);
          if (is_over) ++gone;
        }
        if (!only_removals) fold_some(transaction);
      },
      /*has_removals=*/true);
  if (outcome == VaultOutcome::kDone) removed += gone;
  return outcome;
}

}  // namespace lintel
