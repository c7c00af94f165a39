// SPDX-License-Identifier: Apache-2.0
// /v1/responses.
#include "server/openai/http/responses.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lintel/v1/response.grpc.pb.h"
#include "server/openai/event_log.h"
#include "server/sessions/storage/sqlite/sqlite_documents.h"
#include "tests/server/openai/http/response_server.h"
#include "tests/server/support/token_file.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

// The events of a stream, each with its name.
std::vector<ojson> response_events(const std::string& body, std::size_t first = 0) {
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
    CHECK(events.back()["sequence_number"] == first + events.size() - 1);
  }
  return events;
}

// The whole events among bytes of a connection.
std::vector<std::string> whole_events(const std::string& bytes) {
  std::vector<std::string> all;
  for (std::size_t at = bytes.find("data: {"); at != std::string::npos;
       at = bytes.find("data: {", at + 1)) {
    const std::size_t end = bytes.find("\n\n", at);
    if (end != std::string::npos) all.push_back(bytes.substr(at, end - at));
  }
  return all;
}

TEST_CASE("responses: a stream has the pieces of the whole response, and the same end") {
  ResponseServer server;
  ojson body = asked_for("Hello", 30);
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
  const std::vector<ojson> events = response_events(reply.body);
  REQUIRE(events.size() > 5);
  CHECK(events.front()["type"] == "response.created");
  CHECK(events.back()["type"] == "response.incomplete");
  std::string joined;
  for (const ojson& event : events) {
    if (event["type"] == "response.output_text.delta") joined += event["delta"];
  }
  const ojson& last = events.back()["response"];
  CHECK(joined == text_of_response(whole));
  CHECK(text_of_response(last) == text_of_response(whole));
  CHECK(last["id"] == events.front()["response"]["id"]);
  CHECK(last["id"] != whole["id"]);
}

TEST_CASE("responses: every route says where a body is not JSON") {
  const ResponseServer server;
  for (const char* const path :
       {"/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"}) {
    INFO(path);
    const HttpReply reply = post(server.port(), path, R"({"model": "m",})");
    CHECK(reply.status == 400);
    const std::string message = ojson::parse(reply.body)["error"]["message"];
    CHECK_THAT(message, Catch::StartsWith("the body is not JSON: "));
    CHECK_THAT(message, Contains("(byte "));
  }
}

TEST_CASE("responses: instructions, tools and formats act as in a chat completion") {
  ResponseServer server;
  ojson body = asked_for("Hello", 30);
  body["instructions"] = "Be brief.";
  const ojson response = server.answered(body);
  CHECK(response["instructions"] == "Be brief.");
  const ojson chat = {
      {"model", "m"},
      {"messages",
       {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hello"}}}},
      {"max_tokens", 30},
      {"seed", 7}};
  const HttpReply same = post(server.port(), "/v1/chat/completions", chat.dump());
  REQUIRE(same.status == 200);
  CHECK(ojson::parse(same.body)["choices"][0]["message"]["content"] == text_of_response(response));
  const HttpReply counted = post(server.port(), "/v1/responses/input_tokens", body.dump());
  CHECK(ojson::parse(counted.body)["input_tokens"] == response["usage"]["input_tokens"]);

  body = asked_for("Weather?", 400);
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
    return server.answered(asked_for(all))["usage"]["input_tokens"].get<int>();
  };
  CHECK(input_tokens(input) > input_tokens("Weather?") + 50);

  body = asked_for("Name a city.", 400);
  body["text"]["format"] = ojson::parse(R"({"type": "json_schema", "name": "city", "strict": true,
      "schema": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1,
      "maximum": 99}}, "required": ["size"], "additionalProperties": false}})");
  CHECK(ojson::parse(text_of_response(server.answered(body)))["size"].get<int>() >= 1);
}

TEST_CASE("responses: stops, special tokens and formats of other servers act as in chats") {
  ResponseServer server;
  const std::string letter = "a";
  const std::int32_t a = llama_text_model()->tokenizer()->encode(letter, {.add_special = false})[0];
  using Said = std::pair<std::string, std::string>;  // with its status
  const auto said = [&](const char* members) {
    ojson body = asked_for("Hello", 20);
    body["logit_bias"] = {{std::to_string(kLlamaEnd), 200}, {std::to_string(a), 100}};
    body.update(ojson::parse(members));
    const ojson response = server.answered(body);
    return Said(text_of_response(response), response["status"]);
  };
  // The end token is what the model says, unless it is kept from it.
  CHECK(said("{}") == Said("", "completed"));
  CHECK(said(R"({"min_tokens": 7})") == Said(std::string(7, 'a'), "completed"));
  CHECK(said(R"({"ignore_eos": true})") == Said("", "incomplete"));
  CHECK(said(R"({"ignore_eos": true, "skip_special_tokens": false, "max_output_tokens": 2})") ==
        Said("<|end_of_text|><|end_of_text|>", "incomplete"));
  const std::string says_a = R"("logit_bias": {")" + std::to_string(a) + R"(": 200})";
  const std::string stops = "{" + says_a + R"(, "stop_token_ids": [)" + std::to_string(a) + "]";
  CHECK(said((stops + "}").c_str()) == Said("", "completed"));
  CHECK(said((stops + R"(, "include_stop_str_in_output": true})").c_str()) ==
        Said("a", "completed"));
  const std::string chosen =
      said(R"({"logit_bias": null, "structured_outputs": {"choice": ["yes", "no"]}})").first;
  CHECK((chosen == "yes" || chosen == "no"));
  CHECK(said(R"({"logit_bias": null, "guided_regex": "ab{3}"})").first == "abbb");
  CHECK(ojson::parse(said(R"({"logit_bias": null, "guided_json": {"const": "x"}})").first) == "x");
}

