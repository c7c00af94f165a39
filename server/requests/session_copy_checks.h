// Checks of what is asked of sessions' copies: forks, rewinds, snapshots, histories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lintel/v1/session.pb.h"
#include "server/history/digest.h"
#include "server/requests/violations.h"
#include "server/sessions/session_store.h"

namespace lintel {

// A position that a session may have; whether it reaches there the store says.
void check_position(std::int64_t position, const std::string& field, Violations& violations);

struct CheckedFork {
  std::optional<std::int64_t> position;
  int count = 1;
};
CheckedFork check_fork(const v1::ForkSessionRequest& wire, Violations& violations);

struct CheckedRewind {
  std::int64_t position = 0;
  std::optional<Digest> expected;
};
CheckedRewind check_rewind(const v1::RewindSessionRequest& wire, Violations& violations);

struct CheckedSnapshot {
  std::optional<std::int64_t> position;
  std::size_t chunk_bytes = 0;
};
CheckedSnapshot check_snapshot(const v1::SnapshotSessionRequest& wire, Violations& violations);

struct CheckedHistory {
  std::int64_t from = 0;
  std::optional<std::int64_t> to;
};
CheckedHistory check_history(const v1::ReadHistoryRequest& wire, Violations& violations);

// What Create asks for beside model and adapter.
void check_session_options(const v1::CreateSessionRequest& wire, SessionOptions& options,
                           Violations& violations);

}  // namespace lintel
