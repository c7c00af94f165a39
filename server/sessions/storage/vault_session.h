// VaultSession: a session as its writes leave it, independent of where they are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "server/sessions/storage/session_vault.h"

namespace lintel {

// The rules of SessionVault::Write, but for claims. Not thread-safe.
class VaultSession {
 public:
  // What takes a write back.
  struct Undo {
    std::optional<SessionVault::Row> row{};  // where more changed than position and digest
    std::int64_t position = 0, first = 0;
    Digest digest;
    bool removed = false;
    std::vector<std::int32_t> cut{};  // values that were taken off the end
    std::size_t size = 0;             // of the values before
  };

  // One that is there already; its values up to row.position are kept elsewhere.
  explicit VaultSession(SessionVault::Row row) : row_(std::move(row)), first_(row_.position) {}
  // The one that a kCreate describes; nothing where its body has none of that name.
  static std::optional<VaultSession> created(const SessionVault::Write& write);

  // Whether a write stands already, so that a repeat of it is done.
  bool stands(const SessionVault::Write& write) const {
    return !removed_ && write.before != write.after && write.after == row_.digest;
  }
  // Any write but kCreate that does not stand. Anything but kDone: nothing has changed. kCorrupt:
  // the body says nothing that such a write can.
  VaultOutcome apply(const SessionVault::Write& write, Undo* undo);
  // REQUIRES: `undo` is of the last write that was applied and not taken back.
  void take_back(Undo undo);

  const SessionVault::Row& row() const { return row_; }
  bool removed() const { return removed_; }
  // Values [first(), row().position), written since it was made. Those of elsewhere that are not
  // below first() are no more.
  std::int64_t first() const { return first_; }
  const std::vector<std::int32_t>& values() const { return values_; }

 private:
  VaultOutcome append(const SessionVault::Write& write, Undo* undo);

  SessionVault::Row row_;
  std::int64_t first_ = 0;
  std::vector<std::int32_t> values_;
  bool removed_ = false;
};

}  // namespace lintel
