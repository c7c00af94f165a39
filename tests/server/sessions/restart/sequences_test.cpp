// SPDX-License-Identifier: Apache-2.0
// Sequences of the Open Inference Protocol that outlive the server.
#include "tests/server/sessions/restart/sequence_calls.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Contains;
using Code = grpc::StatusCode;
using nlohmann::json;

const json kStart = {{"sequence_start", true}};

json with(json parameters, const json& more) {
  parameters.update(more);
  return parameters;
}

// The tokens of an undisturbed sequence.
std::vector<int> undisturbed(const std::vector<int>& prompt, int count) {
  static TestServer server({"tokens"});
  return generate(server, request_for("tokens", prompt, static_cast<unsigned>(count)))
      .only()
      .tokens;
}

std::vector<int> joined(std::vector<int> first, const std::vector<int>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct StoredSequence : StoredServer {
  explicit StoredSequence(const std::function<void(ServerOptions&)>& change = [](auto&) {})
      : StoredServer([&](ServerOptions& with_http) {
          with_http.http.listen = ListenAddress{"127.0.0.1", 0, ""};
          change(with_http);
        }) {}
  // Calls by the one way or the other.
  SequenceReply call(bool rest, const SequenceCall& call, const std::string& who = "") {
    return rest ? generate_over_rest(server->server().http_port(), call, who)
                : infer(server->channel(), call, who);
  }
};

}  // namespace

TEST_CASE("a sequence is found by its name in the next server, and continues with the same bits") {
  const bool rest = GENERATE(false, true);
  StoredSequence stored;
  const SequenceReply first = stored.call(rest, {{1, 2, 3}, 5, kStart});
  INFO(first.error);
  REQUIRE(first.tokens.size() == 5);
  CHECK(first.position == 8);
  stored.restart();
  // A sequence started over one protocol continues over the other.
  const SequenceReply second = stored.call(!rest, {{}, 6});
  INFO(second.error);
  CHECK(joined(first.tokens, second.tokens) == undisturbed({1, 2, 3}, 11));
  CHECK(second.position == 14);
  CHECK(stored.call(rest, {{}, 1, {{"sequence_end", true}}}).tokens.size() == 1);
  const SequenceReply gone = stored.call(rest, {{}, 1});
  CHECK_THAT(gone.error, Contains("no such sequence"));
  CHECK((rest ? gone.http_status == 404 : gone.status.error_code() == Code::NOT_FOUND));
  stored.restart();
  CHECK_THAT(stored.call(rest, {{}, 1}).error, Contains("no such sequence"));
}

TEST_CASE("a sequence that starts again forgets its past, in memory and in the store") {
  StoredSequence stored;
  const json none = {{"sequence_start", true}, {"lintel_durability", "none"}};
  const auto expected = undisturbed({5}, 4);
  for (const json& first : {kStart, none}) {
    for (const json& second : {kStart, none}) {
      REQUIRE(stored.call(false, {{1, 2, 3}, 5, first}).tokens.size() == 5);
      const SequenceReply fresh = stored.call(true, {{5}, 2, second});
      INFO(fresh.error);
      CHECK(joined(fresh.tokens, stored.call(false, {{}, 2}).tokens) == expected);
      v1::ListSessionsResponse list;
      grpc::ClientContext context;
      REQUIRE(stored->sessions->List(&context, {}, &list).ok());
      CHECK(list.sessions_size() == 1);
      CHECK(list.sessions(0).durability() ==
            (second == none ? v1::DURABILITY_NONE : v1::DURABILITY_INPUT));
    }
  }
  stored.restart();
  CHECK_THAT(stored.call(false, {{}, 2}).error, Contains("no such sequence"));
}

TEST_CASE("a call in a sequence has a name, by which it is repeated with the same tokens") {
  const bool rest = GENERATE(false, true);
  StoredSequence stored;
  const SequenceCall start{{1, 2, 3}, 5, with(kStart, {{"lintel_call_id", "one"}})};
  const SequenceCall next{{4}, 6, {{"lintel_call_id", "two"}, {"lintel_expected_position", 8}}};
  const std::vector<int> first = stored.call(rest, start).tokens;
  REQUIRE(first.size() == 5);
  CHECK(stored.call(rest, start).tokens == first);
  const SequenceReply second = stored.call(rest, next);
  INFO(second.error);
  REQUIRE(second.tokens.size() == 6);
  CHECK(second.position == 15);
  const auto repeats = [&] {
    SequenceCall again = next;
    again.parameters.erase("lintel_expected_position");
    CHECK(stored.call(rest, again).tokens == second.tokens);
    // A repeat of an earlier call, and of a start: no sequence restarts.
    CHECK(stored.call(rest, start).tokens == first);
    // Tokens that were seen are not sent again.
    again.parameters["lintel_from_position"] = 12;
    const SequenceReply tail = stored.call(rest, again);
    CHECK(tail.tokens == std::vector<int>(second.tokens.begin() + 3, second.tokens.end()));
    CHECK(tail.position == 15);
  };
  repeats();
  stored.restart();
  repeats();
  const SequenceReply other = stored.call(rest, {{5}, 6, {{"lintel_call_id", "two"}}});
  CHECK_THAT(other.error, Contains("call_id"));
  const SequenceReply behind = stored.call(rest, {{5}, 6, {{"lintel_expected_position", 20}}});
  CHECK_THAT(behind.error, Contains("stands at position 15, not at 20"));
  if (!rest) CHECK(reason_of(behind.status) == "POSITION_MISMATCH");
}

