// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/storage_records.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lintel {
namespace {

using Row = SessionStorage::Row;
using StateRef = SessionStorage::StateRef;
using Write = SessionStorage::Write;

template <typename T>
void write_packed(std::span<const std::int32_t> tokens, std::byte* to) {
  for (const std::int32_t token : tokens) {
    const T packed = static_cast<T>(token);
    std::memcpy(to, &packed, sizeof(packed));
    to += sizeof(packed);
  }
}

template <typename T>
void read_packed(const std::byte* from, std::span<std::int32_t> tokens) {
  for (std::int32_t& token : tokens) {
    T packed;
    std::memcpy(&packed, from, sizeof(packed));
    token = static_cast<std::int32_t>(packed);
    from += sizeof(packed);
  }
}

std::size_t width_of(std::span<const std::int32_t> tokens) {
  std::uint32_t all = 0;
  for (const std::int32_t token : tokens) all |= static_cast<std::uint32_t>(token);
  return all < 256 ? 1 : all < 65536 ? 2 : 4;
}

// A flag in the number of states: each has `first` and `is_pages`, too. Without it, in rows older
// than pages, they are 0.
constexpr std::uint32_t kWithPages = std::uint32_t{1} << 31;

void put_states(RecordWriter& to, const std::vector<StateRef>& states) {
  const bool with_pages = std::ranges::any_of(
      states, [](const StateRef& state) { return state.is_pages || state.first != 0; });
  to.number(static_cast<std::uint32_t>(states.size()) | (with_pages ? kWithPages : 0));
  for (const StateRef& state : states) {
    to.number(state.position);
    to.number(state.where);
    to.number<std::uint64_t>(state.bytes);
    to.raw(state.checksum.bytes);
    if (!with_pages) continue;
    to.number(state.first);
    to.number<std::uint8_t>(state.is_pages ? 1 : 0);
  }
}

std::vector<StateRef> get_states(RecordReader& from) {
  std::vector<StateRef> states;
  const auto count = from.number<std::uint32_t>();
  for (std::uint32_t left = count & ~kWithPages; from.ok() && left > 0; --left) {
    StateRef state;
    state.position = from.number<std::int64_t>();
    state.where = from.number<std::uint64_t>();
    state.bytes = from.number<std::uint64_t>();
    state.checksum = from.digest();
    if ((count & kWithPages) != 0) {
      state.first = from.number<std::int64_t>();
      state.is_pages = from.number<std::uint8_t>() != 0;
    }
    states.push_back(state);
  }
  return states;
}

void put_row(RecordWriter& to, const Row& row) {
  to.text(row.id);
  to.text(row.owner);
  to.text(row.model);
  to.text(row.model_print);
  to.text(row.numerics);
  to.number(static_cast<std::uint8_t>(row.durability));
  to.number(row.max_tokens);
  to.number(row.base);
  to.number(row.position);
  to.raw(row.digest.bytes);
  to.text(row.call);
  to.text(row.last_calls);
  to.text(row.marks);
  to.text(row.tail);
  put_states(to, row.states);
  to.time(row.created);
  to.time(row.used);
  to.time(row.expires);
}

Row get_row(RecordReader& from) {
  Row row;
  row.id = from.text();
  row.owner = from.text();
  row.model = from.text();
  row.model_print = from.text();
  row.numerics = from.text();
  row.durability = static_cast<Durability>(from.number<std::uint8_t>());
  row.max_tokens = from.number<std::int64_t>();
  row.base = from.number<std::int64_t>();
  row.position = from.number<std::int64_t>();
  row.digest = from.digest();
  row.call = from.text();
  row.last_calls = from.text();
  row.marks = from.text();
  row.tail = from.text();
  row.states = get_states(from);
  row.created = from.time();
  row.used = from.time();
  row.expires = from.time();
  return row;
}

// Flags of the fields of a RowChange that follow.
enum : std::uint8_t {
  kHasCall = 1,
  kHasLastCalls = 2,
  kHasMarks = 4,
  kHasTail = 8,
  kHasStates = 16,
  kHasBase = 32,
  kHasUsed = 64,
  kHasExpires = 128
};

}  // namespace

