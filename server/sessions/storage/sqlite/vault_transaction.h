// SqliteVault::Transaction: a transaction in the making. For the vault's own files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "server/sessions/storage/sqlite/sqlite_vault.h"

namespace lintel {

struct SqliteVault::Transaction {
  struct Step {
    SessionId id;
    VaultSession::Undo undo{};
    std::int64_t first_seq = 0, last_seq = 0;  // of the tail before
    bool created = false;
  };
  std::vector<Step> steps;
  std::map<SessionId, std::vector<StateRef>> states_before;  // of sessions whose states may change
  std::vector<std::pair<SessionId, Held>> let_go;
  std::set<SessionId> fold;        // asked for
  std::vector<SessionId> folded;   // done, or set aside:
  std::vector<SessionId> damaged;  // of those
  std::int64_t last_seq = 0;       // before
  std::int64_t keep_from = 0;      // records before it are dropped
  std::vector<std::uint32_t> record_bytes;
  std::size_t journal_bytes = 0;         // of those
  std::size_t created = 0, removed = 0;  // sessions
  bool names_states = false;
};

}  // namespace lintel
