// SPDX-License-Identifier: Apache-2.0
// /v1/responses.
#include "server/http/openai/responses.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/support/http_client.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using ojson = nlohmann::ordered_json;

// A model with Llama's tokens, which have an end, and a template that shows tools.
struct ResponseServer : TestServer {
  explicit ResponseServer(const TemporaryDirectory& files = TemporaryDirectory())
      : TestServer(options_with(files), clock(), {{"m", llama_text_model()}}) {}

  static const Clock& clock() {
    static const SteadyClock steady;
    return steady;
  }
  static ServerOptions options_with(const TemporaryDirectory& files) {
    const auto path = files.path() / "chat.jinja";
    std::ifstream golden(std::filesystem::path(LINTEL_TEST_DATA) /
                         "golden/chat/templates/qwen2_5.json");
    std::ofstream(path) << ojson::parse(golden)["template"].get<std::string>();
    ServerOptions options = with_http();
    options.models.chat_templates = {{"m", path}};
    return options;
  }
  HttpReply create(const ojson& body, const std::string& headers = "") {
    return post(server().http_port(), "/v1/responses", body.dump(), "application/json", headers);
  }
  ojson answered(const ojson& body) {
    const HttpReply reply = create(body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  }
};

ojson question(const ojson& input, int max_tokens = 16) {
  return {{"model", "m"}, {"input", input}, {"max_output_tokens", max_tokens}, {"seed", 7}};
}

// The events of a stream, each with its name.
std::vector<ojson> events_of(const std::string& body) {
  std::vector<ojson> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = body.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string text = body.substr(at, end - at);
    at = end + 2;
    if (text == "data: [DONE]") {
      CHECK(at == body.size());
      break;
    }
    const std::size_t line = text.find("\ndata: ");
    REQUIRE(line != std::string::npos);
    events.push_back(ojson::parse(text.substr(line + 7)));
    CHECK(text.substr(0, line) == "event: " + events.back()["type"].get<std::string>());
    CHECK(events.back()["sequence_number"] == events.size() - 1);
  }
  return events;
}

std::string text_of(const ojson& response) {
  std::string text;
  for (const ojson& item : response["output"]) {
    if (item["type"] == "message") text += item["content"][0]["text"];
  }
  return text;
}

TEST_CASE("responses: a stream has the pieces of the whole response, and the same end") {
  ResponseServer server;
  ojson body = question("Hello", 30);
  const ojson whole = server.answered(body);
  CHECK(whole["object"] == "response");
  CHECK(whole["status"] == "incomplete");
  CHECK(whole["incomplete_details"]["reason"] == "max_output_tokens");
  CHECK(whole["usage"]["output_tokens"] == 30);
  CHECK_THAT(whole["id"].get<std::string>(), Catch::StartsWith("resp_"));
  CHECK(whole["id"].get<std::string>().size() == 37);

  body["stream"] = true;
  const HttpReply reply = server.create(body);
  REQUIRE(reply.status == 200);
  CHECK_THAT(reply.header("content-type"), Contains("text/event-stream"));
  CHECK_THAT(reply.body, Catch::EndsWith("data: [DONE]\n\n"));
  const std::vector<ojson> events = events_of(reply.body);
  REQUIRE(events.size() > 5);
  CHECK(events.front()["type"] == "response.created");
  CHECK(events.back()["type"] == "response.incomplete");
  std::string joined;
  for (const ojson& event : events) {
    if (event["type"] == "response.output_text.delta") joined += event["delta"];
  }
  const ojson& last = events.back()["response"];
  CHECK(joined == text_of(whole));
  CHECK(text_of(last) == text_of(whole));
  CHECK(last["id"] == events.front()["response"]["id"]);
  CHECK(last["id"] != whole["id"]);
}

TEST_CASE("responses: instructions, tools and formats act as in a chat completion") {
  ResponseServer server;
  ojson body = question("Hello", 30);
  body["instructions"] = "Be brief.";
  const ojson response = server.answered(body);
  CHECK(response["instructions"] == "Be brief.");
  const ojson chat = {
      {"model", "m"},
      {"messages",
       {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hello"}}}},
      {"max_tokens", 30},
      {"seed", 7}};
  const HttpReply same = post(server.server().http_port(), "/v1/chat/completions", chat.dump());
  REQUIRE(same.status == 200);
  CHECK(text_of(response) == ojson::parse(same.body)["choices"][0]["message"]["content"]);
  const HttpReply counted =
      post(server.server().http_port(), "/v1/responses/input_tokens", body.dump());
  CHECK(ojson::parse(counted.body)["input_tokens"] == response["usage"]["input_tokens"]);

  body = question("Weather?", 400);
  body["tools"] = ojson::parse(R"([{"type": "function", "name": "get_weather", "strict": true,
      "parameters": {"type": "object", "properties": {"place": {"type": "string", "maxLength": 6}},
                     "required": ["place"], "additionalProperties": false}}])");
  body["tool_choice"] = {{"type", "function"}, {"name", "get_weather"}};
  body["parallel_tool_calls"] = false;
  const ojson call = server.answered(body);
  REQUIRE(call["output"].size() == 1);
  CHECK(call["output"][0]["type"] == "function_call");
  CHECK(call["output"][0]["name"] == "get_weather");
  CHECK(ojson::parse(call["output"][0]["arguments"].get<std::string>())["place"].is_string());
  CHECK(call["status"] == "completed");
  // The result goes back, and the conversation continues.
  ojson input = ojson::array({{{"role", "user"}, {"content", "Weather?"}}, call["output"][0]});
  input.push_back({{"type", "function_call_output"},
                   {"call_id", call["output"][0]["call_id"]},
                   {"output", "sunny"}});
  const auto input_tokens = [&](const ojson& all) {
    return server.answered(question(all))["usage"]["input_tokens"].get<int>();
  };
  CHECK(input_tokens(input) > input_tokens("Weather?") + 50);

  body = question("Name a city.", 400);
  body["text"]["format"] = ojson::parse(R"({"type": "json_schema", "name": "city", "strict": true,
      "schema": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1,
      "maximum": 99}}, "required": ["size"], "additionalProperties": false}})");
  CHECK(ojson::parse(text_of(server.answered(body)))["size"].get<int>() >= 1);
}

TEST_CASE(
    "responses: what cannot be served is an error of OpenAI's shape, before the first event") {
  ResponseServer server;
  const auto error_of = [&](const ojson& body, int status) {
    const HttpReply reply = server.create(body);
    CHECK(reply.status == status);
    return ojson::parse(reply.body)["error"];
  };
  ojson body = question("a");
  body["stream"] = true;
  body["temperature"] = -1;
  CHECK(error_of(body, 400)["param"] == "temperature");
  body = question(ojson::array({{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}));
  CHECK_THAT(error_of(body, 400)["message"].get<std::string>(), Contains("input_image"));
  body = question("a");
  body["model"] = "nosuch";
  CHECK(error_of(body, 404)["code"] == "model_not_found");
  body = question("a");
  body["text"]["format"] = ojson::parse(R"({"type": "json_schema", "name": "s", "strict": true,
      "schema": {"type": "object", "not": {}}})");
  const ojson error = error_of(body, 400);
  CHECK(error["code"] == "unsupported_schema");
  CHECK(error["param"] == "text");
  CHECK(server.create({{"model", "m"}}).status == 400);
  CHECK(post(server.server().http_port(), "/v1/responses", "nonsense").status == 400);
}

}  // namespace
}  // namespace lintel::testing
