// SPDX-License-Identifier: Apache-2.0
// What every kind of storage has to do.
#include <functional>
#include <memory>
#include <numeric>

#include "tests/server/sessions/storage/any_storage.h"
#include "tests/server/sessions/storage/storage_calls.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;

template <typename Call>
Outcome commit(AnyStorage& storage, Call&& call) {
  return commit_one(*storage, std::forward<Call>(call));
}

std::vector<std::int32_t> counted(std::int32_t from, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

TEST_CASE("a session of a storage is as written") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a"), wide("wide");
  CHECK(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  CHECK(a.difference(*storage) == "");

  REQUIRE(a.open(*storage) == Outcome::kNone);
  Writes call;
  a.begin(call, "sample, please");
  a.append(call, counted(0, 100));
  a.append(call, counted(200, 2000));
  CHECK(call.commit_to(*storage) == std::vector(3, Outcome::kNone));
  // A release leaves the call open.
  CHECK(commit(storage, [&](Writes& to) { a.release(to); }) == Outcome::kNone);
  storage.reopen();
  CHECK(a.difference(*storage) == "");

  REQUIRE(a.open(*storage) == Outcome::kNone);
  RowChange change;
  change.last_calls = "calls";
  change.marks = "marks";
  change.tail = "tail";
  change.used = a.row.used + std::chrono::seconds(5);
  change.expires = a.row.expires + std::chrono::seconds(5);
  CHECK(commit(storage, [&](Writes& to) { a.end(to, change); }) == Outcome::kNone);
  CHECK(a.difference(*storage) == "");
  storage.reopen();
  CHECK(a.difference(*storage) == "");

  wide.tokens = {1, 70000, 3, 2'000'000'000};
  wide.row.position = 4;
  CHECK(commit(storage, [&](Writes& to) { wide.create(to); }) == Outcome::kNone);
  storage.reopen();
  CHECK(wide.difference(*storage) == "");
}

TEST_CASE("another owner's session is not found, a held one is kHeld, a claim is for one call",
          "[threat-9][threat-13]") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a", "alice"), stranger("a", "bob");
  REQUIRE(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  CHECK(stranger.open(*storage) == Outcome::kNotFound);
  CHECK(Client("b").open(*storage) == Outcome::kNotFound);
  // The session is not held.
  CHECK(commit(storage, [&](Writes& to) { Client(a).begin(to, "x"); }) == Outcome::kFenced);
  REQUIRE(a.open(*storage) == Outcome::kNone);
  CHECK(Client(a).open(*storage) == Outcome::kHeld);
  // Looking at it takes no claim, and asks for none.
  CHECK(storage->find("a", "alice").row == a.row);
  CHECK(storage->find("a", "bob").outcome == Outcome::kNotFound);
  CHECK(storage->find("b", "alice").outcome == Outcome::kNotFound);
  const Client early(a);
  REQUIRE(commit(storage, [&](Writes& to) { a.begin(to, "x"); }) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.end(to); }) == Outcome::kNone);
  // The claim went with the end, though the digest would be right.
  CHECK(commit(storage, [&](Writes& to) { Client(a).begin(to, "y"); }) == Outcome::kFenced);
  const std::uint64_t fence = a.claim.fence;
  REQUIRE(a.open(*storage) == Outcome::kNone);
  CHECK(a.claim.fence > fence);
  CHECK(commit(storage, [&](Writes& to) { Client(early).begin(to, "z"); }) == Outcome::kFenced);
}

