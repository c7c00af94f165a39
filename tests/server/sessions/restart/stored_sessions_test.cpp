// SPDX-License-Identifier: Apache-2.0
// Durable sessions over gRPC: what is there after a restart of the server.
#include <atomic>
#include <set>
#include <thread>

#include "tests/server/support/metrics_page.h"
#include "tests/server/support/repository_server.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

// The tokens and log-probabilities of two calls on a session that nothing happens to.
struct Twin {
  Twin() {
    TestServer server({"tokens"});
    const v1::Session session = create_session(server, "tokens");
    first = go_on(server, session.id(), 12, {1, 2, 3});
    second = go_on(server, session.id(), 12, {4}, /*seed=*/9);
    digest = get_session(server, session.id()).digest();
  }
  Sample first, second;
  std::string digest;
};
const Twin& twin() {
  static const Twin made;
  return made;
}

void check_same(const Sample& sample, const Sample& expected) {
  CHECK(sample.tokens == expected.tokens);
  CHECK(sample.log2_probs == expected.log2_probs);
  CHECK(sample.first_position == expected.first_position);
}

TEST_CASE("a stored session continues after a restart with the tokens it would have had") {
  const v1::Durability level =
      GENERATE(v1::DURABILITY_CALL, v1::DURABILITY_INPUT, v1::DURABILITY_TOKEN);
  const bool with_state = GENERATE(false, true);
  CAPTURE(level, with_state);
  StoredServer stored(
      [&](ServerOptions& options) { options.durable.park_tokens = with_state ? 1 : 1'000'000; });
  const v1::Session session = created(*stored, level);
  CHECK(session.durability() == level);
  CHECK(session.in_memory());
  CHECK(session.has_expire_time());
  check_same(go_on(*stored, session.id(), 12, {1, 2, 3}), twin().first);
  const v1::Session before = get_session(*stored, session.id());

  stored.restart();
  v1::Session after = get_session(*stored, session.id());
  CHECK_FALSE(after.in_memory());
  CHECK(after.position() == before.position());
  CHECK(after.digest() == before.digest());
  CHECK(after.durability() == level);
  CHECK(after.model() == "tokens");
  CHECK_FALSE(after.has_interrupted());
  check_same(go_on(*stored, session.id(), 12, {4}, /*seed=*/9), twin().second);
  after = get_session(*stored, session.id());
  CHECK(after.in_memory());
  CHECK(after.digest() == twin().digest);
}

TEST_CASE("a session without durability ends with its server, and the default is the server's") {
  StoredServer stored;
  CHECK(create_session(*stored, "tokens").durability() == v1::DURABILITY_INPUT);
  const v1::Session none = created(*stored, v1::DURABILITY_NONE);
  CHECK(none.durability() == v1::DURABILITY_NONE);
  CHECK_FALSE(none.has_expire_time());
  go_on(*stored, none.id(), 3, {1});
  stored.options.durable.durability = Durability::kNone;
  stored.restart();
  CHECK_THROWS_WITH(get_session(*stored, none.id()), Catch::Contains("no session " + none.id()));
  CHECK(create_session(*stored, "tokens").durability() == v1::DURABILITY_NONE);
}

TEST_CASE("without a store every durability but none is refused") {
  TestServer server({"tokens"});
  v1::Session session;
  for (const auto level : {v1::DURABILITY_CALL, v1::DURABILITY_INPUT, v1::DURABILITY_TOKEN}) {
    const grpc::Status refused = create_durable(server, level, &session);
    CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
    CHECK(reason_of(refused) == "NO_SESSION_STORE");
  }
  CHECK(server.server().store().num_sessions() == 0);
  REQUIRE(create_durable(server, v1::DURABILITY_NONE, &session).ok());
  CHECK(session.durability() == v1::DURABILITY_NONE);
  CHECK(session.in_memory());
  v1::ForkSessionRequest fork;
  fork.set_id(session.id());
  fork.set_durability(v1::DURABILITY_INPUT);
  v1::ForkSessionResponse forks;
  grpc::ClientContext context;
  CHECK(reason_of(server.sessions->Fork(&context, fork, &forks)) == "NO_SESSION_STORE");
}

TEST_CASE("expiry and durability of a new session are checked by field") {
  StoredServer stored;
  const auto create = [&](const std::function<void(v1::CreateSessionRequest&)>& change) {
    v1::CreateSessionRequest request;
    request.set_model("tokens");
    change(request);
    v1::Session session;
    grpc::ClientContext context;
    return violated_fields(stored->sessions->Create(&context, request, &session));
  };
  using Fields = std::vector<std::string>;
  CHECK(create([](auto& r) { r.set_durability(static_cast<v1::Durability>(9)); }) ==
        Fields{"durability"});
  CHECK(create([](auto& r) { r.mutable_expire_after()->set_seconds(0); }) ==
        Fields{"expire_after"});
  CHECK(create([](auto& r) { r.mutable_expire_after()->set_seconds(-5); }) ==
        Fields{"expire_after"});
  CHECK(create([](auto& r) { r.mutable_expire_after()->set_seconds(1LL << 40); }) ==
        Fields{"expire_after"});
  CHECK(create([](auto& r) {
          r.set_durability(v1::DURABILITY_NONE);
          r.mutable_expire_after()->set_seconds(60);
        }) == Fields{"expire_after"});
  CHECK(create([](auto& r) { r.mutable_expire_after()->set_seconds(60); }).empty());
}

