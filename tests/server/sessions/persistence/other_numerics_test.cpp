// SPDX-License-Identifier: Apache-2.0
// Durable sessions that continue on a machine of other bits.
#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("a call whose tokens would differ is not drawn again", "[durable]") {
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 12; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->durable.write();
  calls.begin();
  calls.process->model->set_numerics({.hex = "4567", .text = "of another machine"});
  const auto again = calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  if (level == Durability::kToken) {  // all tokens that a client has seen are stored
    CHECK_FALSE(again.refusal);
    calls.process->run();
  } else {
    CHECK(again.refusal.error == SessionError::kNumericsChanged);
    CHECK(again.refusal.highest == calls.stored(id));
    IdempotencyKey expects = named("c");
    expects.expected_position = calls.stored(id);
    calls.process->finish(tokens_call(1, 4, 9), id, expects);
  }
}

// The process ends, and another begins on a machine of other bits.
void move_machine(Calls& calls, const std::string& hex) {
  calls.begin();
  calls.process->model->set_numerics({.hex = hex, .text = "of another machine"});
}

TEST_CASE(
    "a session that another machine computed continues, and reports its first token from here",
    "[durable]") {
  Calls calls(GENERATE(Durability::kCall, Durability::kInput, Durability::kToken));
  const std::string id = calls.kept();
  CHECK_FALSE(
      calls.process->finish(tokens_call(5, 10, 3), id, named("a"))->result().numerics_changed);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 0);
  calls.begin();
  CHECK_FALSE(
      calls.process->finish(tokens_call(1, 4, 3), id, named("b"))->result().numerics_changed);

  move_machine(calls, "4567");
  CHECK(calls.process->finish(tokens_call(1, 4, 3), id, named("c"))->result().numerics_changed);
  CHECK(calls.process->durable.stats().numerics_changed == 1);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 20);
  CHECK_FALSE(
      calls.process->finish(tokens_call(1, 4, 3), id, named("d"))->result().numerics_changed);
  move_machine(calls, "4567");  // the same one once more
  CHECK_FALSE(
      calls.process->finish(tokens_call(1, 4, 3), id, named("e"))->result().numerics_changed);
  CHECK(calls.process->durable.stats().numerics_changed == 0);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 20);
  move_machine(calls, "0123");  // back at the first one
  CHECK(calls.process->finish(tokens_call(1, 4, 3), id, named("f"))->result().numerics_changed);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 35);
}

TEST_CASE("KV pages are stored once more where another machine may have computed them",
          "[durable]") {
  Calls calls(Durability::kToken, hybrid_model());
  calls.options.park = {1};
  calls.begin();
  const std::string id = calls.kept();
  const auto first_pages = [&] {
    const SessionStorage::StateRef ref = calls.storage.find(id, kAlice).row.states.front();
    REQUIRE(ref.is_pages);
    return ref.where;
  };
  calls.process->finish(tokens_call(5, 40, 3), id, named("a"));
  const std::uint64_t here = first_pages();
  calls.process->finish(tokens_call(1, 40, 3), id, named("b"));
  CHECK(first_pages() == here);
  move_machine(calls, "4567");
  calls.process->finish(tokens_call(1, 40, 3), id, named("c"));
  const std::uint64_t there = first_pages();
  CHECK(there != here);
  calls.process->finish(tokens_call(1, 40, 3), id, named("d"));
  CHECK(first_pages() == there);
}

// The same with KV caches of another type.
void move_to_type(Calls& calls, KvType type, const std::string& hex) {
  calls.transformer = hybrid_model(type);
  move_machine(calls, hex);
}

TEST_CASE("a session of another KV type continues, and its next state has all pages", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const KvType type = GENERATE(KvType::kBf16, KvType::kInt8);
  CAPTURE(to_string(type));
  Calls calls(level, hybrid_model());
  calls.options.park = {1};
  calls.begin();
  const std::string id = calls.kept(), twin = calls.kept();
  const auto row = [&](const std::string& of) { return calls.storage.find(of, kAlice).row; };
  const auto first_pages = [&] {
    REQUIRE(row(id).states.front().is_pages);
    return row(id).states.front().where;
  };
  for (const std::string& session : {id, twin}) {
    calls.process->finish(tokens_call(5, 40, 3), session, named("a"));
  }
  const std::uint64_t here = first_pages();
  move_to_type(calls, type, "4567");
  for (const std::string& session : {id, twin}) {
    const auto sink = calls.process->finish(tokens_call(1, 40, 3), session, named("b"));
    CHECK(sink->result().numerics_changed);
    CHECK(calls.process->durable.find(session, kAlice)->numerics_changed_at == 45);
  }
  const std::uint64_t there = first_pages();
  CHECK(there != here);
  CHECK(row(id).states.front().first == 0);
  // A restart leaves the bits, and adds pages to those of the new type.
  const auto stayed = calls.process->finish(tokens_call(1, 40, 3), twin, named("c"));
  move_to_type(calls, type, "4567");
  const auto restarted = calls.process->finish(tokens_call(1, 40, 3), id, named("c"));
  CHECK(restarted->recorded == stayed->recorded);
  CHECK_FALSE(restarted->result().numerics_changed);
  CHECK(first_pages() == there);
  move_to_type(calls, KvType::kF32, "0123");
  CHECK(calls.process->finish(tokens_call(1, 40, 3), id, named("d"))->result().numerics_changed);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 127);
}

