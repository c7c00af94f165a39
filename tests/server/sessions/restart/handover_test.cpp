// SPDX-License-Identifier: Apache-2.0
// lintel-server gets SIGTERM while calls stream: they continue at its successor.
#include <signal.h>

#include "tests/server/sessions/restart/server_process.h"

namespace lintel::testing {
namespace {

// More than the connection and the server hold for a client that does not read; within a history.
constexpr unsigned kNewTokens = 15'000;

// A client that reads nothing more makes the server wait soon.
std::unique_ptr<v1::GenerationService::Stub> narrow_stub_of(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
  return v1::GenerationService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

TEST_CASE("a call that is handed over continues at the next server of the store") {
  const std::string after = GENERATE("0s", "off");
  const Files files;
  const auto flags = [&](const std::string& id) {
    return files.flags({"--drain-handover", after, "--drain-timeout", after == "off" ? "0" : "5m",
                        "--outbox-tokens", "40", "--replica-id", id});
  };
  Generated first;
  v1::GenerateRequest request;
  {
    Server server(flags("one"));
    v1::Session session;
    REQUIRE(server.create(v1::DURABILITY_INPUT, &session).ok());
    CHECK(session.affinity_key().size() == 16);
    request = call_on(session.id(), "the-call", {1, 2, 3}, kNewTokens);
    request.set_max_tokens_per_message(1);
    grpc::ClientContext context;
    const auto stub = narrow_stub_of(server.address);
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse message;
    REQUIRE(reader->Read(&message));
    const auto replica = context.GetServerInitialMetadata().find("lintel-replica");
    REQUIRE(replica != context.GetServerInitialMetadata().end());
    CHECK(replica->second == "one");
    take_message(message, first);
    server.process.send(SIGTERM);
    while (reader->Read(&message)) take_message(message, first);
    first.status = reader->Finish();
    CHECK(server.process.wait() == 0);
  }
  INFO(first.status.error_message());
  CHECK(first.status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(reason_of(first.status) == "CALL_MOVED");
  const auto& had = first.only().tokens;
  REQUIRE(had.size() < kNewTokens);

  Server next(flags("two"));
  request.set_from_position(3 + static_cast<std::int64_t>(had.size()));
  request.set_max_new_tokens(kNewTokens);
  const Generated rest = next.generate(request);
  INFO(rest.status.error_message() << " after " << had.size());
  REQUIRE(rest.status.ok());
  CHECK(rest.only().first_position == request.from_position());
  CHECK(had.size() + rest.only().tokens.size() == kNewTokens);

  v1::Session twin_session;
  REQUIRE(next.create(v1::DURABILITY_NONE, &twin_session).ok());
  v1::GenerateRequest twin = call_on(twin_session.id(), "", {1, 2, 3}, kNewTokens);
  *twin.mutable_sampling() = request.sampling();
  const Generated whole = next.generate(twin);
  REQUIRE(whole.status.ok());
  auto joined = had;
  joined.insert(joined.end(), rest.only().tokens.begin(), rest.only().tokens.end());
  CHECK(joined == whole.only().tokens);
}

}  // namespace
}  // namespace lintel::testing