TEST_CASE("a call that was cut off in a sequence is repeated, given up, or forgotten by a start") {
  StoredSequence stored([](ServerOptions& options) { options.streaming.outbox_tokens = 40; });
  REQUIRE(stored.call(false, {{1, 2, 3}, 5, kStart}).tokens.size() == 5);
  // The call sends messages of one token, more than a connection takes unread.
  const SequenceCall cut{{4}, 8000, {{"lintel_call_id", "cut"}}};
  SequenceCall streamed = cut;
  streamed.parameters.update({{"stream", true}, {"max_tokens_per_message", 1}});
  grpc::ClientContext context;
  const auto stub = inference::GRPCInferenceService::NewStub(stored->channel());
  const auto stream = stub->ModelStreamInfer(&context);
  REQUIRE(stream->Write(request_of(streamed)));
  inference::ModelStreamInferResponse message;
  std::vector<int> seen;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(stream->Read(&message));
    INFO(message.error_message());
    seen.push_back(message.infer_response().outputs(0).contents().int_contents(0));
  }
  CHECK(message.infer_response().parameters().at("lintel_position").int64_param() == 12);

  const auto server = stored.crashed();
  const auto infer_there = [&](const SequenceCall& call) { return infer(server->channel(), call); };
  const SequenceReply refused = infer_there({{4}, 3});
  CHECK(reason_of(refused.status) == "CALL_INTERRUPTED");
  // The request ends nothing, for it did not run.
  CHECK(reason_of(infer_there({{4}, 3, {{"sequence_end", true}}}).status) == "CALL_INTERRUPTED");
  SECTION("repeated") {
    SequenceCall whole = cut;
    whole.parameters["lintel_from_position"] = 12;
    const SequenceReply rest = infer_there(whole);
    INFO(rest.error);
    TestServer twin({"tokens"});
    const std::string id = create_session(twin, "tokens").id();
    v1::GenerateRequest request = request_for("", {1, 2, 3}, 5);
    request.set_session_id(id);
    generate(twin, request);
    request = request_for("", {4}, 8000);
    request.set_session_id(id);
    CHECK(joined(seen, rest.tokens) == generate(twin, request).only().tokens);
  }
  SECTION("given up") {
    CHECK(infer_there({{4}, 3, {{"lintel_expected_position", 8}}}).tokens.size() == 3);
  }
  SECTION("forgotten") {
    CHECK(infer_there({{1, 2, 3}, 4, kStart}).tokens == undisturbed({1, 2, 3}, 4));
  }
  context.TryCancel();
}

TEST_CASE("a stored sequence is its owner's: others find none of this name", "[threat-10]") {
  const bool rest = GENERATE(false, true);
  const TokenFile tokens;
  StoredSequence stored(
      [&](ServerOptions& options) { options.security = options_with(tokens).security; });
  REQUIRE(stored.call(rest, {{1, 2, 3}, 5, kStart}, "alice").tokens.size() == 5);
  for (const bool in_memory : {true, false}) {
    if (!in_memory) stored.restart();
    CHECK_THAT(stored.call(rest, {{}, 1}, "bob").error, Contains("no such sequence"));
    CHECK(stored.call(rest, {{}, 1}, "alice").tokens.size() == 1);
  }
  REQUIRE(stored.call(rest, {{5}, 1, kStart}, "bob").tokens.size() == 1);
  CHECK(stored.call(rest, {{}, 1}, "alice").position == 11);
}

TEST_CASE("a durability that a sequence cannot have is refused by name") {
  StoredSequence stored;
  const auto error = [&](const json& parameters) {
    return stored.call(true, {{1}, 1, parameters}).error;
  };
  CHECK_THAT(error(with(kStart, {{"lintel_durability", "forever"}})),
             Contains("parameters[lintel_durability]"));
  CHECK_THAT(error(with(kStart, {{"lintel_durability", "unspecified"}})),
             Contains("parameters[lintel_durability]"));
  CHECK_THAT(error({{"lintel_durability", "call"}}),
             Contains("parameters[lintel_durability]") && Contains("sequence_start"));
  CHECK_THAT(error(with(kStart, {{"lintel_durability", "none"}, {"lintel_call_id", "x"}})),
             Contains("call_id") && Contains("outlive the server"));
  CHECK_THAT(error(with(kStart, {{"lintel_call_id", std::string(65, 'x')}})), Contains("call_id"));
  CHECK_THAT(error(with(kStart, {{"lintel_from_position", 3}})), Contains("from_position"));
  SequenceCall alone{{1}, 1, {{"lintel_call_id", "x"}, {"sequence_id", 0}}};
  CHECK_THAT(stored.call(true, alone).error, Contains("call_id"));
  TestServer without({"tokens"});
  const SequenceReply refused =
      infer(without.channel(), {{1}, 1, with(kStart, {{"lintel_durability", "input"}})});
  CHECK(reason_of(refused.status) == "NO_SESSION_STORE");
  CHECK(infer(without.channel(), {{1}, 1, with(kStart, {{"lintel_durability", "none"}})})
            .status.ok());
}

}  // namespace lintel::testing
