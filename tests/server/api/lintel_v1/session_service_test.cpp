// SPDX-License-Identifier: Apache-2.0
// Sessions over gRPC.
#include <set>

#include "model/core/sha256.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

grpc::Status get_session(TestServer& server, const std::string& id, v1::Session* session) {
  v1::GetSessionRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  return server.sessions->Get(&context, request, session);
}

grpc::Status delete_session(TestServer& server, const std::string& id) {
  v1::DeleteSessionRequest request;
  request.set_id(id);
  google::protobuf::Empty response;
  grpc::ClientContext context;
  return server.sessions->Delete(&context, request, &response);
}

TEST_CASE("a session continued in three calls has the tokens of one call") {
  TestServer server({"tokens"});
  const std::vector<std::int32_t> whole =
      generate(server, request_for("tokens", {1, 2}, 30)).only().tokens;
  const v1::Session session = create_session(server, "tokens");
  std::vector<std::int32_t> pieces;
  for (int i = 0; i < 3; ++i) {
    v1::GenerateRequest request =
        request_for("", i == 0 ? std::vector<int>{1, 2} : std::vector<int>{}, 10);
    request.set_session_id(session.id());
    const Generated out = generate(server, request);
    REQUIRE(out.status.ok());
    CHECK(out.only().first_position == 2 + 10 * i);
    CHECK(out.only().finish.reused_tokens() == (i == 0 ? 0 : 2 + 10 * i));
    pieces.insert(pieces.end(), out.only().tokens.begin(), out.only().tokens.end());
  }
  CHECK(pieces == whole);
  v1::Session after;
  REQUIRE(get_session(server, session.id(), &after).ok());
  CHECK(after.position() == 32);
  CHECK(after.has_pending_value());
  CHECK_FALSE(after.busy());
  CHECK(after.model() == "tokens");
  CHECK(after.state_bytes() > 0);
  CHECK(after.create_time().seconds() > 1'600'000'000);
  CHECK(after.idle_timeout().seconds() == 600);
  Sha256 hash;
  hash.add(after.id());
  CHECK(after.affinity_key() == hash.hex().substr(0, 16));
}

TEST_CASE("a session in use is refused, not shared and not deleted") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  const v1::Session session = create_session(server, "tokens");
  v1::GenerateRequest request = request_for("tokens", {1}, 5);
  request.set_session_id(session.id());
  grpc::ClientContext context;
  const auto running = server.generation->Generate(&context, request);
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));

  const Generated refused = generate(server, request);
  CHECK(refused.status.error_code() == grpc::StatusCode::ABORTED);
  const auto resource = detail_of<google::rpc::ResourceInfo>(refused.status);
  REQUIRE(resource);
  CHECK(resource->resource_type() == "session");
  CHECK(resource->resource_name() == session.id());
  CHECK(delete_session(server, session.id()).error_code() == grpc::StatusCode::ABORTED);
  v1::Session seen;
  REQUIRE(get_session(server, session.id(), &seen).ok());
  CHECK(seen.busy());

  run_until_idle(scheduler);
  v1::GenerateResponse message;
  while (running->Read(&message)) {
  }
  CHECK(running->Finish().ok());
  CHECK(delete_session(server, session.id()).ok());
}

TEST_CASE("a session that is gone is not found") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  REQUIRE(delete_session(server, session.id()).ok());
  v1::Session seen;
  const grpc::Status status = get_session(server, session.id(), &seen);
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(detail_of<google::rpc::ResourceInfo>(status)->resource_name() == session.id());
  CHECK(delete_session(server, session.id()).error_code() == grpc::StatusCode::NOT_FOUND);
  v1::GenerateRequest request = request_for("", {1}, 5);
  request.set_session_id(session.id());
  CHECK(generate(server, request).status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(violated_fields(delete_session(server, "")) == std::vector<std::string>{"id"});
  CHECK(violated_fields(get_session(server, "", &seen)) == std::vector<std::string>{"id"});
}

TEST_CASE("a session belongs to its model") {
  TestServer server;
  const v1::Session session = create_session(server, "tokens");
  v1::GenerateRequest request = request_for("bytes", {1}, 5);
  request.set_session_id(session.id());
  CHECK(violated_fields(generate(server, request).status) == std::vector<std::string>{"model"});
  request.set_model("nosuch");
  CHECK(generate(server, request).status.error_code() == grpc::StatusCode::NOT_FOUND);
  request.set_model("");
  CHECK(generate(server, request).status.ok());
}