TEST_CASE("a write that stands is done again, one before what stands is rolled back") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a");
  REQUIRE(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  // Its answer was lost.
  CHECK(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  REQUIRE(a.open(*storage) == Outcome::kNone);
  Client twin(a), late(a);
  REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(1, 3)); }) == Outcome::kNone);
  CHECK(commit(storage, [&](Writes& to) { twin.append(to, counted(1, 3)); }) == Outcome::kNone);
  CHECK(commit(storage, [&](Writes& to) { late.append(to, counted(5, 3)); }) ==
        Outcome::kRolledBack);
  late = twin;
  late.row.digest = digest_of({});
  CHECK(commit(storage, [&](Writes& to) { late.begin(to, "x"); }) == Outcome::kRolledBack);
  // One that says it is elsewhere than its tokens end.
  Writes wrong;
  wrong.add({.kind = Kind::kValues,
             .id = "a",
             .claim = a.claim,
             .before = a.row.digest,
             .after = digest_of({}),
             .position = 17},
            encode_tokens(counted(0, 3)));
  CHECK(wrong.commit_to(*storage).front() == Outcome::kRolledBack);
  Writes nonsense;
  nonsense.add({.kind = Kind::kValues,
                .id = "a",
                .claim = a.claim,
                .before = a.row.digest,
                .after = digest_of({}),
                .position = 4},
               StorageBytes{std::byte{3}});
  CHECK(nonsense.commit_to(*storage).front() == Outcome::kDamaged);
  REQUIRE(commit(storage, [&](Writes& to) { a.end(to); }) == Outcome::kNone);
  CHECK(a.difference(*storage) == "");
}

TEST_CASE("each write of a commit is done or refused alone, a session's in their order") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a"), b("b"), ghost("ghost");
  Writes both;
  a.create(both);
  b.create(both);
  REQUIRE(both.commit_to(*storage) == std::vector(2, Outcome::kNone));
  REQUIRE(a.open(*storage) == Outcome::kNone);
  REQUIRE(b.open(*storage) == Outcome::kNone);
  Client lost(b);
  Writes many;
  a.append(many, counted(0, 10));
  lost.claim.nonce[0] ^= std::byte{1};
  lost.append(many, counted(9, 9));
  ghost.append(many, counted(0, 1));
  b.append(many, counted(0, 2));
  a.append(many, counted(50, 10));
  a.end(many);
  CHECK(many.commit_to(*storage) == std::vector{Outcome::kNone, Outcome::kFenced,
                                                Outcome::kNotFound, Outcome::kNone, Outcome::kNone,
                                                Outcome::kNone});
  REQUIRE(commit(storage, [&](Writes& to) { b.release(to); }) == Outcome::kNone);
  CHECK(a.difference(*storage) == "");
  CHECK(b.difference(*storage) == "");
}

TEST_CASE("a rewind takes back tokens, the call and the states above it") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a");
  REQUIRE(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  REQUIRE(a.open(*storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(0, 3000)); }) == Outcome::kNone);
  std::vector<SessionStorage::StateRef> states(3);
  for (int i = 0; i < 3; ++i) {
    states[i].position = 1000 * (i + 1);
    REQUIRE(storage->put_state("a", state_of(i), &states[i]) == Outcome::kNone);
  }
  REQUIRE(commit(storage, [&](Writes& to) { a.states(to, states); }) == Outcome::kNone);
  for (const std::int64_t to_position : {2500, 2000, 1500, 3}) {
    CAPTURE(to_position);
    REQUIRE(commit(storage, [&](Writes& to) { a.begin(to, "x"); }) == Outcome::kNone);
    REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(7, 2)); }) == Outcome::kNone);
    REQUIRE(commit(storage, [&](Writes& to) { a.rewind(to, to_position); }) == Outcome::kNone);
    REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(70000, 5)); }) ==
            Outcome::kNone);
    REQUIRE(commit(storage, [&](Writes& to) { a.release(to); }) == Outcome::kNone);
    CHECK(a.difference(*storage) == "");
    storage.reopen();
    CHECK(a.difference(*storage) == "");
    REQUIRE(a.open(*storage) == Outcome::kNone);
  }
  CHECK(a.row.states.empty());
  std::vector<std::byte> state(5000);
  for (const SessionStorage::StateRef& gone : states) {
    CHECK(storage->read_state(gone, state) == Outcome::kDamaged);
  }
  // Nowhere to go.
  const Client here(a);
  CHECK(commit(storage, [&](Writes& to) {
          SessionStorage::Write write{.kind = Kind::kRewind,
                                      .id = "a",
                                      .claim = a.claim,
                                      .before = a.row.digest,
                                      .after = digest_of({}),
                                      .position = a.row.position + 1};
          to.add(write, {});
        }) == Outcome::kDamaged);
}

