// DurableSessions: how sessions come back into memory.
#include <spdlog/spdlog.h>

#include <new>
#include <ranges>
#include <utility>

#include "model/core/model_error.h"
#include "model/lora/adapter.h"
#include "server/sessions/persistence/durable_sessions.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {

SessionRefusal DurableSessions::look_up(const std::string& id, const Owner& owner, Cold& cold) {
  return look_at(vault_.find(id, owner), cold);
}

SessionRefusal DurableSessions::look_at(SessionVault::Opened found, Cold& cold) {
  if (found.outcome != VaultOutcome::kDone) return refusal_of(found.outcome);
  if (!found.holder.empty()) {
    found.outcome = VaultOutcome::kHeld;
    cold.held = refusal_of(found);
  }
  cold.row = std::move(found.row);
  cold.claim = found.claim;
  cold.lease = std::move(found.lease);
  if (has_expired(cold.row)) return {SessionError::kNotFound};
  std::optional<StoredMarks> marks = decode_marks(cold.row.marks);
  if (!marks) return {SessionError::kDamaged};
  cold.marks = *std::move(marks);
  cold.marks.options.max_values = cold.row.max_values;
  cold.marks.options.durability = cold.row.durability;
  cold.marks.options.numerics_changed_at = cold.marks.numerics_changed_at;
  if (!cold.row.call.empty()) {
    cold.call = decode_call(cold.row.call);
    if (!cold.call) return {SessionError::kDamaged};
  }
  cold.model = model_of(cold.row);
  if (cold.model != nullptr && other_numerics(cold.row, cold.marks, cold.model->numerics.hex)) {
    cold.marks.options.numerics =
        cold.marks.numerics.empty() ? cold.row.numerics : cold.marks.numerics;
  }
  return {};
}

SessionRefusal DurableSessions::busy_or_away(const SessionRefusal& refusal) const {
  const bool is_away = refusal.error == SessionError::kBusy &&
                       vault_.health().state == SessionVault::Health::State::kAway;
  return is_away ? SessionRefusal{SessionError::kStoreAway} : refusal;
}

SessionStore::LeaseResult DurableSessions::lease(const std::string& id, const Owner& owner) {
  // Others may need its memory before it is leased.
  constexpr int kMostTries = 16;
  SessionStore::LeaseResult result;
  for (int i = 0; i < kMostTries; ++i) {
    if (const auto info = store_.get(id, owner); info && !info->busy) {
      SessionStore::LeaseResult leased = store_.lease(id, owner);
      leased.refusal = busy_or_away(leased.refusal);
      if (leased.refusal.error != SessionError::kNotFound) return leased;
    }
    result.refusal = ensure_in_memory(id, owner);  // open_call sees whether it has expired
    if (result.refusal) return result;
    SessionStore::LeaseResult leased = store_.lease(id, owner);
    leased.refusal = busy_or_away(leased.refusal);
    if (leased.refusal.error != SessionError::kNotFound) return leased;
  }
  result.refusal = {SessionError::kStoreAway};
  return result;
}

SessionRefusal DurableSessions::bring(const std::string& id, const Owner& owner) {
  if (store_.get(id, owner) && !find(id, owner)) return store_.absence(id, owner);  // expired
  return ensure_in_memory(id, owner);
}

SessionRefusal DurableSessions::ensure_in_memory(const std::string& id, const Owner& owner) {
  bool is_here = false;
  if (store_.get(id, owner) && !vault_.is_shared()) return {};
  const IdLocks::Hold alone(locks_, id);
  // Another thread may have loaded it.
  if (const SessionRefusal refusal = drop_if_old(id, owner, &is_here); refusal || is_here) {
    return refusal;
  }
  return wake(id, owner);
}

SessionRefusal DurableSessions::drop_if_old(const std::string& id, const Owner& owner,
                                            bool* is_here) {
  const std::optional<SessionInfo> info = store_.get(id, owner);
  *is_here = info.has_value();
  if (!info || !vault_.is_shared() || info->busy || info->durability == Durability::kNone) {
    return {};
  }
  const SessionVault::Opened found = vault_.find(id, owner);
  const bool is_known =
      found.outcome == VaultOutcome::kDone || found.outcome == VaultOutcome::kNotFound;
  if (!is_known) return refusal_of(found.outcome);
  if (found.outcome == VaultOutcome::kDone && !is_old(found.row, *info)) return {};
  *is_here = false;
  store_.remove(id, owner);
  return {};
}

