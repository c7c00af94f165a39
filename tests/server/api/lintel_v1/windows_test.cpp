// SPDX-License-Identifier: Apache-2.0
// Text in windows, over gRPC: longer than the model's length, and the same in any cut of calls.
#include <string>
#include <tuple>
#include <vector>

#include "tests/server/support/session_calls.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

Generated in_window(TestServer& server, const std::string& model, std::int64_t window,
                    unsigned count) {
  v1::GenerateRequest request = request_for(model, {1, 2}, count);
  request.set_window(window);
  request.mutable_sampling()->set_seed(7);
  request.set_log2_probs(true);
  return generate(server, request);
}

TEST_CASE("text in a window continues past the model's length, in one call or in several") {
  TestServer server({"bytes"});  // of at most 256 positions
  const Sample whole = in_window(server, "bytes", 32, 400).only();
  REQUIRE(whole.tokens.size() == 400);
  CHECK(whole.finish.replayed_tokens() == 16 * (1 + (402 - 32) / 16));
  CHECK(in_window(server, "bytes", 64, 400).only().tokens != whole.tokens);

  const v1::Session session = create_windowed(server, "bytes", 32);
  CHECK(session.window() == 32);
  Sample parts = go_on(server, session.id(), 37, {1, 2});
  for (const unsigned count : {1u, 10u, 352u}) {
    const Sample part = go_on(server, session.id(), count);
    parts.tokens.insert(parts.tokens.end(), part.tokens.begin(), part.tokens.end());
    parts.log2_probs.insert(parts.log2_probs.end(), part.log2_probs.begin(), part.log2_probs.end());
  }
  CHECK(parts.tokens == whole.tokens);
  CHECK(parts.log2_probs == whole.log2_probs);
  CHECK(get_session(server, session.id()).position() == 402);

  // Back to before several windows, and on again.
  v1::Session rewound;
  REQUIRE(rewind_session(server, session.id(), 102, &rewound).ok());
  const Sample again = go_on(server, session.id(), 300);
  CHECK(again.tokens == std::vector<std::int32_t>(whole.tokens.begin() + 100, whole.tokens.end()));
}

