// SPDX-License-Identifier: Apache-2.0
// Named states over gRPC: saved, used as initial states, listed and deleted.
#include <optional>

#include "tests/server/support/session_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

grpc::Status save_state(TestServer& server, const std::string& session, const std::string& name,
                        v1::NamedState* state, const std::string& who = "", bool is_public = false,
                        std::optional<std::int64_t> position = std::nullopt) {
  v1::SaveStateRequest request;
  request.set_session_id(session);
  request.set_name(name);
  request.set_is_public(is_public);
  if (position) request.set_position(*position);
  grpc::ClientContext context;
  set_token(context, who);
  return server.sessions->SaveState(&context, request, state);
}

grpc::Status delete_state(TestServer& server, const std::string& name, const std::string& who = "",
                          bool is_public = false) {
  v1::DeleteStateRequest request;
  request.set_name(name);
  request.set_is_public(is_public);
  google::protobuf::Empty nothing;
  grpc::ClientContext context;
  set_token(context, who);
  return server.sessions->DeleteState(&context, request, &nothing);
}

// "name" of the caller's own, "name!" of public ones, in pages of `page_size`.
std::vector<std::string> names_of(TestServer& server, const std::string& who = "",
                                  int page_size = 0, const std::string& model = "") {
  std::vector<std::string> names;
  v1::ListStatesRequest request;
  request.set_page_size(page_size);
  request.set_model(model);
  do {
    v1::ListStatesResponse page;
    grpc::ClientContext context;
    set_token(context, who);
    REQUIRE(server.sessions->ListStates(&context, request, &page).ok());
    for (const v1::NamedState& state : page.states()) {
      names.push_back(state.name() + (state.is_public() ? "!" : ""));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return names;
}

TEST_CASE("a sequence that begins with a named state continues as its source does") {
  TestServer server({"tokens", "bytes"});
  const v1::Session source = create_session(server, "tokens");
  go_on(server, source.id(), 10, {1, 2, 3});
  v1::NamedState state;
  std::optional<std::int64_t> position;
  SECTION("where the session stands") {}
  SECTION("where the session stood") { position = 6; }
  REQUIRE(save_state(server, source.id(), "start", &state, "", false, position).ok());
  CHECK(state.position() == position.value_or(13));
  CHECK(state.model() == "tokens");
  CHECK(state.bytes() > 0);
  v1::ForkSessionResponse forked;
  REQUIRE(fork_session(server, source.id(), position, 1, &forked).ok());
  CHECK(state.digest() == forked.sessions(0).digest());
  const Sample expected = go_on(server, forked.sessions(0).id(), 20, {4});

  v1::CreateSessionRequest create;
  create.set_initial_state("start");
  v1::Session session;
  grpc::ClientContext creating;
  REQUIRE(server.sessions->Create(&creating, create, &session).ok());
  CHECK(session.position() == state.position());
  CHECK(session.digest() == state.digest());
  const Sample of_session = go_on(server, session.id(), 20, {4});
  CHECK(of_session.tokens == expected.tokens);
  CHECK(of_session.log2_probs == expected.log2_probs);

  v1::GenerateRequest request = request_for("", {4}, 20);
  request.set_initial_state("start");
  request.set_log2_probs(true);
  request.set_num_samples(2);
  const Generated once = generate(server, request);
  REQUIRE(once.status.ok());
  CHECK(once.only().tokens == expected.tokens);
  CHECK(once.only().log2_probs == expected.log2_probs);
  CHECK(once.only().first_position == state.position() + 1);
  CHECK(once.samples.at(1).tokens.size() == 20);
  // Its session may go, and the state is as it was.
  CHECK(generate(server, request).only().tokens == expected.tokens);
}

TEST_CASE("a named state is refused where it does not fit") {
  TestServer server({"tokens", "bytes"});
  const v1::Session source = create_session(server, "tokens");
  go_on(server, source.id(), 3, {1});
  v1::NamedState state;
  for (const std::string& name :
       {std::string(), std::string(".hidden"), std::string("a/b"), std::string(129, 'a')}) {
    CHECK(violated_fields(save_state(server, source.id(), name, &state)) ==
          std::vector<std::string>{"name"});
  }
  CHECK(save_state(server, source.id(), "far", &state, "", false, 5).error_code() ==
        grpc::StatusCode::OUT_OF_RANGE);
  REQUIRE(save_state(server, source.id(), "start", &state).ok());
  v1::GenerateRequest request = request_for("bytes", {4}, 20);
  request.set_initial_state("start");
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"initial_state"});
  request.set_model("");
  request.set_session_id(source.id());
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"initial_state"});
  request.set_session_id("");
  request.set_initial_state("nosuch");
  CHECK(generate(server, request).status.error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("named states are listed in pages and deleted, and release their memory") {
  TestServer server({"tokens", "bytes"});
  const v1::Session tokens = create_session(server, "tokens");
  const v1::Session bytes = create_session(server, "bytes");
  go_on(server, tokens.id(), 3, {1});
  go_on(server, bytes.id(), 3, {1});
  const std::size_t before = server.server().store().bytes_in_use();
  v1::NamedState state;
  for (const char* name : {"c", "a", "b"}) {
    REQUIRE(save_state(server, tokens.id(), name, &state).ok());
  }
  REQUIRE(save_state(server, bytes.id(), "d", &state).ok());
  CHECK(server.server().store().bytes_in_use() > before);
  REQUIRE(save_state(server, tokens.id(), "a", &state).ok());  // in place of what it was
  CHECK(names_of(server, "", 2) == std::vector<std::string>{"a", "b", "c", "d"});
  CHECK(names_of(server, "", 0, "bytes") == std::vector<std::string>{"d"});
  for (const char* name : {"a", "b", "c", "d"}) CHECK(delete_state(server, name).ok());
  CHECK(delete_state(server, "a").error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(names_of(server).empty());
  CHECK(server.server().store().bytes_in_use() == before);
}

TEST_CASE("named states are their owner's, and public ones an admin's to make", "[threat-4]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  v1::Session of_alice, of_both;
  REQUIRE(create_as(server, "alice", &of_alice).ok());
  REQUIRE(create_as(server, "both", &of_both).ok());
  v1::NamedState state;
  REQUIRE(save_state(server, of_alice.id(), "mine", &state, "alice").ok());
  CHECK(save_state(server, of_alice.id(), "all", &state, "alice", true).error_code() ==
        grpc::StatusCode::PERMISSION_DENIED);
  REQUIRE(save_state(server, of_both.id(), "all", &state, "both", true).ok());
  CHECK(names_of(server, "alice") == std::vector<std::string>{"all!", "mine"});
  CHECK(names_of(server, "bob") == std::vector<std::string>{"all!"});
  CHECK(delete_state(server, "all", "alice", true).error_code() ==
        grpc::StatusCode::PERMISSION_DENIED);
  const auto begin_as = [&](const std::string& who, const std::string& name) {
    v1::GenerateRequest request = request_for("", {1}, 2);
    request.set_initial_state(name);
    return generate_as(server, who, request);
  };
  CHECK(begin_as("bob", "all").ok());
  const grpc::Status others = begin_as("bob", "mine");
  CHECK(others.error_code() == grpc::StatusCode::NOT_FOUND);
  std::string expected = begin_as("bob", "none").error_message();
  expected.replace(expected.find("none"), 4, "mine");
  CHECK(others.error_message() == expected);
  CHECK(delete_state(server, "mine", "bob").error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(delete_state(server, "all", "both", true).ok());
}

}  // namespace
}  // namespace lintel::testing
