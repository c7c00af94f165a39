// SessionStore: fork, rewind and history.
#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "model/core/state_bytes.h"
#include "model/lora/adapter.h"
#include "server/sessions/nearest_state.h"
#include "server/sessions/session_record.h"
#include "server/sessions/session_store.h"

namespace lintel {

SessionStore::Source SessionStore::find_source(const std::string& id, const Owner& owner) {
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

SessionRefusal SessionStore::out_of_range(const SessionRecord& record) const {
  SessionRefusal refusal{SessionError::kOutOfRange};
  const SessionHistory::Extent extent = record.history->extent();
  MutexLock lock(mutex_);
  refusal.lowest = oldest_position(record, extent);
  refusal.highest = extent.position;
  return refusal;
}

SessionStore::ForkResult SessionStore::fork(const std::string& id, const Owner& owner,
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
  const std::int64_t values = position.value_or(origin.history->position());

  SessionOptions session = origin.options;
  session.durability = durability.value_or(session.durability);
  session.id_prefix.clear();  // a copy has no name
  const std::int64_t foreign = [&] {
    MutexLock lock(mutex_);
    return std::min(origin.foreign_values, values);
  }();
  std::vector<std::shared_ptr<SessionRecord>> forks;
  Sessions added;
  try {
    for (int i = 0; i < count; ++i) {
      // All are admitted before the first is made; an abandoned attempt releases them with `forks`.
      Made made = new_record(origin.model_name, origin.model, session, origin.reservation.bytes(),
                             /*takes_place=*/true, owner, origin.adapter);
      if (made.refusal) return refused(made.refusal);
      made.record->max_values = origin.max_values;
      forks.push_back(std::move(made.record));
    }
    for (const std::shared_ptr<SessionRecord>& fork : forks) {
      fork->history = origin.history->fork(values);
      if (fork->history == nullptr) return refused(out_of_range(origin));
      const NearestState nearest(origin, source.held ? &*origin.sequence : nullptr,
                                 fork->history->base(), values);
      if (!nearest) return refused(out_of_range(origin));
      fork->sequence.emplace(nearest.copy());
      fork->state_values = fork->sequence->next_position();
      if (fork->state_values == values) remember_tail(*fork->sequence, *fork->history);
      fork->checkpoints.share(origin.checkpoints, values);
      fork->foreign_values = foreign;
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

SessionStore::CreateResult SessionStore::rewind(const std::string& id, const Owner& owner,
                                                std::int64_t position,
                                                const std::optional<Digest>& expected) {
  CreateResult result;
  LeaseResult leased = lease(id, owner);
  result.refusal = leased.refusal;
  if (!leased.lease) return result;
  const std::shared_ptr<SessionRecord> record = leased.lease.record_;
  result.refusal = rewind(leased.lease, position, expected);
  leased.lease = SessionLease();
  // Idle, it says of its own state, too, how far it can go back.
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

SessionRefusal SessionStore::rewind(SessionLease& lease, std::int64_t position,
                                    const std::optional<Digest>& expected,
                                    const StoredState* stored) {
  SessionRecord& record = *lease.record_;
  const SessionHistory::Extent extent = record.history->extent();
  if (expected && *expected != extent.digest) return {SessionError::kDigestMismatch};
  SequenceState& sequence = *record.sequence;
  const NearestState nearest(record, &sequence, extent.base, position);
  const bool takes_stored = stored != nullptr && extent.base <= stored->num_values &&
                            stored->num_values <= position &&
                            stored->num_values > std::max<std::int64_t>(nearest.num_values(), 0);
  if (position < extent.base || position > extent.position || (!nearest && !takes_stored)) {
    return out_of_range(record);
  }
  try {
    if (takes_stored) {
      // Until the old one is gone.
      const SessionMemory::Reservation both =
          memory_.take(lease.owner(), record.reservation.bytes());
      SequenceState loaded = record.model->new_sequence(weights_of(record.adapter));
      StateByteReader reader(stored->bytes);
      loaded.load(reader, stored->num_values);
      sequence = std::move(loaded);
    } else if (nearest.is_empty()) {
      sequence.reset();
    } else if (!nearest.is(sequence)) {
      // Until the old one is gone.
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
  record.values_at_lease = sequence.next_position();  // nothing was added
  MutexLock lock(mutex_);
  record.foreign_values = std::min(record.foreign_values, position);
  return {};
}

SessionStore::HistoryResult SessionStore::history(const std::string& id, const Owner& owner,
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
  // Of one moment: a worker may write meanwhile.
  const std::int64_t end = to.value_or(record->history->position());
  const auto past = end < 0 ? nullptr : record->history->fork(end);
  if (past == nullptr || from < past->base() || from > end) {
    const SessionHistory::Extent extent = record->history->extent();
    result.refusal = {SessionError::kOutOfRange, 0, 0, extent.base, extent.position};
    return result;
  }
  result.first = from;
  result.values = past->values(from, end);
  result.marks = past->marks(from, end);
  if (!result.marks.empty() && result.marks.back().position == end) result.marks.pop_back();
  return result;
}

}  // namespace lintel