TEST_CASE("a converted session is not of the machine that computed it before", "[durable]") {
  Calls calls(Durability::kToken, hybrid_model());
  calls.options.park = {1};
  calls.begin();
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(5, 40, 3), id, named("a"));
  move_to_type(calls, KvType::kInt8, "4567");
  REQUIRE_FALSE(calls.process->durable.load(id, kAlice).refusal);
  const auto made = calls.process->store.fork(id, kAlice, 45, 1);
  REQUIRE_FALSE(made.refusal);
  const std::string fork = made.infos[0].id;
  REQUIRE_FALSE(calls.process->durable.persist(fork, kAlice));
  // Back on the first one, the session is its own; the fork, whose pages were rounded, is not.
  move_to_type(calls, KvType::kF32, "0123");
  CHECK(calls.process->durable.find(fork, kAlice)->numerics == kUnknownNumerics);
  CHECK(calls.process->finish(tokens_call(1, 4, 3), fork, named("b"))->result().numerics_changed);
  CHECK_FALSE(
      calls.process->finish(tokens_call(1, 4, 3), id, named("b"))->result().numerics_changed);
}

TEST_CASE("a call that was left open on another KV type", "[durable]") {
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  const std::size_t before = GENERATE(0, 20);  // tokens of the session
  CAPTURE(static_cast<int>(level), before);
  Calls calls(level, hybrid_model());
  calls.options.park = {1};
  calls.begin();
  const std::string id = calls.kept();
  if (before > 0) calls.process->finish(tokens_call(before - 4, 4, 3), id, named("a"));
  calls.process->call(tokens_call(25, 40, 3), id, named("b"));
  for (int i = 0; i < 24; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  REQUIRE_FALSE(calls.storage.find(id, kAlice).row.call.empty());
  move_to_type(calls, KvType::kInt8, "4567");
  const auto again = calls.process->call(tokens_call(25, 40, 3), id, named("b"));
  if (level == Durability::kToken) {  // all tokens that a client has seen are stored
    REQUIRE_FALSE(again.refusal);
    calls.process->run();
  } else {
    CHECK(again.refusal.error == SessionError::kNumericsChanged);
    IdempotencyKey expects = named("c");
    expects.expected_position = calls.stored(id);
    calls.process->finish(tokens_call(1, 40, 9), id, expects);
  }
  // What it stored is of one type.
  move_to_type(calls, KvType::kInt8, "4567");
  CHECK(calls.process->finish(tokens_call(1, 4, 9), id, named("d"))->tokens().size() == 4);
}

TEST_CASE("strict numerics: a session that another machine computed is refused",
          "[durable][threat-71]") {
  Calls calls(Durability::kToken);
  const std::string id = calls.kept(), untouched = calls.kept(), other = calls.kept();
  calls.process->finish(tokens_call(5, 10, 3), id, named("a"));
  calls.process->call(tokens_call(5, 40, 3), other, named("b"));
  for (int i = 0; i < 12; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->durable.write();
  calls.options.takes_other_numerics = false;
  move_machine(calls, "4567");
  const auto refusal_of_call = [&](const std::string& session, const IdempotencyKey& terms) {
    return calls.process->call(tokens_call(5, 40, 3), session, terms).refusal;
  };
  CHECK(refusal_of_call(id, named("c")).error == SessionError::kNumericsRefused);
  CHECK(refusal_of_call(id, named("c")).highest == 15);
  CHECK(refusal_of_call(other, named("b")).error == SessionError::kNumericsRefused);
  IdempotencyKey expects = named("c");
  expects.expected_position = 8;
  CHECK(refusal_of_call(other, expects).error == SessionError::kNumericsRefused);
  CHECK(calls.process->durable.find(other, kAlice)->interrupted);  // it was not taken back
  // Its content is available: a fork, which is refused as well.
  REQUIRE_FALSE(calls.process->durable.load(id, kAlice).refusal);
  const auto fork = calls.process->store.fork(id, kAlice, 12, 1);
  REQUIRE_FALSE(fork.refusal);
  REQUIRE_FALSE(calls.process->durable.persist(fork.infos[0].id, kAlice));
  CHECK(refusal_of_call(fork.infos[0].id, named("c")).error == SessionError::kNumericsRefused);
  // Nothing was computed of one without tokens.
  CHECK(calls.process->finish(tokens_call(5, 4, 3), untouched, named("c"))->tokens().size() == 4);
  move_machine(calls, "0123");
  CHECK_FALSE(refusal_of_call(id, named("c")).error == SessionError::kNumericsRefused);
  CHECK(calls.process->finish(tokens_call(5, 40, 3), other, named("b"))->tokens().size() == 40);
  calls.process->run();
}

TEST_CASE("the tokens of a call that is given up are of the machine that drew them", "[durable]") {
  Calls calls(Durability::kInput);
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(5, 10, 3), id, named("a"));
  move_machine(calls, "4567");
  calls.process->call(tokens_call(1, 40, 3), id, named("b"));
  for (int i = 0; i < 20; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->durable.write();
  REQUIRE(calls.stored(id) > 18);
  move_machine(calls, "0123");
  REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 18, std::nullopt).refusal);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 15);
  CHECK(calls.process->finish(tokens_call(1, 4, 3), id, named("c"))->result().numerics_changed);
  CHECK(calls.process->durable.find(id, kAlice)->numerics_changed_at == 18);
}

}  // namespace
}  // namespace lintel::testing
