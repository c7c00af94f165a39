// SPDX-License-Identifier: Apache-2.0
// lintel-server killed between and in the calls of a sequence of the Open Inference Protocol.
#include <signal.h>

#include "tests/server/sessions/restart/sequence_calls.h"
#include "tests/server/sessions/restart/server_process.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr int kLongCall = 3000;

void kill_now(Server& server) {
  server.process.send(SIGKILL);
  CHECK(server.process.wait() == 128 + SIGKILL);
}

// The tokens of an undisturbed sequence: a call of 20 tokens, then the long one.
std::vector<int> undisturbed_sequence(Server& server) {
  v1::Session twin;
  REQUIRE(server.create(v1::DURABILITY_NONE, &twin).ok());
  const Generated first = server.generate(call_on(twin.id(), "", {1, 2, 3}, 20));
  const Generated second = server.generate(call_on(twin.id(), "", {4}, kLongCall));
  REQUIRE(second.status.ok());
  std::vector<int> all = first.only().tokens;
  all.insert(all.end(), second.only().tokens.begin(), second.only().tokens.end());
  return all;
}

// The first tokens of a call that is under way when the server is killed.
std::vector<int> begun_over_grpc(Server& server, const SequenceCall& call) {
  grpc::ClientContext context;
  const auto stub = inference::GRPCInferenceService::NewStub(server.channel);
  const auto stream = stub->ModelStreamInfer(&context);
  REQUIRE(stream->Write(request_of(call)));
  inference::ModelStreamInferResponse message;
  std::vector<int> seen;
  for (int i = 0; i < 3 && stream->Read(&message); ++i) {
    INFO(message.error_message());
    for (const int token : message.infer_response().outputs(0).contents().int_contents()) {
      seen.push_back(token);
    }
  }
  kill_now(server);
  while (stream->Read(&message)) {
  }
  CHECK_FALSE(stream->Finish().ok());
  return seen;
}

std::vector<int> begun_over_rest(Server& server, const SequenceCall& call) {
  HttpClient client(server.http_port());
  client.send(
      post_text("/v2/models/tokens/generate_stream", json_of(call).dump(), "application/json"));
  client.read_raw(400);
  kill_now(server);
  return {};
}

}  // namespace

TEST_CASE("a sequence survives a kill -9 between its calls and in one, over gRPC and REST") {
  const bool rest = GENERATE(false, true);
  const Files files;
  const std::vector<std::string> flags = files.flags({"--http-listen", "127.0.0.1:0"});
  const SequenceCall first{{1, 2, 3}, 20, {{"sequence_start", true}, {"lintel_call_id", "first"}}};
  SequenceCall second{
      {4}, kLongCall, {{"lintel_call_id", "second"}, {"max_tokens_per_message", 1}}};
  const auto call = [&](Server& server, const SequenceCall& what) {
    const SequenceReply reply =
        rest ? generate_over_rest(server.http_port(), what) : infer(server.channel, what);
    INFO(reply.error);
    CHECK(reply.error.empty());
    return reply.tokens;
  };
  std::vector<int> expected, all;
  {
    Server server(flags);
    expected = undisturbed_sequence(server);
    all = call(server, first);
    kill_now(server);
  }
  std::vector<int> seen;
  {
    Server server(flags);
    CHECK(call(server, first) == all);  // its answer might have been lost
    SequenceCall streamed = second;
    streamed.parameters["stream"] = true;
    seen = rest ? begun_over_rest(server, streamed) : begun_over_grpc(server, streamed);
  }
  Server server(flags);
  // Position 24 is the first after the prompt.
  second.parameters["lintel_from_position"] = 24 + static_cast<int>(seen.size());
  const std::vector<int> tail = call(server, second);
  all.insert(all.end(), seen.begin(), seen.end());
  all.insert(all.end(), tail.begin(), tail.end());
  CHECK(all.size() == expected.size());
  CHECK(all == expected);
}

}  // namespace lintel::testing
