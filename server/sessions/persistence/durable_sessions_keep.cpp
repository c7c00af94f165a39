// DurableSessions: what is written of sessions that no call runs in.
#include <algorithm>
#include <span>
#include <utility>

#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "server/models/model_registry.h"
#include "server/sessions/persistence/durable_sessions.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {
namespace {

using Kind = SessionVault::Write::Kind;

// Whether one is stored that is left where the session goes back to `position`.
bool keeps_state(const SessionVault::Row& row, std::int64_t position) {
  return !row.states.empty() && row.states.front().position <= position;
}

}  // namespace

SessionRefusal DurableSessions::keep(const std::string& id, const Owner& owner) {
  const std::optional<SessionOptions> made_as = store_.made_as(id, owner);
  if (!made_as) return store_.absence(id, owner);
  if (made_as->durability == Durability::kNone) return {};
  const std::optional<SessionInfo> info = store_.get(id, owner);
  if (!info) return store_.absence(id, owner);
  const SharedModel model = models_.find(info->model, info->transformer);
  if (model == nullptr) return {SessionError::kUnloaded};
  // A state of few values is made of them as soon as it is read.
  const bool with_state =
      model->transformer->constant_state() && info->num_values - 1 >= options_.park_tokens;
  SessionStore::ImageResult made =
      store_.image(id, owner, std::nullopt, /*with_history=*/true, with_state);
  if (made.refusal) return made.refusal;
  SessionImage& image = made.image;
  NewSession created;
  SessionVault::Row& row = created.row;
  row.id = id;
  row.owner = owner;
  row.model = image.model;
  row.model_print = model->transformer->fingerprint();
  row.numerics = model->numerics.hex;
  row.durability = made_as->durability;
  row.max_values = image.max_values;
  row.base = image.base;
  row.position = image.position;
  row.digest = image.digest;
  row.marks = encode_marks({.options = *made_as,
                            .adapter = image.adapter,
                            .adapter_fingerprint = image.adapter_fingerprint,
                            .base_digest = image.base_digest,
                            .numerics = info->numerics,
                            .numerics_changed_at = info->numerics_changed_at,
                            .marks = image.marks});
  row.created = info->created;
  row.used = info->last_used;
  row.expires = expiry(*made_as);
  created.values = std::move(image.values);
  VaultBatch batch;
  batch.add({.kind = Kind::kCreate, .id = id, .after = row.digest, .position = row.position},
            encode_new_session(created));
  const VaultOutcome outcome = batch.commit_and_wait(vault_);
  zero_memory(std::span(created.values));
  if (outcome != VaultOutcome::kDone) return refusal_of(outcome);
  if (!image.state.empty()) {
    const bool has_state = store_state(id, owner, image);
    // Where the history begins after its first value the state is no cache.
    if (!has_state && image.base > 0) {
      remove_stored(id, owner);
      return {SessionError::kStoreFull};
    }
  }
  store_.set_stored(id, owner);
  return {};
}

bool DurableSessions::store_state(const std::string& id, const Owner& owner,
                                  const SessionImage& image) {
  const SessionVault::Opened opened = vault_.open(id, owner, nullptr);
  if (opened.outcome != VaultOutcome::kDone) return false;
  SessionVault::StateRef ref{.position = image.state_position};
  const bool has_state = vault_.put_state(id, image.state, &ref) == VaultOutcome::kDone;
  SessionVault::Write write{.kind = Kind::kState,
                            .id = id,
                            .claim = opened.claim,
                            .before = opened.row.digest,
                            .after = opened.row.digest,
                            .position = opened.row.position};
  VaultBatch batch;
  if (has_state) batch.add(write, encode_change({.states = {{ref}}}));
  write.kind = Kind::kRelease;
  batch.add(write, {});
  const bool is_kept =
      commit_and_release(batch, id, owner, opened.claim) == VaultOutcome::kDone && has_state;
  if (is_kept) states_stored_.fetch_add(1);
  return is_kept;
}