TEST_CASE("responses: timings come with the end of a response, and stay with it") {
  ResponseServer server;
  ojson body = asked_for("Hello", 12);
  CHECK_FALSE(server.answered(body).contains("timings"));
  body["timings_per_token"] = true;
  const ojson whole = server.answered(body);
  const ojson& usage = whole["usage"];
  CHECK(whole["timings"]["predicted_n"] == 12);
  CHECK(whole["timings"]["predicted_ms"].get<double>() > 0);
  CHECK(whole["timings"]["prompt_n"].get<int>() + whole["timings"]["cache_n"].get<int>() ==
        usage["input_tokens"]);
  const std::string id = whole["id"];
  CHECK(ojson::parse(server.ask("GET", id).body) == whole);
  const auto check_events = [](const std::vector<ojson>& events) {
    CHECK_FALSE(events.front()["response"].contains("timings"));
    CHECK(events.back()["response"]["timings"]["predicted_n"] == 12);
  };
  const std::vector<ojson> again = response_events(server.ask("GET", id + "?stream=true").body);
  check_events(again);
  CHECK(again.back()["response"] == whole);
  body["stream"] = true;
  check_events(response_events(server.create(body).body));
}

TEST_CASE("responses: tools and items that run elsewhere are left out, and a header names them") {
  ResponseServer server;
  ojson body = asked_for(ojson::parse(R"([{"role": "user", "content": "Hello"},
      {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}}])"));
  const ojson plain = server.answered(asked_for("Hello"));
  body["client_metadata"] = {{"session_id", "s"}};
  body["include"] = ojson::array({"reasoning.encrypted_content"});
  body["store"] = false;
  body["tools"] = ojson::parse(R"([{"type": "web_search", "external_web_access": true},
      {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}])");
  const HttpReply reply = server.create(body);
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  CHECK(reply.header("lintel-ignored") ==
        "input=web_search_call, tools=web_search, tools=namespace");
  const ojson response = ojson::parse(reply.body);
  CHECK(response["tools"].empty());
  CHECK(text_of_response(response) == text_of_response(plain));
  CHECK(response["usage"]["input_tokens"] == plain["usage"]["input_tokens"]);
  const HttpReply counted = post(server.port(), "/v1/responses/input_tokens", body.dump());
  CHECK_THAT(counted.header("lintel-ignored"), Contains("tools=web_search"));
  CHECK(server.create(asked_for("Hello")).header("lintel-ignored").empty());
  body["tool_choice"] = {{"type", "web_search"}};
  CHECK(ojson::parse(server.create(body).body)["error"]["param"] == "tool_choice");
}

TEST_CASE(
    "responses: a tool that cannot be compiled is named, also after tools that are left out") {
  ResponseServer server;
  const ojson parameters = ojson::parse(R"({"type": "object",
      "properties": {"city": {"type": "string", "contains": {}}}})");
  const ojson weather = {{"name", "weather"}, {"strict", true}, {"parameters", parameters}};
  ojson flat = {{"type", "function"}};
  flat.update(weather);
  ojson body = asked_for("Hello");
  body["tools"] = ojson::array({{{"type", "web_search"}}, flat});
  ojson chat = {{"messages", ojson::array({{{"role", "user"}, {"content", "Hello"}}})}};
  chat["tools"] = ojson::array({{{"type", "function"}, {"function", {{"name", "other"}}}},
                                {{"type", "function"}, {"function", weather}}});
  for (const HttpReply& reply :
       {server.create(body), post(server.port(), "/v1/chat/completions", chat.dump())}) {
    CHECK(reply.status == 400);
    const ojson error = ojson::parse(reply.body)["error"];
    CHECK(error["code"] == "unsupported_schema");
    CHECK(error["message"] == "tools: weather#/properties/city: contains is not served");
  }
}

TEST_CASE("responses: a custom tool is called with a text of its format, and its result is read") {
  ResponseServer server;
  ojson body = asked_for("Which day?", 400);
  body["tools"] =
      ojson::parse(R"([{"type": "custom", "name": "show_day", "description": "Shows it.",
      "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]{3,6}\n"}}])");
  body["tool_choice"] = {{"type", "custom"}, {"name", "show_day"}};
  body["parallel_tool_calls"] = false;
  const ojson whole = server.answered(body);
  REQUIRE(whole["output"].size() == 1);
  const ojson& call = whole["output"][0];
  CHECK(call["type"] == "custom_tool_call");
  CHECK(call["name"] == "show_day");
  const std::string input = call["input"];
  CHECK(input.size() >= 4);
  CHECK(input.size() <= 7);
  CHECK(input.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == input.size() - 1);

  body["stream"] = true;
  const std::vector<ojson> events = response_events(server.create(body).body);
  std::string joined;
  for (const ojson& event : events) {
    if (event["type"] == "response.custom_tool_call_input.delta") joined += event["delta"];
  }
  CHECK(joined == input);

  // The result goes back, to the response that is stored or with the call itself.
  ojson next = asked_for(ojson::array(
      {{{"type", "custom_tool_call_output"}, {"call_id", call["call_id"]}, {"output", "Monday"}}}));
  next["previous_response_id"] = whole["id"];
  const ojson stored = server.answered(next);
  ojson all = ojson::array({{{"role", "user"}, {"content", "Which day?"}}, call, next["input"][0]});
  const ojson given = server.answered(asked_for(all));
  CHECK(stored["usage"]["input_tokens"] == given["usage"]["input_tokens"]);
  CHECK(text_of_response(stored) == text_of_response(given));
  // The same call of a function is the same prompt.
  all[1] = {{"type", "function_call"},
            {"call_id", call["call_id"]},
            {"name", "show_day"},
            {"arguments", ojson({{"input", input}}).dump()}};
  CHECK(server.answered(asked_for(all))["usage"]["input_tokens"] == given["usage"]["input_tokens"]);
}

