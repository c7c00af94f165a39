// SPDX-License-Identifier: Apache-2.0
// Stored records of sessions, as bytes: the bodies of SessionStorage::Write, rows, and records of a
// journal. Little-endian; a length before each text. A decoder accepts exactly the whole output of
// its encoder.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/sessions/digest.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// RecordWriter and RecordReader: fields of records, as bytes. Little-endian; a length before each
// text.

class RecordWriter {
 public:
  template <typename T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  // Writes seven bits a byte, the lowest first: small numbers are short.
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) number(static_cast<std::uint8_t>(value | 128));
    number(static_cast<std::uint8_t>(value));
  }
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(const std::string& text) {
    number(static_cast<std::uint32_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }
  void time(std::chrono::system_clock::time_point time) {
    number<std::int64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Returns zeros after the end of the bytes; ok() is false from then on.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    std::uint64_t value = 0;
    const std::span<const std::byte> from = raw(sizeof(T));
    for (std::size_t i = 0; i < from.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = number<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if ((byte & 128) == 0) return value;
    }
    ok_ = false;
    return 0;
  }
  std::span<const std::byte> raw(std::size_t count) {
    ok_ = ok_ && count <= bytes_.size();
    if (!ok_) return {};
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::string text() {
    const std::span<const std::byte> from = raw(number<std::uint32_t>());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  Digest digest() {
    Digest digest;
    std::ranges::copy(raw(digest.bytes.size()), digest.bytes.begin());
    return digest;
  }
  std::chrono::system_clock::time_point time() {
    return std::chrono::system_clock::time_point(std::chrono::microseconds(number<std::int64_t>()));
  }
  std::span<const std::byte> rest() { return raw(bytes_.size()); }
  bool ok() const { return ok_; }
  bool all_read() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

using StorageBytes = std::vector<std::byte>;

// One byte for the width (1, 2 or 4, as the greatest token needs), then the tokens.
StorageBytes encode_tokens(std::span<const std::int32_t> tokens);
std::optional<std::vector<std::int32_t>> decode_tokens(std::span<const std::byte> bytes);

StorageBytes encode_row(const SessionStorage::Row& row);
std::optional<SessionStorage::Row> decode_row(std::span<const std::byte> bytes);

// kCreate: a session with the tokens [row.base, row.position), e.g. of a fork.
struct NewSession {
  SessionStorage::Row row;
  std::vector<std::int32_t> tokens;
};
StorageBytes encode_new_session(const NewSession& session);
std::optional<NewSession> decode_new_session(std::span<const std::byte> bytes);

// Changes of a row besides its position and digest. Fields that are not set stay.
struct RowChange {
  std::optional<std::string> call, last_calls, marks, tail;
  std::optional<std::vector<SessionStorage::StateRef>> states;
  std::optional<std::int64_t> base;  // tokens below it are forgotten
  std::optional<std::chrono::system_clock::time_point> used, expires;
};
StorageBytes encode_change(const RowChange& change);
std::optional<RowChange> decode_change(std::span<const std::byte> bytes);

// A write without its claim. The body of a decoded one points into `bytes`.
StorageBytes encode_write(const SessionStorage::Write& write);
std::optional<SessionStorage::Write> decode_write(std::span<const std::byte> bytes);

// StorageSession: the result of a session's writes, independent of where they are stored.

// Implements the rules of SessionStorage::Write, except claims. Not thread-safe.
class StorageSession {
 public:
  // The data to undo a write.
  struct Undo {
    std::optional<SessionStorage::Row> row{};  // if more changed than position and digest
    std::int64_t position = 0, first = 0;
    Digest digest;
    bool removed = false;
    std::vector<std::int32_t> cut{};  // tokens removed from the end
    std::size_t size = 0;             // number of tokens before
  };

  // A stored session; its tokens up to row.position are kept elsewhere.
  explicit StorageSession(SessionStorage::Row row) : row_(std::move(row)), first_(row_.position) {}
  // The session of a kCreate; nothing if its body has no session of that name.
  static std::optional<StorageSession> created(const SessionStorage::Write& write);

  // True if a write is stored already, so that a repeat of it succeeds.
  bool stands(const SessionStorage::Write& write) const {
    return !removed_ && write.before != write.after && write.after == row_.digest;
  }
  // Applies any write but kCreate that is not stored already. Unless kNone is returned nothing has
  // changed. kDamaged: the body is not valid for such a write.
  SessionError apply(const SessionStorage::Write& write, Undo* undo);
  // REQUIRES: `undo` is of the last write that was applied and not taken back.
  void take_back(Undo undo);

  const SessionStorage::Row& row() const { return row_; }
  bool removed() const { return removed_; }
  // Tokens [first(), row().position), written since the object was made. Tokens kept elsewhere from
  // first() on are no longer valid.
  std::int64_t first() const { return first_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

 private:
  SessionError append(const SessionStorage::Write& write, Undo* undo);

  SessionStorage::Row row_;
  std::int64_t first_ = 0;
  std::vector<std::int32_t> tokens_;
  bool removed_ = false;
};

}  // namespace lintel
