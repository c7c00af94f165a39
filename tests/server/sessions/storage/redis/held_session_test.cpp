// SPDX-License-Identifier: Apache-2.0
// What a storage knows of a session that it holds, while answers are outstanding.
#include "server/sessions/storage/redis/held_session.h"

#include "server/sessions/storage/storage_records.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Kind = SessionStorage::Write::Kind;
using Sent = HeldSession::SentPtr;

struct Held {
  Held() { session.emplace(claim, row, 1, std::make_shared<ClaimLease>()); }

  Sent append(std::vector<std::int32_t> tokens, std::uint8_t digest) {
    const StorageBytes body = encode_tokens(tokens);
    SessionStorage::Write write{.kind = Kind::kValues, .claim = claim, .body = body};
    write.before = session->row().digest;
    write.after.bytes[0] = std::byte{digest};
    write.position = session->row().position + static_cast<std::int64_t>(tokens.size());
    Sent sent;
    REQUIRE(session->apply(write, &sent) == SessionError::kNone);
    return sent;
  }

  SessionStorage::Claim claim{.fence = 7};
  SessionStorage::Row row{.id = "s"};
  std::optional<HeldSession> session;
};

TEST_CASE("a lost renewal does not fail the writes sent after it") {
  Held held;
  const Sent renewal = held.session->renewal();
  const Sent append = held.append({1, 2, 3}, 1);
  CHECK(append->least < renewal->number);  // it may come first
  held.session->is_refused(*renewal, /*may_stand=*/true);
  CHECK(held.session->is_writing());
  CHECK(held.session->row().position == 3);
  held.session->stands(*append);
  CHECK_FALSE(held.session->is_writing());
  CHECK(held.append({4}, 2)->before.position == 3);
}

TEST_CASE(
    "a write that stands after all is where the next one begins, and none before it is healed") {
  Held held;
  const Sent first = held.append({1, 2, 3}, 1);
  held.session->is_refused(*first, /*may_stand=*/true);
  CHECK(held.session->row().position == 0);
  held.session->stands(*first);
  CHECK(held.session->row().position == 3);
  const Sent second = held.append({4, 5}, 2);
  // The tokens of the first are in the store alone: what has lost them cannot be healed.
  CHECK_FALSE(held.session->missing(*second, Digest()));
  CHECK(held.session->missing(*second, second->before.digest)->tokens.empty());
}

TEST_CASE("a store at the digest of a later write is not rolled back") {
  Held held;
  const Sent first = held.append({1, 2, 3}, 1);
  const Sent second = held.append({4, 5}, 2);
  CHECK_FALSE(held.session->missing(*first, second->after.digest));
  const auto missing = held.session->missing(*second, first->before.digest);
  REQUIRE(missing);
  CHECK(missing->tokens == std::vector{1, 2, 3});
}

}  // namespace
}  // namespace lintel::testing
