// SPDX-License-Identifier: Apache-2.0
// Two servers with one storage: what one reads of a session while the other writes it.
#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// calls.process has the storage beside `other`, which knows that it is shared.
struct TwoServers : Calls {
  TwoServers() : Calls(Durability::kInput) { shared.share(); }

  FaultyStorage shared{storage};
  DurableProcess other{shared, transformer, clock, options};
};

TEST_CASE("a session that another server writes during a read is read again", "[durable]") {
  TwoServers calls;
  DurableProcess& other = calls.other;
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(5, 40, 3), id, named("one"));
  // Between the row and the tokens of the session: back, and on with other tokens.
  int writes = 0;
  calls.shared.before_read([&] {
    if (writes++ > 0) return;
    REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 4, std::nullopt).refusal);
    calls.process->finish(tokens_call(2, 60, 8), id, named("two"));
  });
  REQUIRE_FALSE(other.durable.load(id, kAlice).refusal);
  CHECK(writes >= 2);
  CHECK(other.store.get(id, kAlice)->digest == calls.process->store.get(id, kAlice)->digest);
  // One that never comes to rest is not damaged either.
  DurableProcess third(calls.shared, calls.transformer, calls.clock, calls.options);
  calls.shared.before_read([&] {
    REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 4, std::nullopt).refusal);
    ++writes;
    calls.process->finish(tokens_call(2, 50, static_cast<std::uint64_t>(writes)), id,
                          named("c" + std::to_string(writes)));
  });
  CHECK(third.durable.load(id, kAlice).refusal.error == SessionError::kStoreAway);
  calls.shared.before_read([] {});
  CHECK_FALSE(third.durable.load(id, kAlice).refusal);
}

TEST_CASE("an expired session of a shared storage is kNotFound, not kStoreAway", "[durable]") {
  TwoServers calls;
  DurableProcess& other = calls.other;
  SessionOptions brief{.max_tokens = 1000};
  brief.expire_after = std::chrono::seconds(10);
  const std::string id = calls.kept(brief);
  calls.process->finish(tokens_call(5, 4, 3), id, named("one"));
  calls.clock.advance(std::chrono::seconds(20));
  CHECK(other.durable.load(id, kAlice).refusal.error == SessionError::kNotFound);
}

TEST_CASE("a new call on an unchanged session asks a shared storage once", "[durable]") {
  Calls calls(GENERATE(Durability::kCall, Durability::kInput, Durability::kToken));
  calls.dying->share();
  const std::string id = calls.kept();
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(tokens_call(2, 6, static_cast<std::uint64_t>(i)));
    const int before = calls.dying->asked();
    const auto call = calls.process->call(requests.back(), id, named("call " + std::to_string(i)));
    REQUIRE_FALSE(call.refusal);
    CHECK(calls.dying->asked() - before == 1);
    CHECK(calls.storage.open(id, kAlice, nullptr).outcome == SessionError::kHeld);
    calls.process->run();
    CHECK(call.sink->recorded == undisturbed(calls.transformer, requests)->recorded);
  }
  CHECK(calls.storage.open(id, kAlice, nullptr).outcome == SessionError::kNone);  // it was released
}

TEST_CASE("a call that is refused leaves a shared storage's session free", "[durable]") {
  Calls calls(Durability::kInput);
  const std::string id = calls.kept();
  const auto first = calls.process->call(tokens_call(5, 40, 3), id, named("a"));
  calls.process->durable.write();
  for (int i = 0; i < 4; ++i) calls.process->model->scheduler->run_one_step();
  calls.begin();
  calls.dying->share();
  CHECK(calls.process->call(tokens_call(1, 4, 9), id, named("b")).refusal.error ==
        SessionError::kCallInterrupted);
  {
    // Nor does one that is dropped before it begins.
    calls.process->finish(tokens_call(5, 40, 3), id, named("a"));
    SessionLease lease = std::move(calls.process->durable.load_and_lease(id, kAlice).lease);
    REQUIRE(lease);
    PersistentSessions::OpenedCall opened;
    REQUIRE_FALSE(
        calls.process->durable.open_call(lease, calls.process->model, named("c"), opened));
    CHECK(calls.storage.open(id, kAlice, nullptr).outcome == SessionError::kHeld);
  }
  CHECK(calls.storage.open(id, kAlice, nullptr).outcome == SessionError::kNone);
}

TEST_CASE("the answer to a release may come when its process is gone", "[durable]") {
  Calls calls(Durability::kInput);
  calls.dying->share();
  const std::string id = calls.kept();
  {
    SessionLease lease = std::move(calls.process->durable.load_and_lease(id, kAlice).lease);
    PersistentSessions::OpenedCall opened;
    REQUIRE_FALSE(
        calls.process->durable.open_call(lease, calls.process->model, named("a"), opened));
    calls.dying->hold_commits(true);
  }
  REQUIRE(calls.dying->held() == 1);
  calls.process.reset();
  calls.dying->refuse_commits(SessionError::kStoreAway);
  calls.dying->hold_commits(false);
  CHECK(calls.dying->held() == 0);
}

TEST_CASE("a copy of a session that another server continued is stale, and is read again",
          "[durable]") {
  TwoServers calls;
  DurableProcess& other = calls.other;
  const std::string id = calls.kept();
  other.finish(tokens_call(5, 8, 3), id, named("one"));
  calls.process->store.remove(id, kAlice);  // a copy of what was there before
  calls.process->finish(tokens_call(2, 8, 4), id, named("two"));
  const std::int64_t before = calls.storage.find(id, kAlice).row.position;
  const auto sink = other.finish(tokens_call(1, 4, 5), id, named("three"));
  CHECK(sink->tokens(0).size() == 4);
  CHECK(calls.storage.find(id, kAlice).row.position == before + 1 + 4);
  CHECK(calls.storage.open(id, kAlice, nullptr).outcome == SessionError::kNone);
}

TEST_CASE("a rewind of a stale copy rewinds the other server's tokens", "[durable]") {
  TwoServers calls;
  DurableProcess& other = calls.other;
  const std::string id = calls.kept();
  other.finish(tokens_call(5, 8, 3), id, named("one"));
  SessionLease lease = std::move(other.durable.load_and_lease(id, kAlice).lease);
  REQUIRE(lease);
  calls.process->store.remove(id, kAlice);
  calls.process->finish(tokens_call(2, 8, 4), id, named("two"));
  CHECK(other.durable.rewind(lease, 6).error == SessionError::kStale);
  lease = SessionLease();
  const auto rewound = other.durable.rewind(id, kAlice, 14, std::nullopt);
  REQUIRE_FALSE(rewound.refusal);
  DurableProcess third(calls.shared, calls.transformer, calls.clock, calls.options);
  REQUIRE_FALSE(third.durable.load(id, kAlice).refusal);
  CHECK(third.store.get(id, kAlice)->digest == rewound.info.digest);
}

}  // namespace
}  // namespace lintel::testing
