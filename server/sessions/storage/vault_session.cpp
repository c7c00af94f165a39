#include "server/sessions/storage/vault_session.h"

#include <algorithm>

#include "server/sessions/storage/vault_records.h"

namespace lintel {
namespace {

using Kind = SessionVault::Write::Kind;

void change_row(SessionVault::Row& row, RowChange change) {
  if (change.call) row.call = *std::move(change.call);
  if (change.last_calls) row.last_calls = *std::move(change.last_calls);
  if (change.marks) row.marks = *std::move(change.marks);
  if (change.tail) row.tail = *std::move(change.tail);
  if (change.states) row.states = *std::move(change.states);
  if (change.base) row.base = *change.base;
  if (change.used) row.used = *change.used;
  if (change.expires) row.expires = *change.expires;
}

}  // namespace

std::optional<VaultSession> VaultSession::created(const SessionVault::Write& write) {
  std::optional<NewSession> made = decode_new_session(write.body);
  if (!made || made->row.id != write.id || write.id.empty() || made->row.digest != write.after) {
    return std::nullopt;
  }
  VaultSession session(std::move(made->row));
  session.first_ = session.row_.base;
  session.values_ = std::move(made->values);
  return session;
}

VaultOutcome VaultSession::append(const SessionVault::Write& write, Undo* undo) {
  const std::optional<std::vector<std::int32_t>> values = decode_values(write.body);
  if (!values) return VaultOutcome::kCorrupt;
  if (row_.position + static_cast<std::int64_t>(values->size()) != write.position) {
    return VaultOutcome::kRolledBack;
  }
  *undo = {
      .position = row_.position, .first = first_, .digest = row_.digest, .size = values_.size()};
  values_.insert(values_.end(), values->begin(), values->end());
  row_.position = write.position;
  row_.digest = write.after;
  return VaultOutcome::kDone;
}

VaultOutcome VaultSession::apply(const SessionVault::Write& write, Undo* undo) {
  if (removed_) return VaultOutcome::kNotFound;
  if (write.before != row_.digest) return VaultOutcome::kRolledBack;
  if (write.kind == Kind::kValues) return append(write, undo);

  std::optional<RowChange> change = decode_change(write.body);
  if (!change || write.kind == Kind::kCreate) return VaultOutcome::kCorrupt;
  const bool rewinds = write.kind == Kind::kRewind;
  const std::int64_t base = change->base.value_or(row_.base);
  const std::int64_t position = rewinds ? write.position : row_.position;
  if (base < row_.base || base > position || position > row_.position) {
    return VaultOutcome::kCorrupt;
  }
  *undo = {.row = row_,
           .position = row_.position,
           .first = first_,
           .digest = row_.digest,
           .size = values_.size()};
  change_row(row_, *std::move(change));
  if (write.kind == Kind::kEnd || rewinds) row_.call.clear();
  if (rewinds) {
    const auto kept = std::max<std::int64_t>(position - first_, 0);
    undo->cut.assign(values_.begin() + kept, values_.end());
    values_.resize(static_cast<std::size_t>(kept));
    first_ = std::min(first_, position);
  }
  row_.position = position;
  row_.digest = write.after;
  std::erase_if(row_.states, [&](const auto& state) { return state.position > position; });
  removed_ = write.kind == Kind::kRemove;
  return VaultOutcome::kDone;
}

void VaultSession::take_back(Undo undo) {
  if (undo.row) row_ = *std::move(undo.row);
  row_.position = undo.position;
  row_.digest = undo.digest;
  first_ = undo.first;
  removed_ = undo.removed;
  if (undo.cut.empty()) {
    values_.resize(undo.size);
  } else {
    values_.insert(values_.end(), undo.cut.begin(), undo.cut.end());
  }
}

}  // namespace lintel