TEST_CASE("a state is there while something names it") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a"), fork("fork");
  std::vector<std::byte> state(5000);
  REQUIRE(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  SessionStorage::StateRef ref, unnamed;
  CHECK(storage->put_state("a", state_of(1), &ref) == Outcome::kFenced);  // it is not held
  REQUIRE(a.open(*storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(0, 10)); }) == Outcome::kNone);
  ref.position = 10;
  REQUIRE(storage->put_state("a", state_of(1), &ref) == Outcome::kNone);
  REQUIRE(storage->put_state("a", state_of(2), &unnamed) == Outcome::kNone);
  CHECK(storage->read_state(unnamed, state) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.states(to, {ref}); }) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.release(to); }) == Outcome::kNone);
  CHECK(storage->read_state(unnamed, state) == Outcome::kDamaged);
  storage.reopen();
  REQUIRE(storage->read_state(ref, state) == Outcome::kNone);
  CHECK(state == state_of(1));

  // A copy of the session shares the state.
  fork.row.position = 10;
  fork.tokens = a.tokens;
  fork.row.states = {ref};
  REQUIRE(commit(storage, [&](Writes& to) { fork.create(to); }) == Outcome::kNone);
  REQUIRE(a.open(*storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.remove(to); }) == Outcome::kNone);
  CHECK(a.open(*storage) == Outcome::kNotFound);
  CHECK(storage->read_state(ref, state) == Outcome::kNone);
  storage.reopen();
  CHECK(storage->read_state(ref, state) == Outcome::kNone);
  CHECK(state == state_of(1));
  CHECK(fork.difference(*storage) == "");
  // The digest identifies copies in memory that are current.
  CHECK(storage->open("fork", "alice", &fork.row.digest).row.states.empty());
  storage.reopen();
  if (fork.open(*storage) != Outcome::kHeld) {  // in memory the claim lives on
    REQUIRE(commit(storage, [&](Writes& to) { fork.remove(to); }) == Outcome::kNone);
    CHECK(storage->read_state(ref, state) == Outcome::kDamaged);
  }
}

TEST_CASE("a history may begin at a state") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client a("a");
  REQUIRE(commit(storage, [&](Writes& to) { a.create(to); }) == Outcome::kNone);
  REQUIRE(a.open(*storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(0, 5000)); }) == Outcome::kNone);
  SessionStorage::StateRef ref{.position = 3000, .where = 0, .bytes = 0, .checksum = {}};
  REQUIRE(storage->put_state("a", state_of(3), &ref) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.states(to, {ref}, 3000); }) == Outcome::kNone);
  std::vector<std::int32_t> tokens(1);
  CHECK(storage->read_tokens("a", 2999, tokens) == Outcome::kNotFound);
  REQUIRE(commit(storage, [&](Writes& to) { a.append(to, counted(0, 5)); }) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { a.release(to); }) == Outcome::kNone);
  storage.reopen();
  CHECK(a.difference(*storage) == "");
  Client copy("copy");
  copy.row.base = 3001;
  copy.row.position = 3003;
  copy.tokens = {7, 8};
  REQUIRE(commit(storage, [&](Writes& to) { copy.create(to); }) == Outcome::kNone);
  REQUIRE(copy.open(*storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { copy.append(to, counted(0, 1024)); }) ==
          Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { copy.release(to); }) == Outcome::kNone);
  REQUIRE(copy.open(*storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { copy.append(to, counted(0, 1)); }) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { copy.release(to); }) == Outcome::kNone);
  storage.reopen();
  CHECK(copy.difference(*storage) == "");
}