std::size_t DurableSessions::park_idle(Duration most) {
  constexpr std::size_t kSessionsOfACommit = 64;
  const TimePoint until = clock_.now() + most;
  std::size_t parked = 0;
  const std::vector<SessionStore::Named> idle = store_.idle_stored();
  for (auto next = idle.begin(); next != idle.end() && clock_.now() < until;) {
    VaultBatch batch;
    std::size_t put = 0;
    for (; put < kSessionsOfACommit && next != idle.end() && clock_.now() < until; ++next) {
      if (park(next->id, next->owner, batch)) ++put;
    }
    if (batch.empty()) continue;
    if (batch.commit_and_wait(vault_) != VaultOutcome::kDone) break;
    parked += put;
  }
  states_stored_.fetch_add(parked);
  return parked;
}

bool DurableSessions::park(const std::string& id, const Owner& owner, VaultBatch& batch) {
  const std::optional<SessionInfo> info = store_.get(id, owner);
  const auto pays = [&](const SessionVault::Row& row) {
    const std::int64_t stored = row.states.empty() ? 0 : row.states.back().position;
    return writer_.options().pays_to_park(info->num_values - stored, /*leaves_memory=*/true);
  };
  if (!info || !info->transformer->constant_state() || !pays({})) return false;
  const SessionVault::Opened opened = vault_.open(id, owner, nullptr);
  if (opened.outcome != VaultOutcome::kDone) return false;
  SessionVault::Write write{.kind = Kind::kState,
                            .id = id,
                            .claim = opened.claim,
                            .before = opened.row.digest,
                            .after = opened.row.digest,
                            .position = opened.row.position};
  bool is_put = false;
  if (opened.row.call.empty() && pays(opened.row)) {
    SessionImage image = store_
                             .image(id, owner, std::nullopt, /*with_history=*/false,
                                    /*with_state=*/true)
                             .image;
    SessionVault::StateRef ref{.position = image.state_position};
    is_put = image.digest == opened.row.digest && image.state_position == image.position &&
             vault_.put_state(id, image.state, &ref) == VaultOutcome::kDone;
    zero(image);
    if (is_put) {
      std::vector<SessionVault::StateRef> states = opened.row.states;
      add_state(states, ref, states.empty() ? 0 : states.back().position);
      batch.add(write, encode_change({.states = std::move(states)}));
    }
  }
  write.kind = Kind::kRelease;
  batch.add(write, {});
  return is_put;
}

SessionRefusal DurableSessions::remove(const std::string& id, const Owner& owner) {
  const IdLocks::Hold alone(locks_, id);
  const std::optional<SessionInfo> info = store_.get(id, owner);
  const SessionRefusal refusal = store_.remove(id, owner);
  if (refusal.error == SessionError::kBusy) return busy_or_away(refusal);
  if (info && info->durability == Durability::kNone) return refusal;
  const SessionRefusal stored = remove_stored(id, owner);
  return stored.error == SessionError::kNotFound && refusal ? refusal : stored;
}

SessionRefusal DurableSessions::remove_stored(const std::string& id, const Owner& owner) {
  const SessionVault::Opened opened = vault_.open(id, owner, nullptr);
  if (opened.outcome != VaultOutcome::kDone) return refusal_of(opened);
  VaultBatch batch;
  batch.add({.kind = Kind::kRemove,
             .id = id,
             .claim = opened.claim,
             .before = opened.row.digest,
             .after = opened.row.digest,
             .position = opened.row.position},
            {});
  const VaultOutcome outcome = commit_and_release(batch, id, owner, opened.claim);
  if (outcome == VaultOutcome::kDone && has_expired(opened.row)) return {SessionError::kNotFound};
  return refusal_of(outcome);
}

