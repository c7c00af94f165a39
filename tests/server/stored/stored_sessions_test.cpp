// Durable sessions over gRPC: what is there after the server was ended and begun anew.
#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "tests/server/support/metrics_page.h"
#include "tests/server/support/repository_server.h"
#include "tests/server/support/stored_server.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

// The values and log-probabilities of two calls on a session that nothing happens to.
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

TEST_CASE("a stored session goes on after a restart with the values it would have had") {
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

TEST_CASE("without a store nothing but none can be asked for") {
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

TEST_CASE("what is asked of a stored session's life is checked by field") {
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

TEST_CASE("stored sessions are shown, listed and deleted where they are") {
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

TEST_CASE("a stored session is forked, rewound, read, copied and saved from where it lies") {
  StoredServer stored;
  const v1::Session session = created(*stored, v1::DURABILITY_INPUT);
  const std::string& id = session.id();
  go_on(*stored, id, 12, {1, 2, 3});
  const std::vector<std::int32_t> values = read_history(*stored, id).values();
  REQUIRE(values.size() == 15);
  stored.restart();
  SECTION("history") {
    const History history = read_history(*stored, id, 2, 9);
    REQUIRE(history.status.ok());
    CHECK(history.values() == std::vector(values.begin() + 2, values.begin() + 9));
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

TEST_CASE("a stored session is NOT_FOUND for all but its owner, word for word") {
  const TokenFile tokens;
  StoredServer stored(
      [&](ServerOptions& options) { options.security = options_with(tokens).security; });
  v1::Session session;
  REQUIRE(create_durable(*stored, v1::DURABILITY_INPUT, &session, "alice").ok());
  const bool in_memory = GENERATE(true, false);
  if (!in_memory) stored.restart();
  const std::string unknown(32, '0');
  // What a method says of the other's session, with its id as that of a session nobody has.
  const auto said =
      [&](const std::function<grpc::Status(grpc::ClientContext&, const std::string&)>& call) {
        const auto text = [&](const std::string& id) {
          grpc::ClientContext context;
          set_token(context, "bob");
          const grpc::Status status = call(context, id);
          std::string all =
              std::to_string(status.error_code()) + status.error_message() + status.error_details();
          for (std::size_t at = 0; (at = all.find(id, at)) != std::string::npos;
               at += unknown.size()) {
            all.replace(at, id.size(), unknown);
          }
          return all;
        };
        const std::string of_other = text(session.id());
        CHECK(of_other.rfind(std::to_string(Code::NOT_FOUND), 0) == 0);
        CHECK(of_other == text(unknown));
      };
  const auto ending = [](auto reader, auto message) {
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  };
  auto& stub = *stored->sessions;
  const auto with_id = [](auto request, const std::string& id) {
    request.set_id(id);
    return request;
  };
  v1::Session out;
  google::protobuf::Empty nothing;
  v1::ForkSessionResponse forks;
  said([&](auto& context, auto& id) {
    return stub.Get(&context, with_id(v1::GetSessionRequest(), id), &out);
  });
  said([&](auto& context, auto& id) {
    return stub.Delete(&context, with_id(v1::DeleteSessionRequest(), id), &nothing);
  });
  said([&](auto& context, auto& id) {
    return stub.Fork(&context, with_id(v1::ForkSessionRequest(), id), &forks);
  });
  said([&](auto& context, auto& id) {
    return stub.Rewind(&context, with_id(v1::RewindSessionRequest(), id), &out);
  });
  said([&](auto& context, auto& id) {
    return ending(stub.Snapshot(&context, with_id(v1::SnapshotSessionRequest(), id)),
                  v1::SnapshotChunk());
  });
  said([&](auto& context, auto& id) {
    return ending(stub.ReadHistory(&context, with_id(v1::ReadHistoryRequest(), id)), v1::Chunk());
  });
  said([&](auto& context, auto& id) {
    v1::SaveStateRequest request;
    request.set_session_id(id);
    request.set_name("mine");
    v1::NamedState state;
    return stub.SaveState(&context, request, &state);
  });
  said([&](auto& context, auto& id) {
    return ending(stored->generation->Generate(&context, call_on(id, "", {1}, 2)),
                  v1::GenerateResponse());
  });
  said([&](auto& context, auto& id) {
    return ending(stored->generation->Generate(&context, call_on(id, "call", {1}, 2)),
                  v1::GenerateResponse());
  });
  const auto list = [&](const std::string& who) {
    v1::ListSessionsResponse page;
    grpc::ClientContext context;
    set_token(context, who);
    REQUIRE(stub.List(&context, {}, &page).ok());
    return page.sessions_size();
  };
  CHECK(list("bob") == 0);
  CHECK(list("alice") == 1);
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
  const auto is_parked = [&] {
    const grpc::Status refused = generate(server, call_on(session.id(), "", {4}, 12)).status;
    CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
    CHECK(reason_of(refused) == "MODEL_MISMATCH");
    const v1::Session shown = get_session(server, session.id());
    CHECK_FALSE(shown.in_memory());
    CHECK(shown.position() == 15);
  };
  REQUIRE(models.unload("later").ok());
  is_parked();
  std::filesystem::remove_all(models.directory.path() / "later");
  models.write("later", TinyModel::kTokens, /*seed=*/12);
  REQUIRE(models.load("later").ok());
  is_parked();  // other weights
  REQUIRE(models.unload("later").ok());
  std::filesystem::remove_all(models.directory.path() / "later");
  models.write("later", TinyModel::kTokens, /*seed=*/11);
  REQUIRE(models.load("later").ok());
  check_same(go_on(server, session.id(), 12, {4}, /*seed=*/9), twin().second);
}

TEST_CASE("a full load queue refuses with the time to try again") {
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

TEST_CASE("a stored session that nobody uses for its time is removed") {
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

TEST_CASE("the metrics tell of the store where there is one") {
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