TEST_CASE("responses: a regular expression of a custom tool is a whole text, or refused") {
  ResponseServer server;
  const auto asked_with = [](const char* definition) {
    ojson body = asked_for("Which day?", 400);
    body["tools"] = ojson::parse(R"([{"type": "custom", "name": "show_day"}])");
    body["tools"][0]["format"] = {
        {"type", "grammar"}, {"syntax", "regex"}, {"definition", definition}};
    body["parallel_tool_calls"] = false;
    return body;
  };
  ojson body = asked_with("^ab{3}|^ab{3}$");
  body["tool_choice"] = {{"type", "custom"}, {"name", "show_day"}};
  CHECK(server.answered(body)["output"][0]["input"] == "abbb");
  // Too large for an automaton, which is found when the grammar is made.
  const HttpReply large = server.create(asked_with("(?:a|b)*a(?:a|b){60}"));
  CHECK(large.status == 400);
  CHECK_THAT(ojson::parse(large.body)["error"]["message"].get<std::string>(),
             Catch::Matchers::StartsWith("tools: show_day#/properties/input: pattern "));
}

TEST_CASE("responses: a response is continued without input, from one token on") {
  ResponseServer server;
  const ojson first = server.answered(asked_for("Hello", 1));
  CHECK(first["usage"]["output_tokens"] == 1);
  ojson body = asked_for(ojson::array(), 1);
  CHECK(server.create(body).status == 400);
  body["previous_response_id"] = first["id"];
  CHECK(server.answered(body)["usage"]["input_tokens"] > first["usage"]["input_tokens"]);
}

TEST_CASE("responses: thinking_token_budget and text.verbosity act as in a chat completion") {
  ResponseServer server([](ServerOptions& options) {
    std::ofstream(options.models.chat_templates.at(0).path, std::ios::app)
        << "{{ verbosity }}{% if add_generation_prompt %}<think>\n{% endif %}";
  });
  ojson body = asked_for("Hello", 40);
  const ojson free = server.answered(body);
  CHECK(text_of_response(free).empty());
  body["thinking_token_budget"] = 4;
  const ojson ended = server.answered(body);
  CHECK(ended["output"][0]["type"] == "reasoning");
  CHECK_FALSE(text_of_response(ended).empty());
  CHECK(ended["usage"]["output_tokens_details"]["reasoning_tokens"] <= 5);
  body["text"]["verbosity"] = "high";
  CHECK(server.answered(body)["usage"]["input_tokens"] > free["usage"]["input_tokens"]);
}

TEST_CASE(
    "responses: what cannot be served is an error of OpenAI's shape, before the first event") {
  ResponseServer server;
  const auto error_of = [&](const ojson& body, int status) {
    const HttpReply reply = server.create(body);
    CHECK(reply.status == status);
    return ojson::parse(reply.body)["error"];
  };
  ojson body = asked_for("a");
  body["stream"] = true;
  body["temperature"] = -1;
  CHECK(error_of(body, 400)["param"] == "temperature");
  body = asked_for(ojson::array({{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}));
  CHECK_THAT(error_of(body, 400)["message"].get<std::string>(), Contains("input_image"));
  body = asked_for("a");
  body["model"] = "nosuch";
  CHECK(error_of(body, 404)["code"] == "model_not_found");
  body = asked_for("a");
  body["text"]["format"] = ojson::parse(R"({"type": "json_schema", "name": "s", "strict": true,
      "schema": {"type": "object", "contains": {}}})");
  const ojson error = error_of(body, 400);
  CHECK(error["code"] == "unsupported_schema");
  CHECK(error["param"] == "text");
  CHECK(server.create({{"model", "m"}}).status == 400);
  CHECK(post(server.port(), "/v1/responses", "nonsense").status == 400);
}

TEST_CASE(
    "responses: a conversation continues from any of its responses, with or without a store") {
  const bool has_store = GENERATE(false, true);
  CAPTURE(has_store);
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  const HttpReply reply = server.create(asked_for("What is the word?"));
  REQUIRE(reply.status == 200);
  CHECK(reply.header("lintel-durability") == (has_store ? "" : "none"));
  const ojson first = ojson::parse(reply.body);
  ojson body = asked_for("And the next?");
  body["previous_response_id"] = first["id"];
  const ojson second = server.answered(body);
  CHECK(second["previous_response_id"] == first["id"]);
  const ojson branch = server.answered(body);
  CHECK(branch["id"] != second["id"]);
  CHECK(branch["output"][0]["content"] == second["output"][0]["content"]);
  // The whole conversation at once is the same prompt, of which the turn before was read.
  ojson input = ojson::array({{{"role", "user"}, {"content", "What is the word?"}}});
  input.push_back(first["output"][0]);
  input.push_back({{"role", "user"}, {"content", "And the next?"}});
  const ojson whole = server.answered(asked_for(input));
  CHECK(whole["usage"]["input_tokens"] == second["usage"]["input_tokens"]);
  CHECK(whole["output"][0]["content"] == second["output"][0]["content"]);
  CHECK(second["usage"]["input_tokens_details"]["cached_tokens"].get<int>() > 0);

  if (has_store) server.restart();
  const std::string id = second["id"];
  const ojson got = ojson::parse(server.ask("GET", id).body);
  if (has_store) CHECK(got == second);
  CHECK(got["output"] == second["output"]);
  body["previous_response_id"] = id;
  body["input"] = "More.";
  CHECK(server.answered(body)["usage"]["input_tokens"].get<int>() >
        second["usage"]["input_tokens"].get<int>());

  body["previous_response_id"] = "resp_" + std::string(32, '0');
  const HttpReply refused = server.create(body);
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"]["code"] == "previous_response_not_found");
  CHECK(ojson::parse(refused.body)["error"]["param"] == "previous_response_id");
}

