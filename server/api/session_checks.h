// SPDX-License-Identifier: Apache-2.0
// Checks of requests about sessions and their copies: forks, rewinds, snapshots, histories.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lintel/v1/session.pb.h"
#include "model/config/config.h"
#include "server/api/request_checks.h"
#include "server/sessions/digest.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/session_manager.h"

namespace lintel {

struct CheckedList {
  std::string after_id;
  std::size_t page_size = 100;
};
CheckedList check_list(const v1::ListSessionsRequest& wire, Violations& violations);

// An id that may be one; whose it is the store says.
void check_session_id(const std::string& id, Violations& violations);

// Checks the most tokens that a session shall hold, which a message carries as `field`; 0: the
// model's own limit, `most` (0: unbounded).
void check_session_length(std::int64_t max_tokens, const std::string& field, std::int64_t most,
                          Violations& violations);

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

// Reads the durability that a message asks for as `field`; `otherwise` if it has none.
// FAILED_PRECONDITION: the session is to outlive the server, and there is no store (null).
grpc::Status check_durability(v1::Durability wire, const std::string& field,
                              const PersistentSessions* store, Durability otherwise,
                              Durability* durability);
// The durability of a session whose creator names none.
Durability default_durability(const PersistentSessions* store);
// The time for which a session is kept unused (0: the server's choice).
std::chrono::seconds check_expiry(const google::protobuf::Duration& expire_after,
                                  Durability durability, Violations& violations);

// Reads the options in a Create request, except model and adapter.
void check_session_options(const v1::CreateSessionRequest& wire, SessionOptions& options,
                           Violations& violations);

}  // namespace lintel
