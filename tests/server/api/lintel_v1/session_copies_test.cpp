// SPDX-License-Identifier: Apache-2.0
// Forks, rewinds and histories of sessions over gRPC.
#include "tests/server/support/session_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::vector<std::int32_t> operator+(std::vector<std::int32_t> a,
                                    const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("a fork continues as its source with the same seed, and not with another") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 10, {1, 2});
  v1::ForkSessionResponse forked;
  REQUIRE(fork_session(server, session.id(), std::nullopt, 2, &forked).ok());
  REQUIRE(forked.sessions_size() == 2);
  const std::string first = forked.sessions(0).id(), second = forked.sessions(1).id();
  CHECK(first != second);
  CHECK(forked.sessions(0).position() == 12);
  CHECK(forked.sessions(0).digest() == get_session(server, session.id()).digest());
  const auto whole = go_on(server, session.id(), 20);
  CHECK(go_on(server, first, 20).tokens == whole.tokens);
  const auto other = go_on(server, second, 20, {}, /*seed=*/8);
  CHECK(other.tokens != whole.tokens);
  CHECK(whole.finish.digest() == get_session(server, session.id()).digest());
  CHECK(get_session(server, first).digest() == get_session(server, session.id()).digest());
  CHECK(get_session(server, second).digest() != get_session(server, session.id()).digest());
}

TEST_CASE("a fork at any position, and a rewind to it, continue as a session that ended there") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  const auto tokens =
      std::vector<std::int32_t>{1, 2} + go_on(server, session.id(), 30, {1, 2}).tokens;
  for (const std::int64_t position : {1, 2, 3, 17, 31, 32}) {
    INFO("position " << position);
    v1::ForkSessionResponse forked;
    REQUIRE(fork_session(server, session.id(), position, 0, &forked).ok());
    const std::string fork = forked.sessions(0).id();
    CHECK(forked.sessions(0).position() == position);
    const auto ahead = go_on(server, fork, 40);
    const v1::Session plain = create_session(server, "tokens");
    const auto alone =
        go_on(server, plain.id(), 40,
              {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(position)});
    CHECK(ahead.tokens == alone.tokens);
    CHECK(ahead.log2_probs == alone.log2_probs);
    CHECK(ahead.finish.reused_tokens() == position);
    // And back.
    v1::Session rewound;
    REQUIRE(rewind_session(server, fork, position, &rewound).ok());
    CHECK(rewound.position() == position);
    CHECK(rewound.digest() == forked.sessions(0).digest());
    const auto again = go_on(server, fork, 40);
    CHECK(again.tokens == alone.tokens);
    CHECK(again.log2_probs == alone.log2_probs);
    CHECK(again.finish.replayed_tokens() == position);
  }
}

TEST_CASE("a rewind to the beginning leaves an empty session") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  const auto first = go_on(server, session.id(), 10, {1, 2});
  v1::Session rewound;
  REQUIRE(rewind_session(server, session.id(), 0, &rewound).ok());
  CHECK(rewound.position() == 0);
  CHECK_FALSE(rewound.has_pending_value());
  CHECK(rewound.digest() == session.digest());
  CHECK(go_on(server, session.id(), 10, {1, 2}).tokens == first.tokens);
}

TEST_CASE("checkpoints leave few tokens to be read again") {
  TestServer server({"tokens"});
  v1::CreateSessionRequest request;
  request.mutable_checkpoints()->set_every_tokens(8);
  request.mutable_checkpoints()->set_keep(8);
  v1::Session session;
  grpc::ClientContext context;
  REQUIRE(server.sessions->Create(&context, request, &session).ok());
  go_on(server, session.id(), 60, {1, 2});
  v1::Session rewound;
  REQUIRE(rewind_session(server, session.id(), 60, &rewound).ok());
  CHECK(go_on(server, session.id(), 1).finish.replayed_tokens() <= 8);
}

TEST_CASE("a position outside the history is refused with the positions inside") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 10, {1, 2});
  v1::Session rewound;
  v1::ForkSessionResponse forked;
  for (const grpc::Status& status : {rewind_session(server, session.id(), 13, &rewound),
                                     fork_session(server, session.id(), 13, 1, &forked),
                                     read_history(server, session.id(), 0, 13).status,
                                     read_history(server, session.id(), 13).status}) {
    CHECK(status.error_code() == grpc::StatusCode::OUT_OF_RANGE);
    const auto info = detail_of<google::rpc::ErrorInfo>(status);
    REQUIRE(info);
    CHECK(info->reason() == "POSITION_OUT_OF_RANGE");
    CHECK(info->metadata().at("lowest") == "0");
    CHECK(info->metadata().at("highest") == "12");
  }
  CHECK(get_session(server, session.id()).position() == 12);
}

