// SPDX-License-Identifier: Apache-2.0
// The token that ends an answer: in its ids, in its usage and in KServe's details.
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/support/http_client.h"
#include "tests/server/support/scripted_model.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

// A server with the model "m", which says "one two three" after a line feed, and ends.
struct EndingServer {
  EndingServer() : server(options_with(files), clock, {{"m", scripted_model(kPieces)}}) {}
  static ServerOptions options_with(const TemporaryDirectory& files) {
    const auto path = files.path() / "chat.jinja";
    std::ofstream(path) << "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    ServerOptions options = with_http();
    options.models.chat_templates = {{"m", path}};
    return options;
  }
  HttpReply send(const std::string& path, const ojson& body) {
    HttpReply reply = post(server.server().http_port(), path, body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return reply;
  }

  inline static const std::vector<std::string> kPieces = {"one", " two", " three"};
  const TemporaryDirectory files;
  SteadyClock clock;
  TestServer server;
};

// The ids and the number of tokens of a stream, and what each event counted before its end.
struct StreamedIds {
  explicit StreamedIds(const std::string& body) {
    for (std::size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at) {
      const ojson event = ojson::parse(body.substr(at + 6, body.find("\n\n", at) - at - 6));
      tokens = event["usage"]["completion_tokens"];
      if (event["choices"].empty()) continue;
      for (const ojson& id : event["choices"][0].value("token_ids", ojson::array())) {
        ids.push_back(id);
      }
      CHECK(tokens == ids.size());
    }
  }
  ojson ids = ojson::array();
  std::size_t tokens = 0;
};

TEST_CASE("ids of an answer have the token that ended it, and are as many as the usage counts") {
  EndingServer server;
  const std::pair<const char*, ojson> requests[] = {
      {"/v1/completions", {{"prompt", "say\n"}}},
      {"/v1/chat/completions",
       {{"messages", ojson::array({{{"role", "user"}, {"content", "say"}}})}}}};
  for (const auto& [path, asked] : requests) {
    CAPTURE(path);
    ojson body = asked;
    body.update({{"max_tokens", 20}, {"temperature", 0}, {"return_token_ids", true}});
    const ojson whole = ojson::parse(server.send(path, body).body);
    const ojson ids = whole["choices"][0]["token_ids"];
    CHECK(whole["choices"][0]["finish_reason"] == "stop");
    CHECK(ids.size() == 4);
    CHECK(whole["usage"]["completion_tokens"] == ids.size());
    const ojson named = {{"tokens", ojson::array({ids.back()})}};
    CHECK(ojson::parse(server.send("/detokenize", named).body)["content"] == "<|im_end|>");

    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
    const StreamedIds streamed(server.send(path, body).body);
    CHECK(streamed.ids == ids);
    CHECK(streamed.tokens == ids.size());

    // Part of the output, it is there once.
    body.erase("stream");
    body.erase("stream_options");
    body["include_stop_str_in_output"] = true;
    const ojson included = ojson::parse(server.send(path, body).body);
    CHECK(included["choices"][0]["token_ids"] == ids);
    CHECK(included["usage"]["completion_tokens"] == ids.size());
  }
}

TEST_CASE("ids of a completion have the tokens of an omitted stop text") {
  EndingServer server;
  ojson body = {{"prompt", "say\n"},
                {"max_tokens", 20},
                {"temperature", 0},
                {"return_token_ids", true},
                {"stop", "o three"}};
  const ojson whole = ojson::parse(server.send("/v1/completions", body).body);
  CHECK(whole["choices"][0]["text"] == "one tw");
  CHECK(whole["choices"][0]["token_ids"].size() == 3);
  CHECK(whole["usage"]["completion_tokens"] == 3);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  CHECK(StreamedIds(server.send("/v1/completions", body).body).ids ==
        whole["choices"][0]["token_ids"]);
}

TEST_CASE("details of generate have the token that ended the answer, its text has not") {
  EndingServer server;
  const ojson answer = ojson::parse(
      server
          .send(
              "/v2/models/m/generate",
              {{"text_input", "say\n"}, {"max_tokens", 20}, {"temperature", 0}, {"details", true}})
          .body);
  CHECK(answer["text_output"] == "one two three");
  CHECK(answer["details"]["finish_reason"] == "eos_token");
  const ojson& tokens = answer["details"]["logprobs"];
  REQUIRE(tokens.size() == 4);
  CHECK(tokens[3]["text"] == "<|im_end|>");
  CHECK(tokens[3]["special"] == true);
  CHECK(tokens[3]["logprob"].get<double>() <= 0);
}

}  // namespace
}  // namespace lintel::testing
