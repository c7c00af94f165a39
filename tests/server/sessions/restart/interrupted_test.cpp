// SPDX-License-Identifier: Apache-2.0
// Calls that the server did not live to end, over gRPC: shown, refused, repeated by their call_id.
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

// The tokens in messages of one: more than a connection takes unread.
constexpr unsigned kNewTokens = 8000;

std::unique_ptr<v1::GenerationService::Stub> narrow_stub(TestServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
  return v1::GenerationService::NewStub(grpc::CreateCustomChannel(
      server.server().address(), grpc::InsecureChannelCredentials(), arguments));
}

Generated twin_of(const v1::GenerateRequest& request) {
  TestServer server({"tokens"});
  v1::GenerateRequest same = request;
  same.set_session_id(create_session(server, "tokens").id());
  same.clear_call_id();
  same.clear_from_position();
  return generate(server, same);
}

// A call in progress, whose client reads no further than its first message.
struct Interrupted {
  explicit Interrupted(v1::Durability level)
      : stored([](ServerOptions& options) { options.streaming.outbox_tokens = 40; }),
        session(created(*stored, level)),
        stub(narrow_stub(*stored)),
        request(call_on(session.id(), "the-call", {1, 2, 3}, kNewTokens)) {
    request.set_max_tokens_per_message(1);
    reader = stub->Generate(&context, request);
    REQUIRE(reader->Read(&first));
  }
  ~Interrupted() {
    context.TryCancel();
    if (!over) rest();
  }
  // Reads to its end.
  grpc::Status rest(Generated* got = nullptr) {
    over = true;
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      if (got != nullptr) take_message(message, *got);
    }
    return reader->Finish();
  }

  StoredServer stored;
  const v1::Session session;
  const std::unique_ptr<v1::GenerationService::Stub> stub;
  v1::GenerateRequest request;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  v1::GenerateResponse first;
  bool over = false;
};

TEST_CASE("an interrupted call is shown, and other calls are refused before it") {
  const v1::Durability level = GENERATE(v1::DURABILITY_INPUT, v1::DURABILITY_TOKEN);
  Interrupted f(level);
  const auto server = f.stored.crashed();
  const v1::Session session = get_session(*server, f.session.id());
  REQUIRE(session.has_interrupted());
  CHECK(session.interrupted().call_id() == "the-call");
  CHECK(session.interrupted().start_position() == 0);
  CHECK(session.interrupted().stored_position() >= 0);

  const grpc::Status refused = generate(*server, call_on(session.id(), "another", {1}, 3)).status;
  CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
  CHECK(reason_of(refused) == "CALL_INTERRUPTED");

  const Generated repeated = generate(*server, f.request);
  REQUIRE(repeated.status.ok());
  const Generated twin = twin_of(f.request);
  CHECK(repeated.only().tokens == twin.only().tokens);
  CHECK(repeated.only().log2_probs == twin.only().log2_probs);
  CHECK(repeated.only().first_position == twin.only().first_position);
  CHECK(repeated.only().contiguous);
  CHECK_FALSE(get_session(*server, session.id()).has_interrupted());
  // Once more: the same, of a call that has ended.
  const Generated again = generate(*server, f.request);
  REQUIRE(again.status.ok());
  CHECK(again.only().tokens == twin.only().tokens);
  // From a position on.
  v1::GenerateRequest rest = f.request;
  rest.set_from_position(100);
  const Generated tail = generate(*server, rest);
  REQUIRE(tail.status.ok());
  CHECK(tail.only().first_position == 100);
  CHECK(tail.only().tokens ==
        std::vector(twin.only().tokens.begin() + (100 - twin.only().first_position),
                    twin.only().tokens.end()));
}

TEST_CASE("an interrupted call is given up by a rewind") {
  Interrupted f(v1::DURABILITY_INPUT);
  const auto server = f.stored.crashed();
  v1::Session session;
  REQUIRE(rewind_session(*server, f.session.id(), 0, &session).ok());
  CHECK_FALSE(session.has_interrupted());
  v1::GenerateRequest request = f.request;
  request.set_call_id("another");
  CHECK(generate(*server, request).only().tokens == twin_of(request).only().tokens);
}

