// SPDX-License-Identifier: Apache-2.0
// Shared by Snapshot and Restore: the largest size of a snapshot and its fields of the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/core/tensor.h"
#include "server/models/model_registry.h"
#include "server/sessions/session_options.h"
#include "server/sessions/snapshot.h"

namespace lintel {

// Bytes of a session, zeroed before they are freed.
class ZeroedBytes {
 public:
  ZeroedBytes() = default;
  explicit ZeroedBytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  ZeroedBytes(ZeroedBytes&& other) noexcept { bytes_.swap(other.bytes_); }
  ZeroedBytes& operator=(ZeroedBytes&& other) noexcept {
    bytes_.swap(other.bytes_);
    return *this;
  }
  ~ZeroedBytes() { zero_memory(std::span(bytes_)); }

  std::span<const std::byte> span() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// An upper bound of a snapshot's bytes: the state of num_tokens tokens and a history of
// history_tokens. SIZE_MAX where no state can hold so many.
std::size_t most_snapshot_bytes(const Transformer& model, std::int64_t num_tokens,
                                std::int64_t history_tokens);

// The image with what its model is, for write_snapshot(): of tokens that the model computes here.
SnapshotOf snapshot_of(SessionImage image, const ServedModel& model);

// Puts the numerics that computed the first `position` tokens of a session in place of the model's
// numerics here.
void tell_numerics(const SessionInfo& session, std::int64_t position, SnapshotOf& snapshot);
// The same the other way: of a session that is made of these tokens.
void take_numerics(const SnapshotOf& snapshot, const ServedModel& model, SessionOptions& session);

}  // namespace lintel