SessionStore::CreateResult DurableSessions::rewind(const std::string& id, const Owner& owner,
                                                   std::int64_t position,
                                                   const std::optional<Digest>& expected) {
  constexpr int kMostTries = 8;
  SessionStore::CreateResult result;
  for (int i = 0; i < kMostTries; ++i) {
    result.refusal = bring(id, owner);
    if (result.refusal) return result;
    SessionStore::LeaseResult leased = lease(id, owner);
    result.refusal = leased.refusal;
    if (!leased.lease) return result;
    if (leased.lease.durability() == Durability::kNone) {
      leased.lease = SessionLease();
      return store_.rewind(id, owner, position, expected);
    }
    result.refusal = rewind(leased.lease, position, expected);
    if (result.refusal.error != SessionError::kStale) break;
  }
  if (result.refusal) return result;
  const std::optional<SessionInfo> info = find(id, owner);
  if (!info) {  // removed meanwhile
    result.refusal = store_.absence(id, owner);
    return result;
  }
  result.info = *info;
  return result;
}

std::optional<SessionVault::StateRef> DurableSessions::put_state(SessionLease& lease) {
  std::vector<std::byte> bytes;
  StateByteWriter writer(bytes);
  lease.sequence().save(writer);
  SessionVault::StateRef ref{.position = lease.sequence().next_position()};
  const VaultOutcome put = vault_.put_state(lease.session_id(), bytes, &ref);
  zero_memory(std::span(bytes));
  if (put != VaultOutcome::kDone) return std::nullopt;
  return ref;
}

SessionRefusal DurableSessions::rewind(SessionLease& lease, std::int64_t position,
                                       const std::optional<Digest>& expected) {
  const SessionVault::Opened opened = vault_.open(lease.session_id(), lease.owner(), nullptr);
  if (opened.outcome != VaultOutcome::kDone) return refusal_of(opened);
  const SessionVault::Row& row = opened.row;
  if (vault_.is_shared() && lease.history()->extent().digest != row.digest) {
    lost_claims_.give_back(vault_, row, opened.claim);
    lease.discard();
    return {SessionError::kStale};
  }
  const SessionRefusal refusal = go_back(lease, row, position, expected);
  const SessionHistory::Extent now = lease.history()->extent();
  SessionVault::Write write{.kind = Kind::kRewind,
                            .id = row.id,
                            .claim = opened.claim,
                            .before = row.digest,
                            .after = now.digest,
                            .position = now.position};
  VaultBatch batch;
  std::optional<SessionVault::StateRef> state;
  if (!refusal && row.base > 0 && !keeps_state(row, now.position)) {
    state = put_state(lease);
    if (!state) {  // as it was: without one nothing would lead there
      lease.discard();
      write.after = row.digest;
      write.kind = Kind::kRelease;
      write.position = row.position;
      batch.add(write, {});
      commit_and_release(batch, row.id, row.owner, opened.claim);
      return {SessionError::kStoreFull};
    }
  }
  if (!refusal) {
    std::vector<LastCall> calls =
        decode_last_calls(row.last_calls).value_or(std::vector<LastCall>());
    std::erase_if(calls, [&](const LastCall& call) { return call.end > now.position; });
    StoredMarks marks = decode_marks(row.marks).value_or(StoredMarks());
    marks.marks = marks_of(marks.marks, row.base, *lease.history(), now.position);
    const std::optional<StoredCall> given_up =
        row.call.empty() ? std::nullopt : decode_call(row.call);
    if (given_up && given_up->start < now.position) note_numerics(*given_up, row, marks);
    replayed_rewound_.fetch_add(
        static_cast<std::uint64_t>(now.position - lease.sequence().next_position()));
    batch.add(write, encode_change({.last_calls = encode_last_calls(calls),
                                    .marks = encode_marks(marks),
                                    .used = clock_.wall_time(),
                                    .expires = expiry(marks.options)}));
    write.before = now.digest;
    write.kind = Kind::kState;
    if (state) batch.add(write, encode_change({.states = {{*state}}}));
  } else {
    write.after = row.digest;
  }
  write.kind = Kind::kRelease;
  batch.add(write, {});
  const VaultOutcome outcome = commit_and_release(batch, row.id, row.owner, opened.claim);
  if (outcome == VaultOutcome::kDone) return refusal;
  lease.discard();  // the vault is the truth
  return refusal_of(outcome);
}

}  // namespace lintel