TEST_CASE("a session at the level call is as before the interrupted call") {
  Interrupted f(v1::DURABILITY_CALL);
  const auto server = f.stored.crashed();
  const v1::Session session = get_session(*server, f.session.id());
  CHECK_FALSE(session.has_interrupted());
  CHECK(session.position() == 0);
  CHECK(generate(*server, f.request).only().tokens == twin_of(f.request).only().tokens);
}

// A fact about the loss, as a program reads it.
std::string fact_of(const grpc::Status& status, const std::string& name) {
  const auto info = detail_of<google::rpc::ErrorInfo>(status);
  return info ? info->metadata().at(name) : "";
}

TEST_CASE("a client ahead of the store: POSITION_MISMATCH names the position that is kept") {
  Interrupted f(v1::DURABILITY_CALL);
  const auto server = f.stored.crashed();
  v1::GenerateRequest request = call_on(f.session.id(), "another", {1, 2}, 3);
  request.set_expected_position(4);  // of the prompt and a token that came
  const grpc::Status refused = generate(*server, request).status;
  CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
  CHECK(reason_of(refused) == "POSITION_MISMATCH");
  CHECK(fact_of(refused, "position") == "0");
  CHECK(fact_of(refused, "expected_position") == "4");
  CHECK_THAT(refused.error_message(), Catch::Contains("the tokens at positions 0 to 3 are lost"));
  request.set_expected_position(0);
  CHECK(generate(*server, request).status.ok());
  request.set_call_id("a third one");
  request.set_expected_position(3);  // less than there is: nothing is lost, and nothing given up
  CHECK_THAT(generate(*server, request).status.error_message(),
             Catch::Contains("position 5, not at 3") && !Catch::Contains("lost"));
}

TEST_CASE("a client ahead of an interrupted call: the error asks to repeat the call") {
  Interrupted f(GENERATE(v1::DURABILITY_INPUT, v1::DURABILITY_TOKEN));
  const auto server = f.stored.crashed();
  const std::int64_t position = get_session(*server, f.session.id()).position();
  v1::GenerateRequest request = call_on(f.session.id(), "another", {1, 2}, 3);
  request.set_expected_position(position + 9);
  const grpc::Status refused = generate(*server, request).status;
  CHECK(reason_of(refused) == "POSITION_MISMATCH");
  CHECK(fact_of(refused, "position") == std::to_string(position));
  CHECK(fact_of(refused, "start_position") == "0");
  CHECK_THAT(refused.error_message(),
             Catch::Contains("repeat it by its call_id") && !Catch::Contains("lost"));
  CHECK(generate(*server, f.request).only().tokens == twin_of(f.request).only().tokens);
}

TEST_CASE("a server that ends on SIGTERM stores the tokens of its calls") {
  Interrupted f(GENERATE(v1::DURABILITY_INPUT, v1::DURABILITY_TOKEN));
  f.stored->server().drain(std::chrono::milliseconds(1));
  Generated got;
  take_message(f.first, got);
  CHECK(f.rest(&got).error_code() == Code::UNAVAILABLE);
  const std::int64_t seen =
      got.only().first_position + static_cast<std::int64_t>(got.only().tokens.size());
  f.stored.server.reset();
  f.stored.begin();
  // The call resumes where it was.
  v1::GenerateRequest rest = f.request;
  rest.set_from_position(seen);
  const Generated repeated = generate(*f.stored, rest);
  REQUIRE(repeated.status.ok());
  std::vector<std::int32_t> all = got.only().tokens;
  all.insert(all.end(), repeated.only().tokens.begin(), repeated.only().tokens.end());
  CHECK(all == twin_of(f.request).only().tokens);
}

}  // namespace
}  // namespace lintel::testing