static_assert(std::endian::native == std::endian::little,
              "tokens are packed as they lie in memory");

StorageBytes encode_tokens(std::span<const std::int32_t> tokens) {
  const std::size_t width = width_of(tokens);
  StorageBytes bytes(1 + width * tokens.size());
  bytes[0] = static_cast<std::byte>(width);
  if (width == 1) write_packed<std::uint8_t>(tokens, bytes.data() + 1);
  if (width == 2) write_packed<std::uint16_t>(tokens, bytes.data() + 1);
  if (width == 4) write_packed<std::uint32_t>(tokens, bytes.data() + 1);
  return bytes;
}

std::optional<std::vector<std::int32_t>> decode_tokens(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  const std::size_t width = std::to_integer<std::size_t>(bytes[0]);
  if ((width != 1 && width != 2 && width != 4) || (bytes.size() - 1) % width != 0) {
    return std::nullopt;
  }
  std::vector<std::int32_t> tokens((bytes.size() - 1) / width);
  if (width == 1) read_packed<std::uint8_t>(bytes.data() + 1, tokens);
  if (width == 2) read_packed<std::uint16_t>(bytes.data() + 1, tokens);
  if (width == 4) read_packed<std::uint32_t>(bytes.data() + 1, tokens);
  return tokens;
}

StorageBytes encode_row(const Row& row) {
  RecordWriter to;
  put_row(to, row);
  return to.take();
}

std::optional<Row> decode_row(std::span<const std::byte> bytes) {
  RecordReader from(bytes);
  Row row = get_row(from);
  if (!from.all_read()) return std::nullopt;
  return row;
}

StorageBytes encode_new_session(const NewSession& session) {
  RecordWriter to;
  put_row(to, session.row);
  to.raw(encode_tokens(session.tokens));
  return to.take();
}

std::optional<NewSession> decode_new_session(std::span<const std::byte> bytes) {
  RecordReader from(bytes);
  NewSession session{get_row(from), {}};
  std::optional<std::vector<std::int32_t>> tokens = decode_tokens(from.rest());
  if (!from.ok() || !tokens) return std::nullopt;
  session.tokens = *std::move(tokens);
  const Row& row = session.row;
  if (row.base < 0 || row.position - row.base != static_cast<std::int64_t>(session.tokens.size())) {
    return std::nullopt;
  }
  return session;
}

StorageBytes encode_change(const RowChange& change) {
  RecordWriter to;
  std::uint8_t has = 0;
  if (change.call) has |= kHasCall;
  if (change.last_calls) has |= kHasLastCalls;
  if (change.marks) has |= kHasMarks;
  if (change.tail) has |= kHasTail;
  if (change.states) has |= kHasStates;
  if (change.base) has |= kHasBase;
  if (change.used) has |= kHasUsed;
  if (change.expires) has |= kHasExpires;
  to.number(has);
  if (change.call) to.text(*change.call);
  if (change.last_calls) to.text(*change.last_calls);
  if (change.marks) to.text(*change.marks);
  if (change.tail) to.text(*change.tail);
  if (change.states) put_states(to, *change.states);
  if (change.base) to.number(*change.base);
  if (change.used) to.time(*change.used);
  if (change.expires) to.time(*change.expires);
  return to.take();
}

std::optional<RowChange> decode_change(std::span<const std::byte> bytes) {
  RowChange change;
  if (bytes.empty()) return change;  // nothing changes
  RecordReader from(bytes);
  const std::uint8_t has = from.number<std::uint8_t>();
  if (has & kHasCall) change.call = from.text();
  if (has & kHasLastCalls) change.last_calls = from.text();
  if (has & kHasMarks) change.marks = from.text();
  if (has & kHasTail) change.tail = from.text();
  if (has & kHasStates) change.states = get_states(from);
  if (has & kHasBase) change.base = from.number<std::int64_t>();
  if (has & kHasUsed) change.used = from.time();
  if (has & kHasExpires) change.expires = from.time();
  if (!from.all_read()) return std::nullopt;
  return change;
}