TEST_CASE("stored sessions are shown, listed and deleted without being loaded") {
  StoredServer stored;
  std::set<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.insert(created(*stored, v1::DURABILITY_INPUT).id());
    go_on(*stored, *ids.rbegin(), 3, {i});
  }
  stored.restart();
  const std::string of_memory = created(*stored, v1::DURABILITY_NONE).id();
  ids.insert(of_memory);
  const auto listed = [&](const std::string& model) {
    std::set<std::string> found;
    v1::ListSessionsRequest request;
    request.set_model(model);
    request.set_page_size(2);
    do {
      v1::ListSessionsResponse page;
      grpc::ClientContext context;
      REQUIRE(stored->sessions->List(&context, request, &page).ok());
      for (const v1::Session& session : page.sessions()) {
        CHECK(found.insert(session.id()).second);
        CHECK(session.in_memory() == (session.id() == of_memory));
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return found;
  };
  CHECK(listed("tokens") == ids);
  CHECK(listed("") == ids);
  for (const std::string& id : ids) {
    v1::DeleteSessionRequest request;
    request.set_id(id);
    google::protobuf::Empty nothing;
    grpc::ClientContext context, again;
    CHECK(stored->sessions->Delete(&context, request, &nothing).ok());
    CHECK(stored->sessions->Delete(&again, request, &nothing).error_code() == Code::NOT_FOUND);
  }
  CHECK(listed("tokens").empty());
  stored.restart();
  CHECK(listed("tokens").empty());
}

TEST_CASE("a stored session is forked, rewound, read, copied and saved from the store") {
  StoredServer stored;
  const v1::Session session = created(*stored, v1::DURABILITY_INPUT);
  const std::string& id = session.id();
  go_on(*stored, id, 12, {1, 2, 3});
  const std::vector<std::int32_t> tokens = read_history(*stored, id).tokens();
  REQUIRE(tokens.size() == 15);
  stored.restart();
  SECTION("history") {
    const History history = read_history(*stored, id, 2, 9);
    REQUIRE(history.status.ok());
    CHECK(history.tokens() == std::vector(tokens.begin() + 2, tokens.begin() + 9));
  }
  SECTION("fork") {
    v1::ForkSessionResponse forks;
    REQUIRE(fork_session(*stored, id, std::nullopt, 3, &forks).ok());
    REQUIRE(forks.sessions_size() == 3);
    stored.restart();
    for (const v1::Session& fork : forks.sessions()) {
      CHECK(fork.durability() == v1::DURABILITY_INPUT);
      check_same(go_on(*stored, fork.id(), 12, {4}, /*seed=*/9), twin().second);
    }
    check_same(go_on(*stored, id, 12, {4}, /*seed=*/9), twin().second);
  }
  SECTION("a fork that ends with the server") {
    v1::ForkSessionRequest request;
    request.set_id(id);
    request.set_durability(v1::DURABILITY_NONE);
    v1::ForkSessionResponse forks;
    grpc::ClientContext context;
    REQUIRE(stored->sessions->Fork(&context, request, &forks).ok());
    check_same(go_on(*stored, forks.sessions(0).id(), 12, {4}, /*seed=*/9), twin().second);
    stored.restart();
    CHECK_THROWS(get_session(*stored, forks.sessions(0).id()));
    CHECK(get_session(*stored, id).position() == 15);
  }
  SECTION("rewind") {
    v1::Session rewound;
    REQUIRE(rewind_session(*stored, id, 3, &rewound).ok());
    CHECK(rewound.position() == 3);
    stored.restart();
    CHECK(get_session(*stored, id).digest() == rewound.digest());
    CHECK(go_on(*stored, id, 12).tokens == twin().first.tokens);
  }
  SECTION("snapshot and restore") {
    v1::SnapshotSessionRequest request;
    request.set_id(id);
    std::string bytes;
    grpc::ClientContext context, restoring, unasked;
    const auto reader = stored->sessions->Snapshot(&context, request);
    for (v1::SnapshotChunk chunk; reader->Read(&chunk);) bytes += chunk.data();
    REQUIRE(reader->Finish().ok());
    v1::Session restored;
    const auto writer = stored->sessions->Restore(&restoring, &restored);
    v1::RestoreSessionRequest message;
    message.mutable_header()->set_total_bytes(static_cast<std::int64_t>(bytes.size()));
    message.mutable_header()->set_durability(v1::DURABILITY_TOKEN);
    message.mutable_header()->set_verify(GENERATE(false, true));
    REQUIRE(writer->Write(message));
    message.set_data(bytes);
    REQUIRE(writer->Write(message));
    writer->WritesDone();
    REQUIRE(writer->Finish().ok());
    CHECK(restored.durability() == v1::DURABILITY_TOKEN);
    stored.restart();
    CHECK(get_session(*stored, restored.id()).durability() == v1::DURABILITY_TOKEN);
    check_same(go_on(*stored, restored.id(), 12, {4}, /*seed=*/9), twin().second);
  }
  SECTION("a named state") {
    v1::SaveStateRequest request;
    request.set_session_id(id);
    request.set_name("mine");
    v1::NamedState state;
    grpc::ClientContext context;
    REQUIRE(stored->sessions->SaveState(&context, request, &state).ok());
    CHECK(state.position() == 15);
    CHECK(state.digest() == get_session(*stored, id).digest());
  }
}

TEST_CASE(
    "a stored session outlives the unloading of its model, and is found when that is loaded") {
  const TemporaryDirectory store;
  RepositoryServer models(
      [&](ServerOptions& options) { options.durable.store = store.path() / "s"; });
  models.write("later", TinyModel::kTokens, /*seed=*/11);  // the twin's
  REQUIRE(models.load("later").ok());
  TestServer& server = *models.server;
  v1::CreateSessionRequest create;
  create.set_model("later");
  v1::Session session;
  grpc::ClientContext context;
  REQUIRE(server.sessions->Create(&context, create, &session).ok());
  check_same(go_on(server, session.id(), 12, {1, 2, 3}), twin().first);
  const auto is_refused = [&] {
    const grpc::Status refused = generate(server, call_on(session.id(), "", {4}, 12)).status;
    CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
    CHECK(reason_of(refused) == "MODEL_MISMATCH");
    const v1::Session shown = get_session(server, session.id());
    CHECK_FALSE(shown.in_memory());
    CHECK(shown.position() == 15);
  };
  REQUIRE(models.unload("later").ok());
  is_refused();
  std::filesystem::remove_all(models.directory.path() / "later");
  models.write("later", TinyModel::kTokens, /*seed=*/12);
  REQUIRE(models.load("later").ok());
  is_refused();  // other weights
  REQUIRE(models.unload("later").ok());
  std::filesystem::remove_all(models.directory.path() / "later");
  models.write("later", TinyModel::kTokens, /*seed=*/11);
  REQUIRE(models.load("later").ok());
  check_same(go_on(server, session.id(), 12, {4}, /*seed=*/9), twin().second);
}

TEST_CASE("an unused stored session is removed when it expires") {
  StoredServer stored(
      [](ServerOptions& options) { options.monitoring = with_metrics().monitoring; });
  v1::CreateSessionRequest request;
  request.set_model("tokens");
  request.mutable_expire_after()->set_seconds(1);
  v1::Session session;
  grpc::ClientContext context;
  REQUIRE(stored->sessions->Create(&context, request, &session).ok());
  const v1::Session other = created(*stored, v1::DURABILITY_INPUT);
  CHECK(session.expire_time().seconds() <= session.create_time().seconds() + 2);
  CHECK(other.expire_time().seconds() >= other.create_time().seconds() + 720 * 3600 - 1);
  const bool in_memory = GENERATE(true, false);
  if (!in_memory) stored.restart();
  CHECK(eventually([&] { return values(stored->server()).at("lintel_stored_sessions") == 1; },
                   std::chrono::seconds(20)));
  CHECK_THROWS_WITH(get_session(*stored, session.id()), Catch::Contains("no session"));
  CHECK(get_session(*stored, other.id()).id() == other.id());
  CHECK(stored->server().store().num_sessions() == (in_memory ? 1 : 0));
}

TEST_CASE("the metrics include the store where there is one") {
  TestServer without({"tokens"}, with_metrics());
  CHECK_FALSE(values(without.server()).contains("lintel_session_store_state"));
  StoredServer stored([](ServerOptions& options) {
    options.monitoring = with_metrics().monitoring;
    options.durable.park_tokens = 1;
  });
  const v1::Session session = created(*stored, v1::DURABILITY_INPUT);
  go_on(*stored, session.id(), 12, {1, 2, 3});
  auto now = values(stored->server());
  CHECK(now.at("lintel_session_store_state") == 0);
  CHECK(now.at("lintel_stored_sessions") == 1);
  CHECK(now.at("lintel_session_commits_total") >= 2);
  CHECK(now.at("lintel_session_commit_records_total") >= 3);
  CHECK(now.at("lintel_session_states_stored_total") == 1);
  CHECK(now.at("lintel_sessions_quarantined") == 0);
  stored.restart();
  CHECK(values(stored->server()).at("lintel_stored_sessions") == 1);
  go_on(*stored, session.id(), 3, {4});
  now = values(stored->server());
  CHECK(now.at(R"(lintel_session_loads_total{from="slot"})") == 1);
  CHECK(now.at(R"(lintel_session_loads_total{from="values"})") == 0);
  CHECK(now.at("lintel_recovery_seconds") > 0);
}

}  // namespace
}  // namespace lintel::testing