TEST_CASE("requests about copies are checked, all fields at once") {
  TestServer server({"tokens"});
  v1::ForkSessionRequest fork;
  fork.set_position(-1);
  fork.set_count(65);
  v1::ForkSessionResponse forks;
  grpc::ClientContext forking;
  CHECK(violated_fields(server.sessions->Fork(&forking, fork, &forks)) ==
        std::vector<std::string>{"id", "position", "count"});
  v1::RewindSessionRequest rewind;
  rewind.set_position(std::int64_t{1} << 60);
  for (const std::string digest : {"", "f00d", "0123456789abcdef0123456789abcdeF"}) {
    rewind.set_expected_digest(digest);
    v1::Session session;
    grpc::ClientContext rewinding;
    CHECK(violated_fields(server.sessions->Rewind(&rewinding, rewind, &session)) ==
          std::vector<std::string>{"id", "position", "expected_digest"});
  }
  CHECK(violated_fields(read_history(server, "", -1, -2).status) ==
        std::vector<std::string>{"id", "from_position", "to_position", "to_position"});
  v1::CreateSessionRequest create;
  create.set_history_tokens(-1);
  create.mutable_checkpoints()->set_keep(65);
  v1::Session session;
  grpc::ClientContext creating;
  CHECK(violated_fields(server.sessions->Create(&creating, create, &session)) ==
        std::vector<std::string>{"checkpoints.keep", "checkpoints.every_tokens", "history_tokens"});
}

TEST_CASE("a rewind of another history than the expected one is refused, and nothing is lost") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 10, {1, 2});
  const std::string digest = get_session(server, session.id()).digest();
  go_on(server, session.id(), 1);
  v1::Session rewound;
  const grpc::Status refused = rewind_session(server, session.id(), 5, &rewound, digest);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(detail_of<google::rpc::ErrorInfo>(refused)->reason() == "POSITION_MISMATCH");
  const std::string now = get_session(server, session.id()).digest();
  REQUIRE(rewind_session(server, session.id(), 5, &rewound, now).ok());
  CHECK(rewound.position() == 5);
}

TEST_CASE("a history has every token and its source, in runs") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  CHECK(read_history(server, session.id()).runs.empty());
  v1::GenerateRequest request = request_for("", {1, 2}, 6);
  request.set_session_id(session.id());
  v1::GivenSpan& span = *request.add_given();
  span.set_position(4);
  for (const int id : {3, 3}) span.mutable_values()->mutable_tokens()->add_ids(id);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  const History whole = read_history(server, session.id());
  REQUIRE(whole.status.ok());
  CHECK(whole.tokens() == std::vector<std::int32_t>{1, 2} + out.only().tokens);
  std::vector<std::pair<std::int64_t, v1::ValueSource>> runs;
  for (const v1::Chunk& run : whole.runs) runs.emplace_back(run.first_position(), run.source());
  CHECK(runs ==
        std::vector<std::pair<std::int64_t, v1::ValueSource>>{{0, v1::VALUE_SOURCE_PROMPT},
                                                              {2, v1::VALUE_SOURCE_SAMPLED},
                                                              {4, v1::VALUE_SOURCE_GIVEN},
                                                              {6, v1::VALUE_SOURCE_SAMPLED}});
  const History part = read_history(server, session.id(), 1, 5);
  CHECK(part.runs.front().first_position() == 1);
  const auto all = whole.tokens();
  CHECK(part.tokens() == std::vector<std::int32_t>(all.begin() + 1, all.begin() + 5));
}