TEST_CASE("sessions are listed by id, of one model, of one owner or of all") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  const auto ids = [&](const std::string& model, const std::string& after, std::size_t limit,
                       const std::optional<std::string>& owner) {
    std::string all;
    for (const auto& row : storage->list(model, after, limit, owner)) all += row.id;
    return all;
  };
  for (const char* const id : {"e", "b", "d", "a", "c"}) {
    Client session(id, id[0] < 'c' ? "alice" : "bob");
    if (*id == 'd') session.row.model = "other";
    REQUIRE(commit(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
    REQUIRE(session.open(*storage) == Outcome::kNone);
    // Some in rows, some in the journal.
    if (*id != 'b') {
      REQUIRE(commit(storage, [&](Writes& to) { session.release(to); }) == Outcome::kNone);
    }
  }
  CHECK(ids("digits", "", 10, {}) == "abce");
  CHECK(ids("digits", "", 3, {}) == "abc");
  CHECK(ids("digits", "a", 2, {}) == "bc");
  CHECK(ids("digits", "", 10, "alice") == "ab");
  CHECK(ids("other", "", 10, "bob") == "d");
  CHECK(ids("digits", "zz", 10, {}) == "");
  CHECK(ids("", "", 10, {}) == "abcde");
  CHECK(ids("", "b", 10, "bob") == "cde");
  storage.reopen();
  CHECK(ids("digits", "", 10, {}) == "abce");
}

TEST_CASE("sessions are listed by how their ids begin") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  for (const char* const id : {"chat-2", "chau", "a", "chat-1", "chat-3", "cff", "d"}) {
    Client session(id);
    REQUIRE(commit(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  }
  const auto ids = [&](const std::string& prefix, const std::string& after, std::size_t limit) {
    std::string all;
    for (const auto& row : storage->list_prefix(prefix, after, limit)) all += row.id + " ";
    return all;
  };
  CHECK(ids("chat-", "chat-", 10) == "chat-1 chat-2 chat-3 ");
  CHECK(ids("chat-", "chat-", 2) == "chat-1 chat-2 ");
  CHECK(ids("chat-", "chat-2", 2) == "chat-3 ");
  CHECK(ids("chat-", "chat-3", 2).empty());
  CHECK(ids("c", "c", 10) == "cff chat-1 chat-2 chat-3 chau ");
}

TEST_CASE("a sweep removes expired sessions that are not held") {
  AnyStorage storage(GENERATE(range(0, AnyStorage::sorts())));
  Client early("early"), held("held"), late("late");
  const auto now = storage.clock.wall_time();
  early.row.expires = held.row.expires = now + std::chrono::seconds(10);
  late.row.expires = now + std::chrono::seconds(100);
  for (Client* const session : {&early, &held, &late}) {
    REQUIRE(commit(storage, [&](Writes& to) { session->create(to); }) == Outcome::kNone);
  }
  REQUIRE(held.open(*storage) == Outcome::kNone);
  CHECK(storage->sweep(10) == 0);
  storage.clock.advance(std::chrono::seconds(10));
  CHECK(storage->sweep(0) == 0);
  CHECK(storage->sweep(10) == 1);
  CHECK(early.open(*storage) == Outcome::kNotFound);
  REQUIRE(commit(storage, [&](Writes& to) { held.release(to); }) == Outcome::kNone);
  CHECK(storage->sweep(10) == 1);
  storage.clock.advance(std::chrono::seconds(1000));
  storage.reopen();
  CHECK(storage->sweep(10) == 1);
  CHECK(storage->list("digits", "", 10, {}).empty());
}

TEST_CASE("each storage agrees with a reference model after random operations") {
  const int sort = GENERATE(range(0, AnyStorage::sorts()));
  const std::uint64_t seed = GENERATE(1, 2, 3, 4);
  if (!runs_every_case() && seed != 1 + case_seed() % 4) return;  // one of them, drawn
  CAPTURE(sort, seed);
  AnyStorage storage(sort, 20'000);  // folded again and again
  Scenario scenario(seed);
  for (int step = 0; step < 200; ++step) {
    CAPTURE(step);
    REQUIRE(scenario.step(*storage) == Outcome::kNone);
    if (step % 20 != 19) continue;
    if (storage.outlives_its_end() && step % 40 == 39) {
      storage.reopen();
      scenario.closed();
    } else {
      REQUIRE(scenario.release(*storage) == Outcome::kNone);
    }
    REQUIRE(difference(*storage, scenario.sessions(), false) == "");
  }
}

}  // namespace
}  // namespace lintel::testing