TEST_CASE("responses: what is stored is read, listed, repeated as events and deleted") {
  const bool has_store = GENERATE(false, true);
  CAPTURE(has_store);
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  ojson body = asked_for(ojson::parse(R"([{"role": "system", "content": "A"},
      {"role": "user", "content": "B"}, {"role": "assistant", "content": "C"},
      {"role": "user", "content": "D"}])"),
                         20);
  body["stream"] = true;
  const HttpReply reply = server.create(body);
  REQUIRE(reply.status == 200);
  const std::vector<ojson> events = response_events(reply.body);
  const std::string id = events.front()["response"]["id"];

  const HttpReply again = server.ask("GET", id + "?stream=true");
  CHECK(again.body == reply.body);
  body["include"] = {"message.output_text.logprobs"};
  body["top_logprobs"] = 3;
  const HttpReply likely = server.create(body);
  CHECK_THAT(likely.body, Contains("\"top_logprobs\":[{"));
  ojson many = body;
  many["stream"] = false;
  many["top_logprobs"] = 65;
  const HttpReply refused = server.create(many);
  CHECK(refused.status == 400);
  const ojson error = ojson::parse(refused.body)["error"];
  CHECK(error["message"] == "top_logprobs: 65 is more than 64 (--max-top-log2-probs)");
  CHECK(error["param"] == "top_logprobs");
  const std::string id_of_likely = response_events(likely.body).front()["response"]["id"];
  CHECK(server.ask("GET", id_of_likely + "?stream=true").body == likely.body);
  const std::vector<ojson> rest =
      response_events(server.ask("GET", id + "?stream=true&starting_after=5").body, 6);
  CHECK(rest == std::vector<ojson>(events.begin() + 6, events.end()));
  CHECK(server.ask("GET", id + "?stream=true&starting_after=x").status == 400);

  const auto listed = [&](const std::string& query) {
    const HttpReply list = server.ask("GET", id + "/input_items" + query);
    INFO(list.body);
    REQUIRE(list.status == 200);
    return ojson::parse(list.body);
  };
  const ojson all = listed("");
  REQUIRE(all["data"].size() == 4);
  CHECK(all["data"][0]["content"][0]["text"] == "D");  // the last one first
  CHECK(all["has_more"] == false);
  const ojson two = listed("?order=asc&limit=2");
  CHECK(two["data"][1]["content"][0]["text"] == "B");
  CHECK(two["has_more"] == true);
  const ojson next = listed("?order=asc&limit=2&after=" + two["last_id"].get<std::string>());
  CHECK(next["data"][0]["content"][0]["text"] == "C");
  CHECK(server.ask("GET", id + "/input_items?limit=101").status == 400);
  CHECK(server.ask("GET", id + "/input_items?after=nosuch").status == 400);

  // An item of it stands in another request by its id.
  const ojson input = ojson::array({{{"type", "item_reference"}, {"id", two["data"][1]["id"]}}});
  const ojson copied = server.answered(asked_for(input));
  const ojson same = server.answered(asked_for("B"));
  CHECK(copied["usage"]["input_tokens"] == same["usage"]["input_tokens"]);
  CHECK(server.create(asked_for(ojson::array({{{"type", "item_reference"}, {"id", "msg_1"}}})))
            .status == 400);

  const HttpReply deleted = server.ask("DELETE", id);
  CHECK(deleted.body == ojson({{"id", id}, {"object", "response"}, {"deleted", true}}).dump());
  for (const char* const method : {"GET", "DELETE"}) {
    const HttpReply gone = server.ask(method, id);
    CHECK(gone.status == 404);
    CHECK(ojson::parse(gone.body)["error"]["code"] == "response_not_found");
  }
  CHECK(server.ask("GET", "nosuch").status == 404);

  body["store"] = false;
  const std::string unstored = response_events(server.create(body).body).front()["response"]["id"];
  CHECK(server.ask("GET", unstored).status == 404);
}

