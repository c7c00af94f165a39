// SPDX-License-Identifier: Apache-2.0
// What requests over HTTP and gRPC hold, within --request-memory.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lintel/v1/chat.grpc.pb.h"
#include "tests/server/openai/http/response_server.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

constexpr std::size_t kMiB = std::size_t{1} << 20;

ResponseServer server_with(std::size_t request_memory) {
  return ResponseServer(
      [=](ServerOptions& options) { options.request_memory_bytes = request_memory; });
}

ojson chat_of(const std::string& text) {
  return {{"model", "m"}, {"max_tokens", 4}, {"messages", {{{"role", "user"}, {"content", text}}}}};
}

HttpReply chat(const ResponseServer& server, const ojson& body) {
  return post(server.port(), "/v1/chat/completions", body.dump());
}

TEST_CASE("request memory: what can never fit is 400 with the limit and its flag, and runs nothing",
          "[threat-86]") {
  const ResponseServer server = server_with(2 * kMiB);
  const std::string bytes = std::to_string(2 * kMiB);
  ojson body = chat_of("Hi");
  body["n"] = 4;
  body["max_tokens"] = 1'000'000;
  const auto check = [&](const HttpReply& reply, const std::string& param) {
    INFO(reply.body);
    CHECK(reply.status == 400);
    const ojson error = ojson::parse(reply.body)["error"];
    CHECK(error["param"] == param);
    CHECK_THAT(error["message"].get<std::string>(), Contains(bytes + " of --request-memory"));
  };
  check(chat(server, body), "max_tokens");
  // A stream keeps no answer.
  body["stream"] = true;
  body["max_tokens"] = 4;
  CHECK(chat(server, body).status == 200);
  check(post(server.port(), "/v1/completions",
             ojson{{"model", "m"}, {"prompt", "Hi"}, {"max_tokens", 1'000'000}, {"n", 4}}.dump()),
        "max_tokens");
  check(server.create({{"model", "m"}, {"input", "Hi"}, {"max_output_tokens", 1'000'000}}),
        "max_output_tokens");
  check(chat(server, chat_of(std::string(kMiB, 'x'))), "messages");
  check(server.create({{"model", "m"}, {"input", std::string(kMiB, 'x')}}), "input");
  // Nothing of them is held: each of these needs most of the memory.
  for (int i = 0; i < 3; ++i) {
    const HttpReply reply = chat(server, chat_of(std::string(100'000, 'x')));
    INFO(reply.body);
    CHECK(reply.status == 200);
  }
}

TEST_CASE("request memory: what others hold is 429 with a time to retry", "[threat-86]") {
  const ResponseServer server = server_with(kMiB);
  // One that is held by its client, who reads nothing.
  ojson long_chat = chat_of(std::string(40'000, 'x'));
  long_chat["stream"] = true;
  long_chat["max_tokens"] = 60'000;
  auto holder = std::make_unique<HttpClient>(plain_wire(server.port(), /*receive_buffer=*/4096));
  holder->send(post_text("/v1/chat/completions", long_chat.dump(), "application/json"));
  CHECK(holder->read_raw(12) == "HTTP/1.1 200");
  const ojson other = chat_of(std::string(50'000, 'y'));
  std::vector<HttpReply> replies;
  CHECK(eventually([&] {
    replies.push_back(chat(server, other));
    return replies.back().status == 429;
  }));
  INFO(replies.back().body);
  CHECK_FALSE(replies.back().header("retry-after").empty());
  CHECK_THAT(replies.back().body, Contains("--request-memory"));
  // The memory is free when the one that holds it ends.
  holder.reset();
  CHECK(eventually([&] { return chat(server, other).status == 200; }));
}

TEST_CASE("request memory: long bodies of one caller wait for their turn as texts", "[threat-86]") {
  // The tree of one takes 640 KB and more, so that all of them together never fit.
  const ResponseServer server = server_with(8 * kMiB);
  ojson body = chat_of("Hi");
  body["messages"][0]["x"] = std::vector<int>(40'000, 0);
  std::vector<int> statuses(16);
  std::vector<std::thread> clients;
  for (int& status : statuses) {
    clients.emplace_back([&] { status = chat(server, body).status; });
  }
  for (std::thread& client : clients) client.join();
  CHECK(std::ranges::count(statuses, 200) == std::ssize(statuses));
}

TEST_CASE("request memory: prompts of one completion are all charged before the first runs",
          "[threat-86]") {
  const ResponseServer server = server_with(2 * kMiB);
  const std::string long_prompt(60'000, 'x');
  const auto body_of = [](const std::vector<std::string>& prompts, int max_tokens) {
    return ojson{{"model", "m"},
                 {"prompt", prompts},
                 {"max_tokens", max_tokens},
                 {"logit_bias", {{std::to_string(kLlamaEnd), -100}}},
                 {"stream", true}}
        .dump();
  };
  // Memory for the second is not there: the first does not run.
  const HttpReply refused =
      post(server.port(), "/v1/completions", body_of({"a", std::string(600'000, 'x')}, 2));
  INFO(refused.body);
  CHECK(refused.status == 400);
  CHECK_THAT(refused.body, Contains("--request-memory"));
  // The first waits for its client, who reads nothing, while others take the memory.
  HttpClient client(plain_wire(server.port(), /*receive_buffer=*/4096));
  client.send(post_text("/v1/completions", body_of({"a", long_prompt}, 20'000), "application/json",
                        "Connection: close\r\n"));
  std::string seen = client.read_raw(12);
  CHECK(seen == "HTTP/1.1 200");
  std::vector<std::unique_ptr<HttpClient>> holders;
  HttpReply reply;
  CHECK(eventually([&] {
    auto& holder = holders.emplace_back(
        std::make_unique<HttpClient>(plain_wire(server.port(), /*receive_buffer=*/4096)));
    holder->send(post_text("/v1/completions", body_of({long_prompt}, 20'000), "application/json"));
    return holder->read_raw(12) == "HTTP/1.1 429";
  }));
  for (std::string more; !(more = client.read_raw(1 << 20)).empty();) seen += more;
  CHECK_THAT(seen, Contains("\"index\":1,") && Contains("data: [DONE]") && !Contains("\"error\""));
}

TEST_CASE("request memory: a long answer is written in pieces, each choice with its numbers") {
  const ResponseServer server = server_with(512 * kMiB);
  ojson body = chat_of("Hi");
  body["n"] = 2;
  body["max_tokens"] = 300;
  body["logprobs"] = true;
  body["top_logprobs"] = 20;
  body["seed"] = 3;
  const HttpReply reply = chat(server, body);
  REQUIRE(reply.status == 200);
  CHECK(reply.whole);
  const ojson choices = ojson::parse(reply.body)["choices"];
  REQUIRE(choices.size() == 2);
  std::string content;
  for (const ojson& choice : choices) {
    content.clear();
    for (const ojson& token : choice["logprobs"]["content"]) {
      CHECK(token["top_logprobs"].size() == 20);
      for (const ojson& byte : token["bytes"]) content += static_cast<char>(byte.get<int>());
    }
  }
  // A document of one piece has its length.
  body["max_tokens"] = 2;
  CHECK_FALSE(chat(server, body).header("content-length").empty());
  const bool is_long = reply.body.size() > 64 * 1024;
  CHECK(is_long == reply.header("content-length").empty());
}

TEST_CASE("request memory: over gRPC a call is refused by the same account", "[threat-86]") {
  const ResponseServer server = server_with(kMiB);
  v1::GenerateRequest request;
  request.set_model("m");
  for (int i = 0; i < 300'000; ++i) request.mutable_prompt()->mutable_tokens()->add_ids(3);
  request.set_max_new_tokens(1);
  const Generated refused = generate(*server.server, request);
  CHECK(refused.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(refused.status.error_message(), Contains("--request-memory"));
  request.mutable_prompt()->mutable_tokens()->mutable_ids()->Truncate(3);
  CHECK(generate(*server.server, request).status.ok());
}

}  // namespace
}  // namespace lintel::testing
