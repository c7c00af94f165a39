// SPDX-License-Identifier: Apache-2.0
// lintel-server with --session-store as a process, for tests that kill it.
#pragma once

#include <signal.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace lintel::testing {

struct Files {
  Files() { write_random_model(model, tiny_config(TinyModel::kTokens), /*seed=*/5); }
  std::vector<std::string> flags(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {
        LINTEL_SERVER_BINARY, "--model", model,       "--listen", "127.0.0.1:0",
        "--session-store",    store,     "--workers", "1"};
    if (std::ranges::find(more, "--http-listen") == more.end()) {
      all.insert(all.end(), {"--http-listen", "off"});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  const TemporaryDirectory directory;
  const std::string model = directory.path() / "tokens";
  const std::string store = directory.path() / "store";
};

// A running server, killed with its object, and a client of it.
struct Server {
  explicit Server(const std::vector<std::string>& flags) : process(flags) {
    std::string line = process.read_out_until("\n");
    line = line.substr(0, line.find('\n'));  // with HTTP a second one may have come
    REQUIRE_THAT(line, Catch::Contains("ready on "));
    address = line.substr(line.rfind(' ') + 1);
    channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    sessions = v1::SessionService::NewStub(channel);
    generation = v1::GenerationService::NewStub(channel);
  }
  grpc::Status create(v1::Durability durability, v1::Session* session) {
    v1::CreateSessionRequest request;
    request.set_durability(durability);
    grpc::ClientContext context;
    return sessions->Create(&context, request, session);
  }
  Generated generate(const v1::GenerateRequest& request) {
    Generated out;
    grpc::ClientContext context;
    const auto reader = generation->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) take_message(message, out);
    out.status = reader->Finish();
    return out;
  }

  // The port of --http-listen.
  int http_port() const {
    std::smatch port;
    REQUIRE(std::regex_search(process.err(), port, std::regex("HTTP on http://[^ ]*:([0-9]+)")));
    return std::stoi(port[1]);
  }

  Process process;
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::SessionService::Stub> sessions;
  std::unique_ptr<v1::GenerationService::Stub> generation;
};

// Facts of a call that its server was killed in.
struct KilledCall {
  v1::Session session;
  std::vector<std::int32_t> expected, seen;  // of its 3,000 tokens, and those that had come
};

// Call "two" on a session with 23 tokens, after one more. The server is killed in the middle.
inline KilledCall kill_in_call(Server& server) {
  KilledCall call;
  v1::Session twin;
  REQUIRE(server.create(v1::DURABILITY_INPUT, &call.session).ok());
  REQUIRE(server.create(v1::DURABILITY_NONE, &twin).ok());
  REQUIRE(server.generate(call_on(call.session.id(), "one", {1, 2, 3}, 20)).status.ok());
  REQUIRE(server.generate(call_on(twin.id(), "", {1, 2, 3}, 20)).status.ok());
  const Generated whole = server.generate(call_on(twin.id(), "", {4}, 3000));
  REQUIRE(whole.status.ok());
  call.expected = whole.only().tokens;
  v1::GenerateRequest request = call_on(call.session.id(), "two", {4}, 3000);
  request.set_max_tokens_per_message(1);
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request);
  v1::GenerateResponse message;
  Generated got;
  for (int i = 0; i < 3 && reader->Read(&message); ++i) take_message(message, got);
  server.process.send(SIGKILL);
  while (reader->Read(&message)) take_message(message, got);
  CHECK_FALSE(reader->Finish().ok());
  call.seen = got.only().tokens;
  REQUIRE(call.seen.size() < call.expected.size());
  CHECK(server.process.wait() == 128 + SIGKILL);
  return call;
}

}  // namespace lintel::testing