StorageBytes encode_write(const Write& write) {
  RecordWriter to;
  to.number(static_cast<std::uint8_t>(write.kind));
  to.text(write.id);
  to.raw(write.before.bytes);
  to.raw(write.after.bytes);
  to.number(write.position);
  to.raw(write.body);
  return to.take();
}

std::optional<Write> decode_write(std::span<const std::byte> bytes) {
  RecordReader from(bytes);
  Write write;
  write.kind = static_cast<Write::Kind>(from.number<std::uint8_t>());
  write.id = from.text();
  write.before = from.digest();
  write.after = from.digest();
  write.position = from.number<std::int64_t>();
  write.body = from.rest();
  if (!from.ok() || write.kind > Write::Kind::kRemove) return std::nullopt;
  return write;
}

namespace {

using Kind = SessionStorage::Write::Kind;

void change_row(SessionStorage::Row& row, RowChange change) {
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

std::optional<StorageSession> StorageSession::created(const SessionStorage::Write& write) {
  std::optional<NewSession> made = decode_new_session(write.body);
  if (!made || made->row.id != write.id || write.id.empty() || made->row.digest != write.after) {
    return std::nullopt;
  }
  StorageSession session(std::move(made->row));
  session.first_ = session.row_.base;
  session.tokens_ = std::move(made->tokens);
  return session;
}

SessionError StorageSession::append(const SessionStorage::Write& write, Undo* undo) {
  const std::optional<std::vector<std::int32_t>> tokens = decode_tokens(write.body);
  if (!tokens) return SessionError::kDamaged;
  if (row_.position + static_cast<std::int64_t>(tokens->size()) != write.position) {
    return SessionError::kRolledBack;
  }
  *undo = {
      .position = row_.position, .first = first_, .digest = row_.digest, .size = tokens_.size()};
  tokens_.insert(tokens_.end(), tokens->begin(), tokens->end());
  row_.position = write.position;
  row_.digest = write.after;
  return SessionError::kNone;
}

SessionError StorageSession::apply(const SessionStorage::Write& write, Undo* undo) {
  if (removed_) return SessionError::kNotFound;
  if (write.before != row_.digest) return SessionError::kRolledBack;
  if (write.kind == Kind::kValues) return append(write, undo);

  std::optional<RowChange> change = decode_change(write.body);
  if (!change || write.kind == Kind::kCreate) return SessionError::kDamaged;
  const bool rewinds = write.kind == Kind::kRewind;
  const std::int64_t base = change->base.value_or(row_.base);
  const std::int64_t position = rewinds ? write.position : row_.position;
  if (base < row_.base || base > position || position > row_.position) {
    return SessionError::kDamaged;
  }
  *undo = {.row = row_,
           .position = row_.position,
           .first = first_,
           .digest = row_.digest,
           .size = tokens_.size()};
  change_row(row_, *std::move(change));
  if (write.kind == Kind::kEnd || rewinds) row_.call.clear();
  if (rewinds) {
    const auto kept = std::max<std::int64_t>(position - first_, 0);
    undo->cut.assign(tokens_.begin() + kept, tokens_.end());
    tokens_.resize(static_cast<std::size_t>(kept));
    first_ = std::min(first_, position);
  }
  row_.position = position;
  row_.digest = write.after;
  std::erase_if(row_.states, [&](const auto& state) { return state.position > position; });
  removed_ = write.kind == Kind::kRemove;
  return SessionError::kNone;
}

void StorageSession::take_back(Undo undo) {
  if (undo.row) row_ = *std::move(undo.row);
  row_.position = undo.position;
  row_.digest = undo.digest;
  first_ = undo.first;
  removed_ = undo.removed;
  if (undo.cut.empty()) {
    tokens_.resize(undo.size);
  } else {
    tokens_.insert(tokens_.end(), undo.cut.begin(), undo.cut.end());
  }
}

}  // namespace lintel