TEST_CASE("a complete image cannot be continued") {
  TestServer server({"image"});
  const v1::Session session = create_session(server, "image");
  v1::GenerateRequest request = request_for("", {}, 29);
  request.set_session_id(session.id());
  REQUIRE(generate(server, request).status.ok());
  const Generated refused = generate(server, request);
  CHECK(refused.status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  const auto failure = detail_of<google::rpc::PreconditionFailure>(refused.status);
  REQUIRE(failure);
  CHECK(failure->violations(0).subject() == session.id());
}

TEST_CASE("a prompt that a session has no room for is refused and the session is free again") {
  TestServer server({"image"});
  const v1::Session session = create_session(server, "image");
  v1::GenerateRequest request = request_for("", {1, 2, 3}, 20);
  request.set_session_id(session.id());
  REQUIRE(generate(server, request).status.ok());
  request = request_for("", std::vector<int>(8, 1), 1);
  request.set_session_id(session.id());
  CHECK(violated_fields(generate(server, request).status) == std::vector<std::string>{"prompt"});
  request = request_for("", std::vector<int>(7, 1), 1);
  request.set_session_id(session.id());
  CHECK(generate(server, request).status.ok());
}

TEST_CASE("a given token before a session's position is refused") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  v1::GenerateRequest request = request_for("", {1, 2, 3}, 5);
  request.set_session_id(session.id());
  REQUIRE(generate(server, request).status.ok());
  request = request_for("", {}, 5);
  request.set_session_id(session.id());
  v1::GivenSpan& span = *request.add_given();
  span.set_position(7);
  span.mutable_values()->mutable_tokens()->add_ids(1);
  CHECK(violated_fields(generate(server, request).status) == std::vector<std::string>{"given"});
  span.set_position(8);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  CHECK(out.only().sources.front() == v1::VALUE_SOURCE_GIVEN);
}

TEST_CASE("sessions past the memory or the number allowed are refused with a time to retry") {
  ServerOptions options = test_options();
  SECTION("memory") {
    options.sessions.session_memory_bytes =
        2 * SessionManager::session_bytes(*tiny_models({"tokens"}).at("tokens"), {}) + 1;
  }
  SECTION("number") { options.sessions.max_sessions = 2; }
  TestServer server({"tokens"}, options);
  create_session(server, "tokens");
  create_session(server, "tokens");
  v1::CreateSessionRequest request;
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Create(&context, request, &session);
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(status));
}

TEST_CASE("max_tokens bounds a session") {
  TestServer server({"image"});
  v1::CreateSessionRequest request;
  v1::Session session;
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{31}, std::int64_t{1} << 60}) {
    request.set_max_tokens(wrong);
    grpc::ClientContext context;
    CHECK(violated_fields(server.sessions->Create(&context, request, &session)) ==
          std::vector<std::string>{"max_tokens"});
  }
  request.set_max_tokens(10);
  grpc::ClientContext context;
  REQUIRE(server.sessions->Create(&context, request, &session).ok());
  CHECK(session.max_tokens() == 10);
  v1::GenerateRequest generating = request_for("", {1, 2}, 20);
  generating.set_session_id(session.id());
  const Generated out = generate(server, generating);
  REQUIRE(out.status.ok());
  CHECK(out.only().tokens.size() == 8);
  CHECK(out.only().finish.reason() == v1::FINISH_REASON_END_OF_SEQUENCE);
}

TEST_CASE("sessions are listed in pages, by model") {
  TestServer server;
  std::set<std::string> ids;
  for (int i = 0; i < 7; ++i) ids.insert(create_session(server, "tokens").id());
  create_session(server, "bytes");
  v1::ListSessionsRequest request;
  request.set_model("tokens");
  request.set_page_size(3);
  std::vector<std::string> listed;
  std::vector<int> page_sizes;
  while (true) {
    grpc::ClientContext context;
    v1::ListSessionsResponse page;
    REQUIRE(server.sessions->List(&context, request, &page).ok());
    page_sizes.push_back(page.sessions_size());
    for (const v1::Session& session : page.sessions()) listed.push_back(session.id());
    if (page.next_page_token().empty()) break;
    request.set_page_token(page.next_page_token());
  }
  CHECK(page_sizes == std::vector<int>{3, 3, 1});
  CHECK(listed == std::vector<std::string>(ids.begin(), ids.end()));
}

TEST_CASE("a list request is checked") {
  TestServer server;
  v1::ListSessionsRequest request;
  v1::ListSessionsResponse page;
  request.set_page_size(-1);
  request.set_page_token("zz");
  grpc::ClientContext context;
  CHECK(violated_fields(server.sessions->List(&context, request, &page)) ==
        std::vector<std::string>{"page_size", "page_token"});
  request.Clear();
  request.set_page_size(1001);
  grpc::ClientContext second;
  CHECK(violated_fields(server.sessions->List(&second, request, &page)) ==
        std::vector<std::string>{"page_size"});
  request.Clear();
  request.set_model("nosuch");
  grpc::ClientContext third;
  CHECK(server.sessions->List(&third, request, &page).error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("an idle session is evicted by the server itself") {
  ServerOptions options = test_options();
  options.sessions.idle_timeout = std::chrono::seconds(1);
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  const v1::Session session = create_session(server, "tokens");
  clock.advance(std::chrono::seconds(2));
  CHECK(eventually([&] { return server.server().store().num_sessions() == 0; }));
}

}  // namespace
}  // namespace lintel::testing
