// What is written of sessions, as bytes: the bodies of SessionVault::Write, rows, and records of a
// journal. Little-endian; a length before each text. A decoder takes what an encoder made, whole,
// and nothing else.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/storage/session_vault.h"

namespace lintel {

using VaultBytes = std::vector<std::byte>;

// One byte for the width (1, 2 or 4, as the greatest value needs), then the values.
VaultBytes encode_values(std::span<const std::int32_t> values);
std::optional<std::vector<std::int32_t>> decode_values(std::span<const std::byte> bytes);

VaultBytes encode_row(const SessionVault::Row& row);
std::optional<SessionVault::Row> decode_row(std::span<const std::byte> bytes);

// kCreate: a session with the values [row.base, row.position), e.g. of a fork.
struct NewSession {
  SessionVault::Row row;
  std::vector<std::int32_t> values;
};
VaultBytes encode_new_session(const NewSession& session);
std::optional<NewSession> decode_new_session(std::span<const std::byte> bytes);

// What of a row changes with its position and digest. What is not set stays.
struct RowChange {
  std::optional<std::string> call, last_calls, marks, tail;
  std::optional<std::vector<SessionVault::StateRef>> states;
  std::optional<std::int64_t> base;  // values below it are forgotten
  std::optional<std::chrono::system_clock::time_point> used, expires;
};
VaultBytes encode_change(const RowChange& change);
std::optional<RowChange> decode_change(std::span<const std::byte> bytes);

// A write without its claim. The body of what is decoded points into `bytes`.
VaultBytes encode_write(const SessionVault::Write& write);
std::optional<SessionVault::Write> decode_write(std::span<const std::byte> bytes);

}  // namespace lintel