SessionRefusal DurableSessions::wake(const std::string& id, const Owner& owner) {
  constexpr int kMostTries = 16;
  for (int i = 0; i < kMostTries; ++i) {
    Digest seen;
    const SessionRefusal refusal = wake_once(id, owner, seen);
    const bool may_have_changed =
        refusal.error == SessionError::kDamaged || refusal.error == SessionError::kNotFound;
    if (!may_have_changed || !vault_.is_shared()) return refusal;
    // Damaged is a row that does not fit although no other server has written it.
    const SessionVault::Opened now = vault_.find(id, owner);
    if (now.outcome != VaultOutcome::kDone || now.row.digest == seen) return refusal;
  }
  return {SessionError::kStoreAway};
}

SessionRefusal DurableSessions::wake_once(const std::string& id, const Owner& owner, Digest& seen) {
  Cold cold;
  const SessionRefusal unknown = look_up(id, owner, cold);
  seen = cold.row.digest;  // also of one that is refused for what it is
  if (unknown) {
    return unknown.error == SessionError::kNotFound ? store_.absence(id, owner) : unknown;
  }
  if (cold.model == nullptr) return {SessionError::kModelMismatch};
  SharedAdapter adapter;
  if (!cold.marks.adapter.empty()) {
    adapter = cold.model->adapters->find(cold.marks.adapter);
    if (adapter == nullptr || adapter->weights->fingerprint() != cold.marks.adapter_fingerprint) {
      return {SessionError::kModelMismatch};
    }
  }
  try {
    SessionImage image;
    if (const SessionRefusal refusal = read_image(cold, image)) return refusal;
    const StoredSession stored{.id = id,
                               .options = cold.marks.options,
                               .created = cold.row.created,
                               .last_used = cold.row.used};
    const SessionStore::CreateResult woken = store_.wake(
        stored, cold.model->name, cold.model->transformer, image, owner, std::move(adapter));
    if (woken.refusal) return woken.refusal;
    (image.state.empty() ? from_values_ : from_slot_).fetch_add(1);
    const std::int64_t idle_at = cold.call ? cold.call->start : cold.row.position;
    replayed_cold_.fetch_add(static_cast<std::uint64_t>(idle_at - image.state_position));
    if (!cold.marks.options.numerics.empty() && numerics_changed_.fetch_add(1) == 0) {
      spdlog::warn("the store has sessions that a machine of other bits computed");
    }
    zero(image);
  } catch (const ModelError& error) {
    // Of a store that is shared another server may have written meanwhile.
    spdlog::log(vault_.is_shared() ? spdlog::level::warn : spdlog::level::err,
                "a session in the store is damaged: {}", error.what());
    return {SessionError::kDamaged};
  } catch (const std::bad_alloc&) {
    return {SessionError::kOutOfMemory};
  }
  return {};
}

SessionRefusal DurableSessions::read_image(const Cold& cold, SessionImage& image) {
  const SessionVault::Row& row = cold.row;
  image.model = row.model;
  image.max_values = row.max_values;
  image.window = cold.marks.options.window;
  image.base = cold.marks.oldest(row);
  image.position = row.position;
  image.digest = row.digest;
  image.base_digest =
      cold.marks.bases.empty() ? cold.marks.base_digest : cold.marks.bases.back().digest;
  // A repeated call may restart where it began; open_call() decides.
  const std::int64_t latest = cold.call ? cold.call->start : row.position;
  image.state_position = read_state(row, image.base, latest, image.state);
  if (image.state_position < image.base) {
    // Without the values before its base the state after them is no cache.
    if (row.base > 0) return {SessionError::kDamaged};
    image.base = 0;
    image.base_digest = cold.marks.base_digest;
  }
  image.marks = cold.marks.marks;
  if (cold.call) append_marks(*cold.call, row.base, row.position, image.marks);
  image.marks = marks_from(image.base, std::move(image.marks));
  // A store on the network may say anything: no more than sessions may take in memory is made room
  // for.
  const std::int64_t count = row.position - image.base;
  const std::size_t most = store_.options().session_memory_bytes / sizeof(std::int32_t);
  if (count < 0 || static_cast<std::uint64_t>(count) > most) return {SessionError::kDamaged};
  image.values.resize(static_cast<std::size_t>(count));
  return refusal_of(vault_.read_values(row.id, image.base, image.values));
}

std::int64_t DurableSessions::read_state(const SessionVault::Row& row, std::int64_t least,
                                         std::int64_t most, std::vector<std::byte>& state) {
  for (const SessionVault::StateRef& ref : std::views::reverse(row.states)) {
    if (ref.position > most) continue;
    if (ref.position < least) break;
    if (ref.bytes > store_.options().session_memory_bytes) continue;
    state.resize(ref.bytes);
    if (vault_.read_state(ref, state) == VaultOutcome::kDone) return ref.position;
  }
  state.clear();
  return 0;
}

}  // namespace lintel