TEST_CASE("a window is even, no longer than the model, the session's own, and not for images") {
  TestServer server({"bytes", "image"});
  const auto refusal_of = [&](const std::string& model, std::int64_t window) {
    const grpc::Status called = in_window(server, model, window, 1).status;
    grpc::Status created;
    create_windowed(server, model, window, &created);
    CHECK(called.error_code() == created.error_code());
    CHECK((called.ok() || called.error_message().find("window") != std::string::npos));
    CHECK((created.ok() || created.error_message().find("window") != std::string::npos));
    return called.error_code();
  };
  for (const std::int64_t window : {-2, 1, 3, 258}) {
    CHECK(refusal_of("bytes", window) == grpc::StatusCode::INVALID_ARGUMENT);
  }
  for (const std::int64_t window : {2, 256}) {
    CHECK(refusal_of("bytes", window) == grpc::StatusCode::OK);
  }
  CHECK(refusal_of("image", 2) == grpc::StatusCode::INVALID_ARGUMENT);

  const v1::Session session = create_windowed(server, "bytes", 32);
  v1::GenerateRequest request = request_for("", {1}, 1);
  request.set_session_id(session.id());
  request.set_window(64);
  CHECK(generate(server, request).status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  request.set_window(32);
  CHECK(generate(server, request).status.ok());
}

// ---- Windows that the server chooses: of "text", which is "bytes" with a trained_length of 32

v1::GenerateRequest text_request(const std::string& model, std::size_t prompt, unsigned count) {
  v1::GenerateRequest request = request_for(model, {}, count);
  std::string text;
  for (std::size_t i = 0; i < prompt; ++i) text.push_back(static_cast<char>('a' + i * i % 26));
  request.mutable_prompt()->set_text(text);
  request.set_log2_probs(true);
  return request;
}

void require_same_tokens(const Sample& a, const Sample& b) {
  REQUIRE(a.tokens == b.tokens);
  REQUIRE(a.log2_probs == b.log2_probs);  // bit for bit
  REQUIRE(a.finish.position() == b.finish.position());
}

v1::Session create_session(TestServer& server, const v1::CreateSessionRequest& request) {
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Create(&context, request, &session);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return session;
}

v1::Session create_unwindowed(TestServer& server, const std::string& model) {
  v1::CreateSessionRequest request;
  request.set_model(model);
  return create_session(server, request);
}

TEST_CASE("text model with a trained length: a request without a window has one of that length") {
  TestServer server({"bytes", "text"});
  const std::size_t prompt = GENERATE(5u, 31u, 32u, 100u, 1000u);
  CAPTURE(prompt);
  v1::GenerateRequest request = text_request("bytes", prompt, 90);
  request.set_window(32);
  const Sample windowed = generate(server, request).only();
  REQUIRE(windowed.tokens.size() == 90);
  const Sample chosen = generate(server, text_request("text", prompt, 90)).only();
  require_same_tokens(chosen, windowed);
  const auto end = static_cast<std::int64_t>(prompt) + 90;
  CHECK(chosen.finish.window() == 32);
  CHECK(chosen.finish.window_restarts() == (end - 1 - 32) / 16 + 1);
  CHECK(chosen.finish.prompt_tokens() <= 32);
  CHECK(chosen.finish.prompt_tokens() + chosen.finish.skipped_tokens() ==
        static_cast<std::int64_t>(prompt));
  // Off, where that is said: then the model's length ends it.
  v1::GenerateRequest off = text_request("text", prompt, 90);
  off.set_window(0);
  const Generated plain = generate(server, off);
  if (prompt > 256) {
    CHECK(plain.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    return;
  }
  CHECK(plain.only().finish.window() == 0);
  CHECK(plain.only().finish.window_restarts() == 0);
  CHECK(plain.only().finish.skipped_tokens() == 0);
  CHECK(plain.only().finish.prompt_tokens() == prompt);
  require_same_tokens(plain.only(), generate(server, text_request("bytes", prompt, 90)).only());
  CHECK(plain.only().tokens != chosen.tokens);
}

TEST_CASE("text within its trained length: the bits of text without a window") {
  TestServer server({"bytes", "text"});
  const Sample whole = generate(server, text_request("text", 12, 20)).only();
  require_same_tokens(whole, generate(server, text_request("bytes", 12, 20)).only());
  CHECK(whole.finish.window() == 32);
  CHECK(whole.finish.window_restarts() == 0);
  CHECK(whole.finish.skipped_tokens() == 0);
  // A number that is not said goes up to the model's length, as without a window.
  v1::GenerateRequest request = text_request("text", 12, 0);
  request.clear_max_new_tokens();
  CHECK(generate(server, request).only().finish.position() == 257);
}

TEST_CASE("images, models without a trained length, particles and scores have no default window") {
  TestServer server({"image", "bytes", "text", "tokens"});
  CHECK(generate(server, request_for("image", {}, 29)).only().finish.window() == 0);
  CHECK(generate(server, request_for("bytes", {1}, 90)).only().finish.window() == 0);
  CHECK(generate(server, request_for("tokens", {1}, 90)).only().finish.window() == 0);
  CHECK(create_unwindowed(server, "image").window() == 0);
  CHECK(create_unwindowed(server, "bytes").window() == 0);
  v1::GenerateRequest particles = text_request("text", 40, 20);
  particles.clear_log2_probs();
  particles.set_particles(4);
  const Sample weighed = generate(server, particles).only();
  CHECK(weighed.finish.window() == 0);
  CHECK(weighed.finish.prompt_tokens() == 40);
  v1::ScoreRequest score_request;
  score_request.set_model("text");
  *score_request.add_sequences() = text_request("text", 100, 0).prompt();
  const Scored scored = score(server, score_request);
  score_request.set_model("bytes");
  const Scored plain = score(server, score_request);
  REQUIRE(scored.responses.size() == 1);
  REQUIRE(plain.responses.size() == 1);
  CHECK(scored.responses[0].SerializeAsString() == plain.responses[0].SerializeAsString());
}

TEST_CASE("session of a text model with a trained length: its window is the server's choice") {
  TestServer server({"bytes", "text"});
  const v1::Session chosen = create_unwindowed(server, "text");
  CHECK(chosen.window() == 32);
  CHECK(chosen.max_tokens() == 0);
  const v1::Session windowed = create_windowed(server, "bytes", 32);
  const v1::Session off = create_windowed(server, "text", 0);
  CHECK(off.window() == 0);
  CHECK(off.max_tokens() == 257);
  const v1::Session plain = create_unwindowed(server, "bytes");
  for (const unsigned count : {20u, 3u, 60u, 40u}) {
    CAPTURE(count);
    const std::vector<std::int32_t> prompt(count / 2, 7);
    const Sample got = go_on(server, chosen.id(), count, prompt);
    require_same_tokens(got, go_on(server, windowed.id(), count, prompt));
    CHECK(got.finish.window() == 32);
    const Sample of_off = go_on(server, off.id(), count, prompt);
    require_same_tokens(of_off, go_on(server, plain.id(), count, prompt));
    CHECK(of_off.finish.window() == 0);
    CHECK(of_off.finish.window_restarts() == 0);
  }
  v1::GenerateRequest request = request_for("", {1}, 1);
  request.set_session_id(chosen.id());
  request.set_window(0);
  const grpc::Status refused = generate(server, request).status;
  CHECK(violated_fields(refused) == std::vector<std::string>{"window"});
  request.set_window(32);
  CHECK(generate(server, request).status.ok());
  request.set_session_id(off.id());
  request.set_window(0);
  CHECK(generate(server, request).status.ok());
}

TEST_CASE("restarts of a session's calls add up to those of one call") {
  TestServer server({"text"});
  const Sample whole = generate(server, text_request("text", 10, 200)).only();
  const v1::Session session = create_unwindowed(server, "text");
  std::int64_t restarts = 0;
  std::string prompt = text_request("text", 10, 0).prompt().text();
  for (const unsigned count : {5u, 1u, 17u, 77u, 100u}) {
    const Sample part = go_on(server, session.id(), count, {prompt.begin(), prompt.end()});
    restarts += part.finish.window_restarts();
    prompt.clear();
  }
  CHECK(restarts == whole.finish.window_restarts());
  CHECK(restarts == (210 - 1 - 32) / 16 + 1);
}

TEST_CASE("initial state: a call that begins with it has its window, if its tokens are there") {
  TestServer server({"bytes", "text"});
  const auto save = [&](const v1::Session& session, const std::string& name) {
    v1::SaveStateRequest request;
    request.set_session_id(session.id());
    request.set_name(name);
    v1::NamedState state;
    grpc::ClientContext context;
    REQUIRE(server.sessions->SaveState(&context, request, &state).ok());
  };
  const std::vector<std::int32_t> prompt(50, 3);
  const v1::Session narrow = create_windowed(server, "text", 16);
  go_on(server, narrow.id(), 1, prompt);
  save(narrow, "narrow");
  const v1::Session chosen = create_unwindowed(server, "text");
  go_on(server, chosen.id(), 1, prompt);
  save(chosen, "chosen");
  const v1::Session plain = create_windowed(server, "text", 0);
  go_on(server, plain.id(), 1, prompt);
  save(plain, "plain");
  for (const auto& [name, window, session] :
       {std::tuple("narrow", 16, narrow), {"chosen", 32, chosen}, {"plain", 0, plain}}) {
    CAPTURE(name);
    v1::GenerateRequest request = text_request("", 0, 60);
    request.clear_prompt();
    request.set_initial_state(name);
    const Sample got = generate(server, request).only();
    CHECK(got.finish.window() == window);
    v1::CreateSessionRequest create;
    create.set_initial_state(name);
    const v1::Session created = create_session(server, create);
    CHECK(created.window() == window);
    require_same_tokens(got, go_on(server, created.id(), 60));
    require_same_tokens(got, go_on(server, session.id(), 60));
  }
}

TEST_CASE("session stored without a window: continues without one, with the same bits",
          "[durable]") {
  StoredServer server([](ServerOptions&) {}, {"bytes", "text"});
  const auto create = [&](const std::string& model, bool is_off) {
    v1::CreateSessionRequest request;
    request.set_model(model);
    request.set_durability(v1::DURABILITY_INPUT);
    if (is_off) request.set_window(0);
    return create_session(*server, request);
  };
  // Sessions of an older server: one without a window, and calls that name none.
  const v1::Session stored = create("text", true);
  const v1::Session plain = create("bytes", false);
  const v1::Session chosen = create("text", false);
  CHECK(chosen.window() == 32);
  const auto call = [&](const v1::Session& session, const std::string& id, std::size_t prompt,
                        bool says_off = false) {
    v1::GenerateRequest request = text_request("", prompt, 60);
    request.set_session_id(session.id());
    request.set_call_id(id);
    if (says_off) request.set_window(0);
    const Generated out = generate(*server, request);
    INFO(out.status.error_message());
    REQUIRE(out.status.ok());
    return out.only();
  };
  const Sample first = call(stored, "a", 50);
  const Sample long_first = call(chosen, "a", 500);
  CHECK(long_first.finish.skipped_tokens() == 500 - long_first.finish.prompt_tokens());
  require_same_tokens(first, call(plain, "a", 50));
  server.restart();
  CHECK(get_session(*server, stored.id()).window() == 0);
  CHECK(get_session(*server, chosen.id()).window() == 32);
  require_same_tokens(call(stored, "a", 50), first);
  require_same_tokens(call(stored, "a", 50, /*says_off=*/true), first);
  require_same_tokens(call(stored, "b", 20), call(plain, "b", 20));
  CHECK(call(stored, "b", 20).finish.window() == 0);
  // A repeated call in a window has the same end.
  call(chosen, "b", 20);
  const Sample original = call(chosen, "c", 500);
  for (int i = 0; i < 2; ++i) {
    CAPTURE(i);
    const Sample repeated = call(chosen, "c", 500);
    require_same_tokens(repeated, original);
    CHECK(repeated.finish.window() == 32);
    CHECK(repeated.finish.window_restarts() == original.finish.window_restarts());
    CHECK(repeated.finish.prompt_tokens() == original.finish.prompt_tokens());
    CHECK(repeated.finish.skipped_tokens() == original.finish.skipped_tokens());
    server.restart();
  }
}

TEST_CASE("call in a window that is repeated from the store: its end is as it was", "[durable]") {
  StoredServer server([](ServerOptions&) {}, {"text"});
  v1::CreateSessionRequest create;
  create.set_model("text");
  create.set_durability(v1::DURABILITY_INPUT);
  const v1::Session session = create_session(*server, create);
  const auto call = [&](const std::string& id, std::size_t prompt) {
    v1::GenerateRequest request = text_request("", prompt, 60);
    request.clear_log2_probs();  // which a store does not have
    request.set_session_id(session.id());
    request.set_call_id(id);
    const Generated out = generate(*server, request);
    INFO(out.status.error_message());
    REQUIRE(out.status.ok());
    return out.only();
  };
  call("a", 10);
  const Sample first = call("b", 300);
  CHECK(first.finish.skipped_tokens() > 200);
  call("c", 5);
  server.restart();
  const Sample repeat = call("b", 300);
  CHECK(repeat.first_position == first.first_position);
  CHECK(repeat.tokens == first.tokens);
  CHECK(repeat.finish.window() == 32);
  CHECK(repeat.finish.window_restarts() == first.finish.window_restarts());
  CHECK(repeat.finish.prompt_tokens() == first.finish.prompt_tokens());
  CHECK(repeat.finish.skipped_tokens() == first.finish.skipped_tokens());
  CHECK(repeat.finish.position() == first.finish.position());
}

}  // namespace
}  // namespace lintel::testing
