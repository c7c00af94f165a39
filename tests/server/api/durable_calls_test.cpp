// SPDX-License-Identifier: Apache-2.0
// Calls on sessions that outlive the process, as they come from the wire.
#include <memory>

#include "server/api/prepare_generation.h"
#include "server/sessions/persistence/persistent_request.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/storage/memory_storage.h"
#include "tests/server/support/service_parts.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;

// Keeps positions only.
struct QuietSink final : TokenSink {
  bool on_token(const TokenEvent& event) override {
    positions.push_back(event.position);
    tokens.push_back(event.token);
    return true;
  }
  void on_sample_finish(const SampleResult& end) override { result = end; }
  void on_step_end() override {}
  void on_finish(RequestOutcome) override { is_over = true; }

  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> tokens;
  SampleResult result;
  bool is_over = false;
};

struct PersistenceFixture {
  ~PersistenceFixture() { model->scheduler->stop(); }

  std::string new_session(Durability durability) {
    const auto created =
        store.create("tokens", model->transformer, {.max_tokens = 200, .durability = durability});
    REQUIRE_FALSE(durable.persist(created.info.id, ""));
    return created.info.id;
  }
  static v1::GenerateRequest wire_for(const std::string& session, const std::string& call_id) {
    v1::GenerateRequest wire = request_for("tokens", {1, 2}, 20);
    wire.set_session_id(session);
    wire.set_call_id(call_id);
    return wire;
  }
  grpc::Status prepare(v1::GenerateRequest wire, PreparedGeneration& prepared) {
    return testing::prepare(parts.context(&durable), std::move(wire), prepared);
  }
  grpc::Status refused(const v1::GenerateRequest& wire) {
    PreparedGeneration prepared;
    grpc::Status status = prepare(wire, prepared);
    CHECK_FALSE(status.ok());
    return status;
  }
  // Runs it, as many steps as it takes or so many.
  std::shared_ptr<QuietSink> run(const v1::GenerateRequest& wire, int steps = 1000) {
    PreparedGeneration prepared;
    const grpc::Status status = prepare(wire, prepared);
    INFO(status.error_message());
    REQUIRE(status.ok());
    auto sink = std::make_shared<QuietSink>();
    if (prepared.past) {
      prepared.past->tell(sink);
      return sink;
    }
    REQUIRE(prepared.durable != nullptr);
    REQUIRE(prepared.durable->submit(std::move(prepared.checked.request), std::move(prepared.lease),
                                     sink, RequestHandle()) == Scheduler::SubmitError::kNone);
    for (int i = 0; i < steps && !sink->is_over; ++i) {
      model->scheduler->run_one_step();
      durable.write();
    }
    return sink;
  }

  ManualClock clock;
  ServiceParts parts{clock};
  SessionManager& store = parts.store;
  const SharedModel model = parts.model();
  MemoryStorage storage{clock};
  PersistentSessions durable{storage, store, parts.registry, clock, {.threads = 0}};
};

TEST_CASE("fields that name a call are refused by name", "[durable]") {
  PersistenceFixture f;
  const std::string id = f.new_session(Durability::kInput);
  const std::string here = f.new_session(Durability::kNone);
  const auto is_refused = [&](const v1::GenerateRequest& wire, const std::string& text) {
    const grpc::Status status = f.refused(wire);
    CHECK(status.error_code() == Code::INVALID_ARGUMENT);
    CHECK_THAT(status.error_message(), Contains(text));
    CHECK_FALSE(f.store.get(id)->busy);
    CHECK_FALSE(f.store.get(here)->busy);
  };
  is_refused(f.wire_for("", "a"), "call_id");
  is_refused(f.wire_for(here, "a"), "call_id");
  is_refused(f.wire_for(id, std::string(65, 'a')), "call_id");
  is_refused(f.wire_for(id, "a\nb"), "call_id");
  v1::GenerateRequest wire = f.wire_for(id, "");
  wire.set_from_position(3);
  is_refused(wire, "from_position");
  wire.set_call_id("a");
  wire.set_from_position(-1);
  is_refused(wire, "from_position");
  wire = f.wire_for("", "");
  wire.set_expected_position(0);
  is_refused(wire, "expected_position");
  wire = f.wire_for(id, "");
  wire.set_expected_position(-2);
  is_refused(wire, "expected_position");

  for (const std::string& session : {id, here}) {
    wire = f.wire_for(session, "");
    wire.set_expected_position(7);
    const grpc::Status status = f.refused(wire);
    CHECK(status.error_code() == Code::FAILED_PRECONDITION);
    CHECK_THAT(status.error_message(),
               Contains("at position 0, not at 7: the tokens at positions 0 to 6 are lost"));
    wire.set_expected_position(0);
    PreparedGeneration prepared;
    CHECK(f.prepare(wire, prepared).ok());
    prepared = {};
    f.durable.write();
    CHECK_FALSE(f.store.get(session)->busy);
  }
  CHECK(f.run(f.wire_for(id, std::string(64, '~')))->tokens.size() == 20);
}