TEST_CASE("a session in use can be forked at past positions and read, but not rewound") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  const v1::Session session = create_session(server, "tokens");
  v1::GenerateRequest request = request_for("", {1, 2}, 30);
  request.set_session_id(session.id());
  grpc::ClientContext context;
  const auto running = server.generation->Generate(&context, request);
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  for (int i = 0; i < 10; ++i) scheduler.run_one_step();

  v1::ForkSessionResponse forked;
  REQUIRE(fork_session(server, session.id(), 5, 1, &forked).ok());
  CHECK(forked.sessions(0).position() == 5);
  CHECK(read_history(server, session.id(), 0, 5).tokens().size() == 5);
  CHECK(fork_session(server, session.id(), std::nullopt, 1, &forked).error_code() ==
        grpc::StatusCode::ABORTED);
  v1::Session rewound;
  CHECK(rewind_session(server, session.id(), 2, &rewound).error_code() ==
        grpc::StatusCode::ABORTED);
  run_until_idle(scheduler);
  v1::GenerateResponse message;
  while (running->Read(&message)) {
  }
  CHECK(running->Finish().ok());
}

TEST_CASE("forks that do not all fit into memory: none is made") {
  ServerOptions options = test_options();
  options.sessions.max_sessions = 4;
  TestServer server({"tokens"}, options);
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 3, {1});
  const std::size_t before = server.server().store().bytes_in_use();
  v1::ForkSessionResponse forked;
  const grpc::Status refused = fork_session(server, session.id(), 2, 64, &forked);
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(refused));
  CHECK(server.server().store().bytes_in_use() == before);
  CHECK(server.server().store().num_sessions() == 1);
}

TEST_CASE("a slow or disconnected reader of a history delays no other call and holds nothing",
          "[threat-52]") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 2000, {1});
  const std::size_t before = server.server().store().bytes_in_use();
  for (int i = 0; i < 40; ++i) {  // more than there are places at a time
    grpc::ClientContext context;
    v1::ReadHistoryRequest request;
    request.set_id(session.id());
    const auto reader = server.sessions->ReadHistory(&context, request);
    context.TryCancel();
    v1::Chunk chunk;
    while (reader->Read(&chunk)) {
    }
    reader->Finish();
  }
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == before; }));
  CHECK(eventually([&] { return read_history(server, session.id()).status.ok(); }));
  CHECK(go_on(server, session.id(), 5).tokens.size() == 5);
}

TEST_CASE("copies of a session are NOT_FOUND for other owners, with the text of an unknown one",
          "[threat-4]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  v1::Session session;
  REQUIRE(create_as(server, "alice", &session).ok());
  using Call = std::function<grpc::Status(grpc::ClientContext&, const std::string&)>;
  const std::vector<std::pair<const char*, Call>> calls = {
      {"Fork",
       [&](grpc::ClientContext& context, const std::string& id) {
         v1::ForkSessionRequest request;
         request.set_id(id);
         v1::ForkSessionResponse response;
         return server.sessions->Fork(&context, request, &response);
       }},
      {"Rewind",
       [&](grpc::ClientContext& context, const std::string& id) {
         v1::RewindSessionRequest request;
         request.set_id(id);
         v1::Session response;
         return server.sessions->Rewind(&context, request, &response);
       }},
      {"ReadHistory",
       [&](grpc::ClientContext& context, const std::string& id) {
         v1::ReadHistoryRequest request;
         request.set_id(id);
         const auto reader = server.sessions->ReadHistory(&context, request);
         v1::Chunk chunk;
         while (reader->Read(&chunk)) {
         }
         return reader->Finish();
       }},
      {"SaveState",
       [&](grpc::ClientContext& context, const std::string& id) {
         v1::SaveStateRequest request;
         request.set_session_id(id);
         request.set_name("mine");
         v1::NamedState response;
         return server.sessions->SaveState(&context, request, &response);
       }},
  };
  const std::string unknown(32, 'a');
  for (const auto& [name, call] : calls) {
    INFO(name);
    const auto as = [&, &made = call](const std::string& who, const std::string& id) {
      grpc::ClientContext context;
      set_token(context, who);
      return made(context, id);
    };
    CHECK(as("alice", session.id()).ok());
    CHECK(as("carol", session.id()).error_code() == grpc::StatusCode::PERMISSION_DENIED);
    for (const char* other : {"bob", "both"}) {
      const grpc::Status refused = as(other, session.id());
      CHECK(refused.error_code() == grpc::StatusCode::NOT_FOUND);
      std::string expected = as(other, unknown).error_message();
      expected.replace(expected.find(unknown), unknown.size(), session.id());
      CHECK(refused.error_message() == expected);
    }
  }
}

}  // namespace
}  // namespace lintel::testing
