// SPDX-License-Identifier: Apache-2.0
// The end of a server while requests run that are costly in every way.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/openai/http/response_server.h"
#include "tests/server/support/http_client.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;

struct CostlyRequest {
  const char* path;
  ojson body;
};

ojson costly_chat(const ojson& more) {
  ojson body = {
      {"model", "m"}, {"max_tokens", 8000}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  body.update(more);
  return body;
}

CostlyRequest costly_request(const std::string& kind) {
  constexpr const char* kChat = "/v1/chat/completions";
  if (kind == "log-probabilities") {
    return {kChat, costly_chat({{"n", 8}, {"logprobs", true}, {"top_logprobs", 20}})};
  }
  if (kind == "grammar") {
    return {kChat, costly_chat({{"grammar", "root ::= (. root root)* | \"bc\""}, {"n", 4}})};
  }
  if (kind == "schema") {
    const ojson branches(std::vector<ojson>(2000, {{"anyOf", {true}}}));
    const ojson format = {{"name", "x"}, {"schema", {{"allOf", branches}}}};
    return {kChat,
            costly_chat({{"response_format", {{"type", "json_schema"}, {"json_schema", format}}}})};
  }
  if (kind == "large body") {
    ojson body = costly_chat({{"stream", true}});
    body["messages"][0]["x"] = std::vector<ojson>(400'000, ojson::array());
    return {kChat, body};
  }
  ojson response = asked_for("Hi", 8000);
  response["background"] = true;
  return {"/v1/responses", response};
}

TEST_CASE("drain: it ends soon after its timeout while costly requests run") {
  const std::string kind =
      GENERATE("log-probabilities", "grammar", "schema", "large body", "background");
  INFO(kind);
  ResponseServer server;
  const CostlyRequest request = costly_request(kind);
  const std::string body = request.body.dump();
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&, port = server.port()] {
      try {
        post(port, request.path, body);
      } catch (const std::exception&) {  // the server is gone
      }
    });
  }
  std::this_thread::sleep_for(milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  server.server->server().drain(milliseconds(300));
  server.server.reset();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  for (std::thread& client : clients) client.join();
  CHECK(taken.count() < 5);
}

TEST_CASE("drain: a stream that is not read does not outlast the timeout") {
  ResponseServer server;
  const std::string body =
      costly_chat({{"stream", true}, {"n", 8}, {"logprobs", true}, {"top_logprobs", 20}}).dump();
  HttpClient client(server.port());
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  CHECK(client.read_raw(15).find("200 OK") != std::string::npos);
  std::this_thread::sleep_for(milliseconds(500));  // until the connection is full
  const auto begin = std::chrono::steady_clock::now();
  server.server->server().drain(milliseconds(2000));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  CHECK(taken.count() < 3);  // 2 s, and the end of the process's threads
}

TEST_CASE("drain: a stream that is cut ends with an error and no reason to finish, in each API") {
  const auto [path, body] = GENERATE(
      std::pair("/v1/completions", ojson{{"model", "m"},
                                         {"prompt", "a"},
                                         {"max_tokens", 8000},
                                         {"ignore_eos", true},
                                         {"stream", true}}),
      std::pair("/v1/chat/completions", costly_chat({{"ignore_eos", true}, {"stream", true}})));
  CAPTURE(path);
  ResponseServer server;
  HttpClient client(server.port());
  const std::string text = body.dump();
  client.send(std::string("POST ") + path +
              " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
              "Content-Type: application/json\r\nContent-Length: " +
              std::to_string(text.size()) + "\r\n\r\n" + text);
  // Cut at its first bytes: all its tokens take a fast machine a fifth of a second.
  CHECK(client.read_raw(15).find("200 OK") != std::string::npos);
  std::string answer;
  std::thread reader([&] { answer = client.read_raw(std::string::npos); });
  server.server->server().drain(milliseconds(1));
  reader.join();
  CHECK_THAT(answer, Catch::Contains("shutting down"));
  CHECK_THAT(answer, !Catch::Contains("\"finish_reason\":\"length\""));
}

}  // namespace
}  // namespace lintel::testing