TEST_CASE("a repeat has the terms of the call, with the seed that it was given", "[durable]") {
  PersistenceFixture f;
  const std::string id = f.new_session(Durability::kInput);
  v1::GenerateRequest wire = f.wire_for(id, "a");
  wire.mutable_sampling()->clear_seed();
  const auto first = f.run(wire);
  CHECK(f.run(wire)->tokens == first->tokens);
  CHECK(f.run(wire)->result.seed == first->result.seed);
  v1::GenerateRequest rest = wire;
  rest.set_from_position(10);
  rest.set_expected_position(0);  // as it was when the call was first made
  rest.mutable_time_limit()->set_seconds(100);
  rest.set_max_tokens_per_message(1);
  const auto part = f.run(rest);
  CHECK(part->positions.front() == 10);
  CHECK(part->tokens == std::vector<std::int32_t>(first->tokens.end() - 12, first->tokens.end()));
  v1::GenerateRequest other = wire;
  other.set_max_new_tokens(21);
  CHECK(f.refused(other).error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(f.refused(other).error_message(), Contains("call_id"));
  // A repeat may name the seed that was given, and no other.
  v1::GenerateRequest seeded = wire;
  seeded.mutable_sampling()->set_seed(first->result.seed);
  CHECK(f.run(seeded)->tokens == first->tokens);
  seeded.mutable_sampling()->set_seed(first->result.seed + 1);
  CHECK_THAT(f.refused(seeded).error_message(), Contains("call_id"));
  // No longer the last one.
  f.run(f.wire_for(id, "b"));
  CHECK(f.run(wire)->tokens == first->tokens);
  CHECK(f.run(rest)->tokens == part->tokens);
  CHECK_THAT(f.refused(seeded).error_message(), Contains("call_id"));
  other = wire;
  other.set_call_id("c");
  CHECK(f.run(other)->tokens != first->tokens);
}

TEST_CASE("an interrupted call blocks other calls until it is repeated or given up", "[durable]") {
  PersistenceFixture f;
  const std::string id = f.new_session(Durability::kToken);
  const auto brief = f.run(f.wire_for(id, "a"), /*steps=*/7);
  CHECK_FALSE(brief->is_over);
  // Simulates the death of the process: the session in memory is gone, with all it held.
  SessionStorage::Row row = f.storage.find(id, "").row;
  f.storage.end_claims();
  f.model->scheduler->stop();
  while (f.store.get(id)) f.durable.write();
  REQUIRE(f.durable.find(id, "")->interrupted);

  v1::GenerateRequest unseeded = f.wire_for(id, "a");
  unseeded.mutable_sampling()->clear_seed();
  {
    PreparedGeneration again;
    REQUIRE(f.prepare(unseeded, again).ok());
    CHECK(again.checked.request.seed == f.wire_for(id, "a").sampling().seed());
  }
  f.durable.write();
  unseeded.mutable_sampling()->set_seed(1234);
  CHECK_THAT(f.refused(unseeded).error_message(), Contains("call_id"));
  const grpc::Status refused = f.refused(f.wire_for(id, "b"));
  CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
  CHECK_THAT(refused.error_message(), Contains("interrupted"));
  v1::GenerateRequest wire = f.wire_for(id, "b");
  wire.set_expected_position(row.position + 1);
  CHECK_THAT(f.refused(wire).error_message(),
             Contains("position " + std::to_string(row.position)) && Contains("call_id") &&
                 !Contains("lost"));
  PreparedGeneration prepared;
  REQUIRE(f.prepare(f.wire_for(id, "a"), prepared).ok());
  CHECK(prepared.checked.request.drawn.size() == brief->tokens.size());
  prepared = {};
  f.durable.write();
  wire.set_expected_position(4);
  REQUIRE(f.prepare(wire, prepared).ok());
  CHECK(prepared.checked.request.drawn.empty());
  CHECK(f.storage.find(id, "").row.position == 4);
}

}  // namespace
}  // namespace lintel::testing
