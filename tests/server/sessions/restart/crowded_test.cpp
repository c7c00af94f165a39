// SPDX-License-Identifier: Apache-2.0
// Stored sessions of which there are more than memory, and calls of which there are many at once.
#include <atomic>
#include <thread>

#include "server/api/lintel_v1/snapshot_bytes.h"
#include "tests/server/support/snapshot_calls.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

TEST_CASE("session that is read: stays in memory when its answer needs some") {
  const auto model = tiny_models({"tokens"}).at("tokens");
  const std::size_t bytes =
      SessionManager::session_bytes(*model, {.durability = Durability::kInput});
  constexpr std::int64_t kTokens = 1503;
  const std::string what = GENERATE("history", "snapshot", "named state");
  CAPTURE(what);
  // The answer needs memory, for which the longest unused session would be evicted: the one that it
  // is about.
  const std::size_t needed =
      what == "snapshot" ? 2 * most_snapshot_bytes(*model, kTokens, kTokens) : kTokens * 4;
  StoredServer stored([&](ServerOptions& options) {
    options.sessions.session_memory_bytes = 2 * bytes + needed - 1;
    options.prefixes.memory_bytes = 0;
  });
  const std::string id = created(*stored, v1::DURABILITY_INPUT).id();
  const Sample sample = go_on(*stored, id, kTokens - 3, {1, 2, 3});
  const std::string other = created(*stored, v1::DURABILITY_INPUT).id();
  REQUIRE(get_session(*stored, id).in_memory());
  REQUIRE(get_session(*stored, other).in_memory());
  grpc::Status status;
  if (what == "history") {
    const History history = read_history(*stored, id);
    status = history.status;
    std::vector<std::int32_t> tokens = history.tokens();
    REQUIRE(tokens.size() == kTokens);
    tokens.erase(tokens.begin(), tokens.begin() + 3);
    CHECK(tokens == sample.tokens);
  } else if (what == "snapshot") {
    status = snapshot_of(*stored, id).status;
  } else {
    v1::SaveStateRequest request;
    request.set_session_id(id);
    request.set_name("mine");
    v1::NamedState state;
    grpc::ClientContext context;
    status = stored->sessions->SaveState(&context, request, &state);
    CHECK(state.position() == kTokens);
  }
  INFO(status.error_message());
  CHECK(status.ok());
  CHECK(get_session(*stored, id).in_memory());
  CHECK_FALSE(get_session(*stored, other).in_memory());
  CHECK(get_session(*stored, id).position() == kTokens);
  CHECK(get_session(*stored, other).position() == 0);
}

TEST_CASE("a full load queue refuses with the time to try again", "[threat-60]") {
  StoredServer stored([](ServerOptions& options) {
    options.durable.store_threads = 1;
    options.durable.load_queue = 1;
  });
  const v1::Session session = created(*stored, v1::DURABILITY_INPUT);
  // Many at once: one is at it, one waits.
  std::atomic<int> refused{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200 && refused == 0; ++round) {
        v1::GetSessionRequest request;
        request.set_id(session.id());
        v1::Session out;
        grpc::ClientContext context;
        const grpc::Status status = stored->sessions->Get(&context, request, &out);
        if (status.ok()) continue;
        if (status.error_code() == Code::RESOURCE_EXHAUSTED &&
            detail_of<google::rpc::RetryInfo>(status)) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(refused > 0);
}

TEST_CASE("many calls on stored sessions, cancelled at any time, all end") {
  StoredServer stored;
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(created(*stored, v1::DURABILITY_INPUT).id());
  stored.restart();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 25; ++round) {
        grpc::ClientContext context;
        const auto request = call_on(ids[static_cast<std::size_t>(caller)], "", {1}, 50);
        const auto reader = stored->generation->Generate(&context, request);
        if (round % 3 == 0) context.TryCancel();
        v1::GenerateResponse message;
        if (round % 3 == 1) reader->Read(&message);
        context.TryCancel();
        while (reader->Read(&message)) {
        }
        reader->Finish();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& id : ids) {
    CHECK(eventually([&] { return !get_session(*stored, id).busy(); }));
    go_on(*stored, id, 3, {2});
  }
}

}  // namespace
}  // namespace lintel::testing
