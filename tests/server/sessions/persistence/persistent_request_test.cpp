// SPDX-License-Identifier: Apache-2.0
// Calls on sessions that outlive the process.
#include "server/sessions/persistence/persistent_request.h"

#include <optional>

#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("a call's end reaches the client once it is durable, and the session is free then",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  bool was_free = false;
  const auto sink = std::make_shared<RecordingSink>();
  sink->when_finished = [&] {
    was_free = !calls.process->store.get(id, kAlice)->busy;
    CHECK(calls.stored(id) == 15);
  };
  const auto started = calls.process->call(tokens_call(5, 10, 3), id, named("a"), sink);
  REQUIRE_FALSE(started.refusal);
  calls.dying->hold_commits(true);
  while (calls.process->model->scheduler->run_one_step()) calls.process->durable.write();
  calls.process->durable.write();
  CHECK(sink->finishes == 0);
  CHECK(calls.process->store.get(id, kAlice)->busy);
  CHECK(calls.process->store.lease(id, kAlice).refusal.error == SessionError::kBusy);
  CHECK(sink->recorded[0].size() == (level == Durability::kToken ? 0 : 10));
  for (int i = 0; i < 3; ++i) {  // bytes that were held back let more be written
    calls.dying->hold_commits(false);
    calls.process->durable.write();
  }
  CHECK(sink->finishes == 1);
  CHECK(was_free);
  CHECK(sink->recorded == undisturbed(calls.transformer, {tokens_call(5, 10, 3)})->recorded);
  CHECK(sink->result().digest == calls.process->store.get(id, kAlice)->digest);
}

TEST_CASE("tokens are delivered at once, once the call is durable, or once they are, by level",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  calls.dying->hold_commits(true);
  const auto started = calls.process->call(tokens_call(5, 30, 3), id, named("a"));
  Scheduler& scheduler = *calls.process->model->scheduler;
  for (int i = 0; i < 6; ++i) scheduler.run_one_step();
  const auto seen = [&] { return started.sink->recorded[0].size(); };
  const std::size_t drawn =
      static_cast<std::size_t>(calls.process->store.get(id, kAlice)->num_tokens) - 5;
  CHECK(drawn >= 5);
  CHECK(seen() == (level == Durability::kCall ? drawn : 0));
  calls.dying->hold_commits(false);  // the beginning
  CHECK(seen() == (level == Durability::kToken ? 0 : drawn));
  calls.process->durable.write();
  CHECK(seen() == drawn);
  // INPUT: they were so many that they are written; CALL: nothing before the end.
  const std::int64_t stored = calls.stored(id);
  CHECK(stored == (level == Durability::kCall ? 0
                   : level == Durability::kToken || drawn + 5 >= 7
                       ? static_cast<std::int64_t>(drawn) + 5
                       : 0));
  calls.process->run();
  CHECK(started.sink->recorded ==
        undisturbed(calls.transformer, {tokens_call(5, 30, 3)})->recorded);
}

TEST_CASE(
    "the beginning of a TOKEN call is written with its first tokens, or alone after the interval",
    "[durable]") {
  Calls calls(Durability::kToken);
  const std::string id = calls.kept();
  const bool has_tokens = GENERATE(true, false);
  const std::uint64_t before = calls.storage.health().writes;
  calls.process->call(tokens_call(5, 30, 3), id, named("a"));
  calls.process->durable.write();
  CHECK(calls.storage.health().writes == before);
  if (has_tokens) {
    calls.process->model->scheduler->run_one_step();
  } else {
    calls.clock.advance(calls.options.commit_interval);
  }
  calls.process->durable.write();
  CHECK(calls.storage.health().writes == before + (has_tokens ? 2 : 1));
  CHECK_FALSE(calls.storage.find(id, kAlice).row.call.empty());
  CHECK((calls.stored(id) > 0) == has_tokens);
  calls.begin();  // either way the call is there, and resumes
  CHECK(calls.process->finish(tokens_call(5, 30, 3), id, named("a"))->recorded ==
        undisturbed(calls.transformer, {tokens_call(5, 30, 3)})->recorded);
}

