// VaultBatch: writes with their bodies, and how a vault's answers are waited for.
#pragma once

#include <deque>
#include <vector>

#include "server/sessions/session_refusal.h"
#include "server/sessions/storage/session_vault.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel {

// Used by one thread.
class VaultBatch {
 public:
  void add(SessionVault::Write write, VaultBytes body);
  bool empty() const { return writes_.empty(); }
  std::size_t size() const { return writes_.size(); }
  // Only the first `size` writes stay.
  void cut(std::size_t size);
  // `this` lives until `done` was called. Once.
  void commit(SessionVault& vault, SessionVault::Done done);
  // Waits. The first outcome that is not kDone, if there is one.
  VaultOutcome commit_and_wait(SessionVault& vault);

 private:
  std::vector<SessionVault::Write> writes_;
  std::deque<VaultBytes> bodies_;
};

// What a vault's outcome means to who asked for the session.
SessionRefusal refusal_of(VaultOutcome outcome);
// The same; of one that is held, by whom and for how long.
SessionRefusal refusal_of(const SessionVault::Opened& opened);

}  // namespace lintel