TEST_CASE("responses: long answers and stored responses are written in pieces", "[threat-86]") {
  const bool has_store = GENERATE(false, true);
  CAPTURE(has_store);
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  const std::string text(200'000, 'y');
  ojson body = asked_for(ojson::array(
      {{{"type", "reasoning"}, {"content", {{{"type", "reasoning_text"}, {"text", text}}}}},
       {{"role", "user"}, {"content", "go"}}}));
  body["text"]["format"] = {{"type", "json_schema"},
                            {"name", "d"},
                            {"schema", {{"type", "object"}, {"description", text}}}};
  const auto read_pieces = [](const HttpReply& reply) {
    CHECK(reply.status == 200);
    CHECK(reply.whole);
    CHECK(reply.body.size() > 200'000);
    CHECK(reply.header("content-length").empty());
    CHECK(reply.header("content-type") == "application/json");
    return ojson::parse(reply.body);
  };
  const ojson whole = read_pieces(server.create(body));
  CHECK(whole["text"]["format"]["schema"]["description"] == text);
  const std::string id = whole["id"];
  CHECK(read_pieces(server.ask("GET", id)) == whole);
  CHECK(read_pieces(server.ask("POST", id + "/cancel", "Content-Length: 0\r\n")) == whole);
  const ojson items = read_pieces(server.ask("GET", id + "/input_items"));
  CHECK(items["data"][1]["content"][0]["text"] == text);
  body["background"] = true;
  CHECK(read_pieces(server.create(body))["status"] == "in_progress");
  // A document of one piece has its length.
  CHECK_FALSE(server.ask("GET", id + "/input_items?limit=1").header("content-length").empty());
}

TEST_CASE("responses: reads of the store are charged while they last", "[threat-86]") {
  ResponseServer server(ResponseServer::store);
  const ojson stored = server.answered(asked_for(ojson::array(
      {{{"type", "reasoning"},
        {"content", std::vector<ojson>(10'000, {{"type", "reasoning_text"}, {"text", "a"}})}},
       {{"role", "user"}, {"content", "go"}}})));
  const std::string id = stored["id"];
  server.options.request_memory_bytes = std::size_t{2} << 20;
  server.restart();
  ojson next = asked_for("next");
  next["previous_response_id"] = id;
  for (const HttpReply& reply : {server.ask("GET", id), server.ask("GET", id + "?stream=true"),
                                 server.ask("GET", id + "/input_items"), server.create(next)}) {
    INFO(reply.body);
    CHECK(reply.status == 400);
    CHECK_THAT(reply.body, Contains("--request-memory"));
  }
  CHECK(server.ask("DELETE", id).status == 200);
}

TEST_CASE("responses: another identity's are as if they were not there", "[threat-82]") {
  const TokenFile tokens;
  ResponseServer server(
      [&](ServerOptions& options) { options.security.auth_tokens = tokens.path; });
  const std::string alice = "Authorization: Bearer token-alice\r\n";
  const std::string bob = "Authorization: Bearer token-bob\r\n";
  const ojson response = server.answered(asked_for("Hello"), alice);
  const std::string id = response["id"];
  CHECK(server.ask("GET", id, alice).status == 200);
  CHECK(server.ask("GET", id, bob).status == 404);
  CHECK(server.ask("GET", id + "/input_items", bob).status == 404);
  CHECK(server.ask("DELETE", id, bob).status == 404);
  CHECK(server.ask("GET", id).status == 401);
  ojson body = asked_for("Hello");
  body["previous_response_id"] = id;
  CHECK(server.create(body, bob).status == 400);
  CHECK(server.create(body, alice).status == 200);
  const ojson input =
      ojson::array({{{"type", "item_reference"}, {"id", response["output"][0]["id"]}}});
  CHECK(server.create(asked_for(input), bob).status == 400);
  CHECK(server.create(asked_for(input), alice).status == 200);
  // The same key of two identities names two responses.
  const std::string key = "Idempotency-Key: k\r\n";
  CHECK(server.answered(asked_for("Hello"), alice + key)["id"] !=
        server.answered(asked_for("Hello"), bob + key)["id"]);
}

TEST_CASE("responses: an identity's stored bytes are bounded, and its own deletions free some",
          "[threat-94]") {
  const bool has_store = GENERATE(false, true);
  CAPTURE(has_store);
  const TokenFile tokens;
  ResponseServer server([&](ServerOptions& options) {
    if (has_store) ResponseServer::store(options);
    options.security.auth_tokens = tokens.path;
    options.durable.identity_stored_bytes = 6000;
  });
  const std::string alice = "Authorization: Bearer token-alice\r\n";
  const std::string bob = "Authorization: Bearer token-bob\r\n";
  std::vector<std::string> ids;
  HttpReply reply;
  for (int i = 0; i < 10; ++i) {
    reply = server.create(asked_for("Hello", 20), alice);
    if (reply.status != 200) break;
    ids.push_back(ojson::parse(reply.body)["id"]);
  }
  CHECK(reply.status == 429);
  CHECK_THAT(reply.body, Contains("6000 bytes") && Contains("--identity-stored"));
  CHECK(reply.header("retry-after") != "");
  REQUIRE(ids.size() >= 2);
  CHECK(server.create(asked_for("Hello", 20), bob).status == 200);
  ojson unstored = asked_for("Hello", 20);
  unstored["store"] = false;
  CHECK(server.create(unstored, alice).status == 200);
  if (has_store) server.restart();
  CHECK(server.create(asked_for("Hello", 20), alice).status == 429);
  CHECK(server.ask("DELETE", ids.front(), alice).status == 200);
  CHECK(server.create(asked_for("Hello", 20), alice).status == 200);
}

// An item that the template does not show: 740 KB as JSON.
ojson dense_reasoning() {
  const ojson part = {{"type", "reasoning_text"}, {"text", ""}};
  return {{"type", "reasoning"},
          {"summary", ojson::array()},
          {"content", std::vector<ojson>(20'000, part)}};
}

TEST_CASE("responses: references count as often as they name an item, within a request's memory",
          "[threat-95]") {
  const bool has_store = GENERATE(false, true);
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  const ojson large = {
      {"type", "reasoning"},
      {"summary", ojson::array()},
      {"content", {{{"type", "reasoning_text"}, {"text", std::string(1'000'000, 'x')}}}}};
  const ojson first = server.answered(asked_for(ojson::array(
      {large, {{"role", "assistant"}, {"content", "A"}}, {{"role", "user"}, {"content", "B"}}})));
  const std::string digits = first["id"].get<std::string>().substr(5);
  const ojson of_large = {{"id", "rs_" + digits + "_in0"}},
              of_small = {{"id", "msg_" + digits + "_in2"}};
  const auto referring = [&](const ojson& reference, std::size_t count) {
    ojson body = asked_for(std::vector<ojson>(count, reference));
    body["store"] = false;
    body["input"].push_back({{"role", "user"}, {"content", "go"}});
    return server.create(body);
  };
  const auto tokens_of = [](const HttpReply& reply) {
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body)["usage"]["input_tokens"].get<int>();
  };
  const int one = tokens_of(referring(of_small, 1));
  const int each = tokens_of(referring(of_small, 2)) - one;
  CHECK(each > 0);
  CHECK(tokens_of(referring(of_small, 200)) == one + 199 * each);
  // Reasoning alone is a message without content.
  tokens_of(referring(of_large, 16));
  const HttpReply refused = referring(of_large, 100);
  CHECK(refused.status == 400);
  CHECK_THAT(refused.body, Contains("input[0].id") && Contains("48 MiB"));
}

TEST_CASE(
    "responses: a conversation beyond its bound is compacted, read and deleted, not continued",
    "[threat-95]") {
  const bool has_store = GENERATE(false, true);
  if (!has_store && !runs_every_case()) return;
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  ojson body = asked_for(ojson::array({dense_reasoning(),
                                       dense_reasoning(),
                                       dense_reasoning(),
                                       {{"role", "user"}, {"content", "B"}}}));
  HttpReply reply;
  std::vector<std::string> ids;
  for (int turn = 0; turn < 10; ++turn) {
    reply = server.create(body);
    if (reply.status != 200) break;
    ids.push_back(ojson::parse(reply.body)["id"]);
    body["previous_response_id"] = ids.back();
  }
  CHECK(ids.size() == 4);  // of 2.2 MB each
  CHECK(reply.status == 400);
  CHECK_THAT(reply.body, Contains("previous_response_id") && Contains("10485760") &&
                             Contains("/v1/responses/compact"));
  // A shorter turn fits.
  body["input"] = "short";
  CHECK(server.create(body).status == 200);
  const ojson compact = {{"model", "m"}, {"previous_response_id", ids.back()}};
  const HttpReply compacted = post(server.port(), "/v1/responses/compact", compact.dump());
  INFO(compacted.body);
  REQUIRE(compacted.status == 200);
  CHECK(compacted.body.size() < 10'000);
  ojson input = ojson::parse(compacted.body)["output"];
  input.push_back({{"role", "user"}, {"content", "And the next?"}});
  const ojson next = server.answered(asked_for(input));
  ojson same = asked_for("And the next?");
  same["previous_response_id"] = ids.back();
  CHECK(next["usage"]["input_tokens"] == server.answered(same)["usage"]["input_tokens"]);
  for (const std::string& id : ids) {
    CHECK(server.ask("GET", id).status == 200);
    CHECK(server.ask("DELETE", id).status == 200);
  }
}

TEST_CASE("responses: a request is repeated by its Idempotency-Key, also after a restart") {
  ResponseServer server(ResponseServer::store);
  const std::string key = "Idempotency-Key: one\r\n";
  ojson body = asked_for("Hello", 20);
  body.erase("seed");
  const ojson first = server.answered(body, key);
  CHECK(server.answered(body, key) == first);
  CHECK(server.answered(body)["id"] != first["id"]);
  server.restart();
  CHECK(server.answered(body, key) == first);
  body["max_output_tokens"] = 21;
  const HttpReply differs = server.create(body, key);
  CHECK(differs.status == 400);
  CHECK(ojson::parse(differs.body)["error"]["code"] == "idempotency_key_reused");
  CHECK_THAT(ojson::parse(differs.body)["error"]["message"].get<std::string>(),
             Contains("Idempotency-Key"));
  body["stream"] = true;
  const HttpReply streamed = server.create(body, "Idempotency-Key: two\r\n");
  REQUIRE(streamed.status == 200);
  CHECK(server.create(body, "Idempotency-Key: two\r\n").body == streamed.body);
}

TEST_CASE("responses: a stored conversation beyond 48 MiB in memory is compacted", "[threat-95]") {
  ResponseServer server(ResponseServer::store);
  const ojson dense = {{"type", "reasoning"},
                       {"summary", std::vector<ojson>(450'000, ojson::array())}};
  const ojson user = {{"role", "user"}, {"content", "Hello"}};
  std::string last = server.answered(asked_for(ojson::array({dense, user})))["id"];
  // A chain as it could be stored before turns were bounded: 22 MB each.
  server.server.reset();
  {
    SqliteDocuments documents(server.options.durable.store, server.clock);
    Document document;
    REQUIRE(documents.find(last.substr(5), "", std::nullopt, document) == SessionError::kNone);
    for (const char digit : {'a', 'b'}) {
      document.parent = std::exchange(document.id, std::string(32, digit));
      document.version = 0;
      REQUIRE(documents.put(document) == SessionError::kNone);
    }
    last = "resp_" + document.id;
  }
  server.begin();
  ojson body = asked_for("next");
  body["previous_response_id"] = last;
  CHECK(server.create(body).status == 400);
  const ojson compact = {{"model", "m"}, {"previous_response_id", last}};
  const HttpReply reply = post(server.port(), "/v1/responses/compact", compact.dump());
  INFO(reply.body.substr(0, 500));
  REQUIRE(reply.status == 200);
  CHECK(ojson::parse(reply.body)["output"][0]["type"] == "compaction");
  CHECK(server.ask("GET", last).status == 200);
  CHECK(server.ask("DELETE", last).status == 200);
}

TEST_CASE("responses: a compacted conversation continues as it was, for its owner", "[threat-83]") {
  const TokenFile tokens;
  ResponseServer server([&](ServerOptions& options) {
    ResponseServer::store(options);
    options.security.auth_tokens = tokens.path;
  });
  const std::string alice = "Authorization: Bearer token-alice\r\n";
  const ojson first = server.answered(asked_for("What is the word?"), alice);
  ojson body = asked_for("And the next?");
  body["previous_response_id"] = first["id"];
  const ojson second = server.answered(body, alice);

  const ojson compact = {{"model", "m"}, {"previous_response_id", first["id"]}};
  const HttpReply reply =
      post(server.port(), "/v1/responses/compact", compact.dump(), "application/json", alice);
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const ojson compacted = ojson::parse(reply.body);
  CHECK(compacted["object"] == "response.compaction");
  REQUIRE(compacted["output"].size() == 1);
  CHECK(compacted["output"][0]["type"] == "compaction");
  server.restart();
  ojson input = compacted["output"];
  input.push_back({{"role", "user"}, {"content", "And the next?"}});
  const ojson same = server.answered(asked_for(input), alice);
  CHECK(same["usage"]["input_tokens"] == second["usage"]["input_tokens"]);
  CHECK(same["output"][0]["content"] == second["output"][0]["content"]);

  const HttpReply refused = server.create(asked_for(input), "Authorization: Bearer token-bob\r\n");
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"]["code"] == "invalid_encrypted_content");
}

TEST_CASE("responses: one that was cut off is repeated with the same events") {
  const bool has_store = GENERATE(false, true);
  CAPTURE(has_store);
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  const int most = runs_every_case() ? 30'000 : 12'000;
  ojson body = asked_for("Hello", most);
  body.erase("seed");
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  body["stream"] = true;
  const std::string key = "Idempotency-Key: one\r\n";
  std::string seen;
  {
    HttpClient client(plain_wire(server.port(), 8192));
    client.send(post_text("/v1/responses", body.dump(), "application/json", key));
    seen = client.read_raw(30'000);
  }
  const std::size_t at = seen.find("resp_");
  REQUIRE(at != std::string::npos);
  const std::string id = seen.substr(at, 37);
  const auto status = [&] { return ojson::parse(server.ask("GET", id).body).value("status", ""); };
  REQUIRE(eventually([&] { return status() == "cancelled"; }));
  if (has_store) server.restart();
  const HttpReply again = server.create(body, key);
  REQUIRE(again.status == 200);
  const std::vector<std::string> cut = whole_events(seen), whole = whole_events(again.body);
  REQUIRE(cut.size() > 50);
  REQUIRE(whole.size() > cut.size());
  CHECK(std::equal(cut.begin(), cut.end(), whole.begin()));
  CHECK(response_events(again.body).back()["response"]["usage"]["output_tokens"] == most);
  CHECK(status() == "incomplete");
}

TEST_CASE("responses: one in the background continues without its client") {
  const bool has_store = GENERATE(false, true);
  CAPTURE(has_store);
  ResponseServer server(has_store ? ResponseServer::store : [](ServerOptions&) {});
  ojson body = asked_for("Hello", 2000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  const ojson whole = server.answered(body);
  body["background"] = true;
  const auto text_when_over = [&](const std::string& id) {
    ojson found;
    REQUIRE(eventually([&] {
      found = ojson::parse(server.ask("GET", id).body);
      return found["status"] != "in_progress";
    }));
    CHECK(found["status"] == "incomplete");
    return text_of_response(found);
  };
  const ojson first = server.answered(body);
  CHECK(first["status"] == "in_progress");
  // Another client follows it, and has the events that come again later.
  const std::string followed = first["id"].get<std::string>() + "?stream=true&starting_after=1";
  const HttpReply live = server.ask("GET", followed);
  CHECK(live.status == 200);
  CHECK(response_events(live.body, 2).back()["type"] == "response.incomplete");
  CHECK(server.ask("GET", followed).body == live.body);
  CHECK(first["background"] == true);
  CHECK(text_when_over(first["id"]) == text_of_response(whole));
  // A client that leaves its stream.
  body["stream"] = true;
  std::string seen;
  {
    HttpClient client(plain_wire(server.port(), 8192));
    client.send(post_text("/v1/responses", body.dump(), "application/json"));
    seen = client.read_raw(2000);
  }
  const std::string id = seen.substr(seen.find("resp_"), 37);
  CHECK(text_when_over(id) == text_of_response(whole));
}

TEST_CASE("responses: one in the background continues by itself when its server starts again") {
  const TokenFile tokens;
  const bool has_identity = GENERATE(false, true);
  CAPTURE(has_identity);
  ResponseServer server([&](ServerOptions& options) {
    ResponseServer::store(options);
    if (has_identity) options.security.auth_tokens = tokens.path;
  });
  const std::string alice = has_identity ? "Authorization: Bearer token-alice\r\n" : "";
  ojson body = asked_for("Hello", 6000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  const ojson whole = server.answered(body, alice);
  REQUIRE(whole["usage"]["output_tokens"] == 6000);
  body["background"] = true;
  body.erase("seed");
  const ojson seedless = server.answered(body, alice);
  body["seed"] = 7;
  const ojson first = server.answered(body, alice);
  server.restart();
  for (const ojson& interrupted : {first, seedless}) {
    const std::string id = interrupted["id"];
    ojson found;
    REQUIRE(eventually([&] {
      found = ojson::parse(server.ask("GET", id, alice).body);
      REQUIRE((found["status"] == "in_progress" || found["status"] == "incomplete"));
      return found["status"] == "incomplete";
    }));
    CHECK(found["created_at"] == interrupted["created_at"]);
    CHECK(found["usage"]["output_tokens"] == 6000);
    if (interrupted == first) CHECK(text_of_response(found) == text_of_response(whole));
    const HttpReply events = server.ask("GET", id + "?stream=true", alice);
    CHECK(response_events(events.body).back()["response"] == found);
    server.restart();
    CHECK(ojson::parse(server.ask("GET", id, alice).body) == found);
  }
}

TEST_CASE("responses: one in the background that can never be run again has failed") {
  const bool lacks_states = GENERATE(false, true);
  CAPTURE(lacks_states);
  ResponseServer server(ResponseServer::store);
  ojson body = asked_for(std::string(150'000, 'x'), 6000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  body["background"] = true;
  const std::string id = server.answered(body)["id"];
  const ServerOptions usual = server.options;
  if (lacks_states) {
    server.options.sessions.session_memory_bytes = std::size_t{8} << 10;
  } else {
    server.options.request_memory_bytes = std::size_t{128} << 10;
  }
  server.restart();
  const auto is_settled = [&] {
    const SteadyClock clock;
    SqliteDocuments documents(server.options.durable.store, clock);
    return documents.unfinished(10).empty();
  };
  CHECK(eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    server.server.reset();
    const bool is_over = is_settled();
    server.begin();
    return is_over;
  }));
  server.options = usual;
  server.restart();
  const ojson failed = ojson::parse(server.ask("GET", id).body);
  CHECK(failed["status"] == "failed");
  CHECK_THAT(failed["error"]["message"].get<std::string>(),
             Contains(lacks_states ? "--session-memory" : "--request-memory"));
}

TEST_CASE("responses: a follower of a running one is charged for its end at the start",
          "[threat-86]") {
  constexpr int kTokens = 20'000;
  // Six times the most of its text, its deltas and its events; and little more.
  const std::size_t running =
      kTokens * (6 * llama_text_model()->tokenizer()->longest() + 24) + 2 * EventLog::kMostBytes;
  ResponseServer server([=](ServerOptions& options) {
    options.request_memory_bytes = running + (std::size_t{3} << 19);
    options.models.limits.max_new_tokens = 1'000'000'000;
  });
  ojson body = asked_for("Hello", kTokens);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  body["background"] = true;
  const std::string id = server.answered(body)["id"];
  const HttpReply refused = server.ask("GET", id + "?stream=true");
  INFO(refused.body);
  CHECK(refused.status == 429);
  CHECK_FALSE(refused.header("retry-after").empty());
  CHECK_THAT(refused.body, Contains("--request-memory"));
  post(server.port(), "/v1/responses/" + id + "/cancel", "");
  CHECK(eventually([&] { return server.ask("GET", id + "?stream=true").status == 200; }));
}

TEST_CASE("responses: a follower that leaves holds no memory until the end", "[threat-86]") {
  constexpr int kTokens = 20'000;
  const std::size_t text = kTokens * llama_text_model()->tokenizer()->longest();
  const std::size_t follower = 4 * text + 4 * 1024 * 640 + 64 * kTokens;
  ResponseServer server([=](ServerOptions& options) {
    options.request_memory_bytes = 6 * text + 24 * kTokens + 3 * follower / 2 + (1 << 20);
  });
  ojson body = asked_for("Hello", kTokens);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  body["stream"] = true;
  // The stream waits for its client, which reads no more.
  HttpClient client(plain_wire(server.port(), /*receive_buffer=*/4096));
  client.send(post_text("/v1/responses", body.dump(), "application/json"));
  const std::string seen = client.read_raw(2000);
  const std::string path =
      "/v1/responses/" + seen.substr(seen.find("resp_"), 37) + "?stream=true HTTP/1.1\r\n";
  for (int i = 0; i < 3; ++i) {
    CHECK(eventually([&] {
      HttpClient gone(server.port());
      gone.send("GET " + path + "Host: localhost\r\n\r\n");
      return gone.read_raw(12) == "HTTP/1.1 200";
    }));
  }
}

TEST_CASE("responses: a stream begins when its request is accepted, before its first token") {
  // Requests of one caller take no turns: the first keeps its row.
  const TokenFile tokens;
  const std::string alice = "Authorization: Bearer token-alice\r\n";
  ResponseServer server([&](ServerOptions& options) {
    options.security.auth_tokens = tokens.path;
    options.models.scheduling.workers = 1;
    options.models.scheduling.max_batch_rows = 1;
    options.models.scheduling.prefill_rows_per_step = 1;
    options.models.scheduling.max_queued_requests = 1;
    options.models.limits.max_new_tokens = 1'000'000'000;
  });
  ojson body = asked_for("Hello", 1'000'000'000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  body["background"] = true;
  Scheduler& scheduler = server.server->scheduler("m");
  const ojson first = server.answered(body, alice);
  REQUIRE(eventually([&] { return scheduler.stats().running == 1; }));
  body = asked_for("Hello", 20);
  body["stream"] = true;
  HttpClient client(server.port());
  client.send(
      post_text("/v1/responses", body.dump(), "application/json", alice + "Connection: close\r\n"));
  std::string seen;
  while (whole_events(seen).size() < 2) seen += client.read_raw(1);
  CHECK(scheduler.stats().queued == 1);
  const std::vector<std::string> events = whole_events(seen);
  CHECK_THAT(events[0], Contains("response.created") && Contains("\"sequence_number\":0"));
  CHECK_THAT(events[1], Contains("response.in_progress") && Contains("\"sequence_number\":1"));
  // A refused request has no event, also in the background.
  for (const bool is_background : {false, true}) {
    body["background"] = is_background;
    const HttpReply refused = server.create(body, alice);
    CHECK(refused.status == 429);
    CHECK(ojson::parse(refused.body).contains("error"));
  }
  post(server.port(), "/v1/responses/" + first["id"].get<std::string>() + "/cancel", "",
       "application/json", alice);
  for (std::string more; !(more = client.read_raw(1 << 20)).empty();) seen += more;
  CHECK_THAT(seen, Contains("event: response.incomplete") && Contains("data: [DONE]"));
}

TEST_CASE("responses: over gRPC they are the same") {
  ResponseServer server;
  const auto stub = v1::ResponseService::NewStub(server.server->channel());
  ojson body = asked_for("Hello", 20);
  const ojson whole = server.answered(body);
  for (const bool streams : {false, true}) {
    body["stream"] = streams;
    v1::CreateResponseRequest request;
    request.set_body(body.dump());
    grpc::ClientContext context;
    const auto reader = stub->Create(&context, request);
    v1::ResponseEvents message;
    int events = 0;
    while (reader->Read(&message)) events += message.events_size();
    REQUIRE(reader->Finish().ok());
    CHECK((events > 5) == streams);
    const ojson response = ojson::parse(message.response());
    CHECK(text_of_response(response) == text_of_response(whole));
    v1::GetResponseRequest get;
    get.set_id(response["id"]);
    v1::ResponseJson got;
    grpc::ClientContext again;
    REQUIRE(stub->Get(&again, get, &got).ok());
    CHECK(got.body() == message.response());
  }
}

TEST_CASE("responses: a running one is cancelled, and keeps what it had") {
  ResponseServer server(
      [](ServerOptions& options) { options.models.limits.max_new_tokens = 1'000'000'000; });
  ojson body = asked_for("Hello", 1'000'000'000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};  // it does not end by itself
  body["stream"] = true;
  HttpClient client(server.port());
  client.send(post_text("/v1/responses", body.dump(), "application/json", "Connection: close\r\n"));
  const std::string head = client.read_raw(1000);
  const std::size_t at = head.find("resp_");
  REQUIRE(at != std::string::npos);
  const std::string id = head.substr(at, 37);
  CHECK(ojson::parse(server.ask("GET", id).body)["status"] == "in_progress");
  body["previous_response_id"] = id;
  CHECK(server.create(body).status == 400);
  const HttpReply cancelled =
      post(server.port(), "/v1/responses/" + id + "/cancel", "", "application/json");
  INFO(cancelled.body);
  REQUIRE(cancelled.status == 200);
  CHECK(ojson::parse(cancelled.body)["status"] == "cancelled");
  CHECK(ojson::parse(server.ask("GET", id).body)["status"] == "cancelled");
  // Also where its client reads so slowly that nothing is drawn: it has what it had when that
  // reads.
  std::string rest;
  for (std::string more; !(more = client.read_raw(1 << 20)).empty();) rest = std::move(more);
  CHECK_THAT(rest, Contains("data: [DONE]"));
  const HttpReply ended = server.ask("GET", id);
  CHECK_FALSE(ojson::parse(ended.body)["output"].empty());
  CHECK(post(server.port(), "/v1/responses/" + id + "/cancel", "").body == ended.body);
}

}  // namespace
}  // namespace lintel::testing
