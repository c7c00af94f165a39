// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/storage_calls.h"

#include <random>

namespace lintel::testing {

Writes& Writes::add(SessionStorage::Write write, StorageBytes body) {
  bodies_.push_back(std::move(body));  // moved along, its bytes stay where they are
  write.body = bodies_.back();
  writes_.push_back(std::move(write));
  return *this;
}

std::vector<SessionError> Writes::commit_to(SessionStorage& storage) {
  std::promise<std::vector<SessionError>> result;
  storage.commit(writes_, [&](std::span<const SessionError> outcomes) {
    result.set_value({outcomes.begin(), outcomes.end()});
  });
  return result.get_future().get();
}

Client::Client(const std::string& id, const std::string& owner) {
  row.id = id;
  row.owner = owner;
  row.model = "digits";
  row.model_print = "f00d";
  row.numerics = "beef";
  row.durability = Durability::kInput;
  row.max_tokens = 1'000'000;
  row.created = row.used = std::chrono::system_clock::time_point(std::chrono::seconds(1000));
  row.expires = row.used + std::chrono::hours(24 * 365 * 100);
  row.digest = digest_of(std::as_bytes(std::span(id)));
}

SessionStorage::Write Client::write(Kind kind, const Digest& after) {
  SessionStorage::Write write{.kind = kind,
                              .id = row.id,
                              .claim = claim,
                              .before = row.digest,
                              .after = after,
                              .position = row.position};
  row.digest = after;
  return write;
}

void Client::create(Writes& to) {
  to.add(write(Kind::kCreate, row.digest), encode_new_session({row, tokens}));
}

void Client::begin(Writes& to, const std::string& call) {
  RowChange change;
  change.call = row.call = call;
  to.add(
      write(Kind::kBegin, extend(row.digest, DigestKind::kBegin, std::as_bytes(std::span(call)))),
      encode_change(change));
}

void Client::append(Writes& to, std::span<const std::int32_t> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  row.position += static_cast<std::int64_t>(more.size());
  to.add(write(Kind::kValues, extend(row.digest, DigestKind::kValues, std::as_bytes(more))),
         encode_tokens(more));
}

void Client::end(Writes& to, const RowChange& change) {
  row.call.clear();
  if (change.last_calls) row.last_calls = *change.last_calls;
  if (change.marks) row.marks = *change.marks;
  if (change.tail) row.tail = *change.tail;
  if (change.used) row.used = *change.used;
  if (change.expires) row.expires = *change.expires;
  to.add(write(Kind::kEnd, extend(row.digest, DigestKind::kEnd, {})), encode_change(change));
}

void Client::rewind(Writes& to, std::int64_t position) {
  row.call.clear();
  tokens.resize(static_cast<std::size_t>(position - row.base));
  row.position = position;
  std::erase_if(row.states, [&](const auto& state) { return state.position > position; });
  to.add(write(Kind::kRewind,
               extend(row.digest, DigestKind::kRewind, std::as_bytes(std::span(&position, 1)))),
         encode_change({}));
}

void Client::states(Writes& to, std::vector<SessionStorage::StateRef> states, std::int64_t base) {
  RowChange change;
  change.states = row.states = std::move(states);
  if (base > 0) {
    change.base = base;
    tokens.erase(tokens.begin(), tokens.begin() + (base - row.base));
    row.base = base;
  }
  to.add(write(Kind::kState, row.digest), encode_change(change));
}

void Client::release(Writes& to) { to.add(write(Kind::kRelease, row.digest), encode_change({})); }

void Client::remove(Writes& to) { to.add(write(Kind::kRemove, row.digest), {}); }

SessionError Client::open(SessionStorage& storage) {
  const SessionStorage::Opened opened = storage.open(row.id, row.owner, nullptr);
  if (opened.outcome == SessionError::kNone) claim = opened.claim;
  return opened.outcome;
}

std::string Client::difference(SessionStorage& storage) const {
  const SessionStorage::Opened opened = storage.open(row.id, row.owner, nullptr);
  if (opened.outcome != SessionError::kNone) return to_string(opened.outcome);
  Client other(*this);
  other.claim = opened.claim;
  other.row.digest = opened.row.digest;
  const SessionError released = commit_one(storage, [&](Writes& to) { other.release(to); });
  if (released != SessionError::kNone) return std::string("release: ") + to_string(released);
  if (opened.row.position != row.position) {
    return "position " + std::to_string(opened.row.position) + ", not " +
           std::to_string(row.position);
  }
  if (opened.row != row) return "its row";
  std::vector<std::int32_t> there(tokens.size());
  const SessionError read = storage.read_tokens(row.id, row.base, there);
  if (read != SessionError::kNone) return std::string("tokens: ") + to_string(read);
  return there == tokens ? "" : "its tokens";
}

std::vector<std::byte> state_of(std::uint64_t seed, std::size_t bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> state(bytes);
  for (std::byte& byte : state) byte = static_cast<std::byte>(random());
  return state;
}

}  // namespace lintel::testing