TEST_CASE("an INPUT call's tokens are written once they are old enough", "[durable]") {
  Calls calls(Durability::kInput);
  calls.options.lazy_tokens = 1000;
  calls.begin();
  const std::string id = calls.kept();
  calls.process->call(tokens_call(5, 30, 3), id, named("a"));
  for (int i = 0; i < 4; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->durable.write();
  CHECK(calls.stored(id) == 0);
  calls.clock.advance(std::chrono::seconds(1));
  calls.process->durable.write();
  CHECK(calls.stored(id) == calls.process->store.get(id, kAlice)->num_tokens);
  calls.process->run();
}

TEST_CASE("a CALL call that is longer than its history is written before its end", "[durable]") {
  Calls calls(Durability::kCall);
  const SessionOptions session{.max_tokens = 6000, .history_tokens = 1024};
  const std::string id = calls.kept(session);
  const auto call = calls.process->call(tokens_call(5, 5000, 3), id, named("a"));
  const auto run_to = [&](std::int64_t position) {
    while (calls.process->store.get(id, kAlice)->num_tokens < position) {
      calls.process->model->scheduler->run_one_step();
      calls.process->durable.write();
    }
  };
  run_to(500);
  CHECK(calls.stored(id) == 0);
  run_to(3000);
  CHECK(calls.stored(id) > 2000);
  calls.process->run();
  REQUIRE(call.sink->outcome == RequestOutcome::kDone);
  const auto twin =
      undisturbed(calls.transformer, {tokens_call(5, 5000, 3), tokens_call(1, 40, 4)}, session);
  CHECK(calls.process->finish(tokens_call(1, 40, 4), id, named("b"))->tokens() == twin->tokens());
  CHECK(calls.stored(id) == 5046);
}

TEST_CASE("at a call's end the state is stored where many tokens came, or memory is short",
          "[durable]") {
  Calls calls(Durability::kInput);
  calls.options.park.tokens = 80;
  calls.begin();
  const std::string id = calls.kept();
  const auto states = [&] { return calls.storage.find(id, kAlice).row.states; };
  calls.process->finish(tokens_call(5, 60, 3), id, named("a"));
  CHECK(states().empty());
  calls.process->finish(tokens_call(5, 20, 3), id, named("b"));
  REQUIRE(states().size() == 1);
  CHECK(states()[0].position == 90);
  calls.process->finish(tokens_call(1, 20, 3), id, named("c"));
  CHECK(states().size() == 1);
  {
    // Another's session takes all but a tenth of what there is.
    const auto others = calls.process->store.admit_bytes("bob", (1u << 30) / 10 * 9).reservation;
    calls.process->finish(tokens_call(1, 4, 3), id, named("d"));
    REQUIRE(states().size() == 2);
    CHECK(states()[1].position == 116);
    calls.process->finish(tokens_call(1, 18, 3), id, named("e"));
    CHECK(states().back().position == 116);
  }
  calls.begin();
  CHECK_FALSE(calls.process->durable.load(id, kAlice).refusal);
  CHECK(calls.process->durable.stats().loaded_from_slot == 1);
}

TEST_CASE("a stream that holds too many tokens back pauses, and resumes", "[durable]") {
  Calls calls(Durability::kToken);
  const std::string id = calls.kept({.max_tokens = 20'000});
  calls.dying->hold_commits(true);
  const auto started = calls.process->call(tokens_call(5, 6000, 3), id, named("a"));
  while (calls.process->model->scheduler->run_one_step()) {
  }
  CHECK(started.sink->recorded[0].empty());
  CHECK(calls.process->store.get(id, kAlice)->num_tokens <
        static_cast<std::int64_t>(PersistentRequest::kMostHeld) + 100);
  calls.dying->hold_commits(false);
  calls.process->run();
  calls.process->run();
  CHECK(started.sink->finishes == 1);
  CHECK(started.sink->recorded[0].size() == 6000);
  // A reader that is slow makes it pause as well.
  struct SlowSink final : RecordingSink {
    bool has_room() const override { return room > 0; }
  };
  const auto slow = std::make_shared<SlowSink>();
  slow->room = 10;
  const auto second = calls.process->call(tokens_call(1, 600, 3), id, named("b"), slow);
  calls.process->run();
  CHECK(slow->finishes == 0);
  CHECK(slow->recorded[0].size() < 60);
  slow->room = 10'000;
  calls.process->model->scheduler->resume(second.handle);
  calls.process->run();
  CHECK(slow->finishes == 1);
}

TEST_CASE("failing store: the call ends, its session is as stored, other sessions continue",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const SessionError outcome =
      GENERATE(SessionError::kStoreFull, SessionError::kStoreAway, SessionError::kStoreBroken);
  CAPTURE(static_cast<int>(level), to_string(outcome));
  Calls calls(level);
  const std::string id = calls.kept();
  const std::string other = calls.process->create({.max_tokens = 1000});
  calls.process->finish(tokens_call(4, 6, 1), id, named("a"));
  const auto started = calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 12; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  const std::int64_t stored = calls.stored(id);
  calls.dying->refuse_commits(outcome);
  for (int i = 0; i < 5; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  if (outcome != SessionError::kStoreBroken) {  // it may find room yet
    CHECK(started.sink->finishes == 0);
    calls.clock.advance(std::chrono::seconds(2));
  }
  calls.process->run();
  calls.clock.advance(std::chrono::seconds(2));
  for (int i = 0; i < 4; ++i) calls.process->run();
  REQUIRE(started.sink->finishes == 1);
  CHECK(started.sink->outcome->error() ==
        (outcome == SessionError::kStoreFull     ? SessionError::kStoreFull
         : outcome == SessionError::kStoreBroken ? SessionError::kStoreBroken
                                                 : SessionError::kStoreAway));
  CHECK_FALSE(started.sink->results[0]);
  CHECK_FALSE(calls.process->store.get(id, kAlice));
  CHECK(calls.stored(id) == stored);
  if (level == Durability::kToken) {
    CHECK(static_cast<std::int64_t>(started.sink->recorded[0].size()) == stored - 15);
  }
  CHECK(calls.process->generate(tokens_call(5, 40, 3), other)->recorded[0].size() == 40);

  calls.dying->refuse_commits(std::nullopt);
  if (outcome == SessionError::kStoreBroken) calls.begin();  // it needs a restart
  calls.process->durable.sweep();
  const auto again = calls.process->finish(tokens_call(5, 40, 3), id, named("b"));
  CHECK(again->recorded ==
        undisturbed(calls.transformer, {tokens_call(4, 6, 1), tokens_call(5, 40, 3)})->recorded);
}

TEST_CASE("a call whose output is not finite leaves the session as it is stored", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  // The embedding of 49 overflows the first layer norm.
  const auto poisonous = changed_model(TinyModel::kTokens, {}, [](ModelWeights& weights) {
    for (float& x : weights.value_embedding.row(49)) x = 3e38f;
  });
  Calls calls(level, poisonous);
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(4, 6, 1), id, named("a"));
  GenerationRequest bad = tokens_call(5, 40, 3);
  bad.given = {{22, 49}};
  const auto fails = [&] {
    const auto call = calls.process->call(bad, id, named("b"));
    REQUIRE_FALSE(call.refusal);
    calls.process->run();
    CHECK(call.sink->outcome == RequestOutcome::kNonFinite);
  };
  fails();
  CHECK_FALSE(calls.process->store.get(id, kAlice));
  const SessionInfo info = *calls.process->durable.find(id, kAlice);
  CHECK(info.interrupted.has_value() == (level != Durability::kCall));
  CHECK(info.num_tokens >= 10);
  fails();  // whenever it is repeated
  IdempotencyKey gives_up = named("c", 2);
  gives_up.expected_position = 10;
  const auto next = calls.process->finish(tokens_call(2, 9, 5), id, gives_up);
  CHECK(next->recorded ==
        undisturbed(poisonous, {tokens_call(4, 6, 1), tokens_call(2, 9, 5)})->recorded);
}

TEST_CASE("a store that is full for a moment delays a call only", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  const auto started = calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 6; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  calls.dying->refuse_commits(SessionError::kStoreFull);
  calls.process->run();
  calls.clock.advance(std::chrono::milliseconds(900));
  calls.process->run();
  CHECK(started.sink->finishes == 0);
  calls.dying->refuse_commits(std::nullopt);
  calls.process->run();
  REQUIRE(started.sink->finishes == 1);
  CHECK(started.sink->outcome == RequestOutcome::kDone);
  CHECK(started.sink->recorded ==
        undisturbed(calls.transformer, {tokens_call(5, 40, 3)})->recorded);
}

TEST_CASE("a call that cannot begin leaves nothing in the store", "[durable]") {
  Calls calls(Durability::kInput);
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(4, 6, 1), id, named("a"));
  SECTION("the store is full") {
    calls.dying->refuse_commits(SessionError::kStoreFull);
    const auto started = calls.process->call(tokens_call(5, 4, 3), id, named("b"));
    calls.process->run();
    calls.process->run();
    CHECK(started.sink->outcome->error() == SessionError::kStoreFull);
    CHECK(started.sink->recorded[0].empty());
    calls.dying->refuse_commits(std::nullopt);
    calls.process->durable.sweep();
  }
  SECTION("it is prepared, and not run") {
    const bool is_repeat = GENERATE(false, true);
    auto leased = calls.process->durable.load_and_lease(id, kAlice);
    PersistentSessions::OpenedCall opened;
    REQUIRE_FALSE(calls.process->durable.open_call(leased.lease, calls.process->model,
                                                   named(is_repeat ? "a" : "b"), opened));
    if (GENERATE(false, true)) {
      GenerationRequest request = tokens_call(5, 4, 3);
      REQUIRE_FALSE(opened.call->begin(leased.lease, request, 5));
    }
    leased.lease = SessionLease();
    calls.process->durable.write();
  }
  CHECK_FALSE(calls.process->durable.find(id, kAlice)->interrupted);
  CHECK(calls.stored(id) == 10);
  const auto next = calls.process->finish(tokens_call(5, 4, 3), id, named("b"));
  CHECK(next->recorded ==
        undisturbed(calls.transformer, {tokens_call(4, 6, 1), tokens_call(5, 4, 3)})->recorded);
}

}  // namespace
}  // namespace lintel::testing
