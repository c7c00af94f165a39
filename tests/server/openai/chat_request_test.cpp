// SPDX-License-Identifier: Apache-2.0
#include "server/openai/chat_request.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Json = nlohmann::ordered_json;
using Catch::Contains;

Json valid() {
  return {{"model", "m"}, {"messages", Json::array({{{"role", "user"}, {"content", "a"}}})}};
}

// Reads a body. Returns what is wrong with it; empty: nothing.
std::string read(const std::string& body, api::ChatParams& params) {
  ChatRequest request;
  read_chat_request(body, "", {}, request);
  params = std::move(request.params);
  return request.status.error_message();
}
std::string wrong_with(const std::string& body) {
  api::ChatParams params;
  return read(body, params);
}
std::string wrong_with(const char* name, const Json& value) {
  Json body = valid();
  body[name] = value;
  return wrong_with(body.dump());
}

TEST_CASE("every member of a chat completion is served, ignored or refused by name") {
  CHECK(wrong_with(valid().dump()).empty());
  for (const char* const name :
       {"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prompt_cache_options"}) {
    CHECK(wrong_with(name, "x").empty());
  }
  for (const char* const name : {"audio", "prediction", "web_search_options", "moderation",
                                 "functions", "function_call", "chat_template"}) {
    CHECK_THAT(wrong_with(name, "x"), Contains(std::string(name) + ": is"));
    CHECK(wrong_with(name, nullptr).empty());  // as if it were not there
  }
  CHECK(wrong_with("modalities", {"text"}).empty());
  CHECK_THAT(wrong_with("modalities", {"text", "audio"}), Contains("modalities"));
  CHECK(wrong_with("response_format", {{"type", "text"}}).empty());
  CHECK(wrong_with("response_format", {{"type", "json_object"}}).empty());
  CHECK(wrong_with("grammar", "root ::= \"a\"").empty());
  CHECK(wrong_with("lintel", {{"tool_grammar", false}, {"cache", false}}).empty());
  CHECK_THAT(wrong_with("lintel", {{"cache", 1}}), Contains("a cache that is not true or false"));
  CHECK_THAT(wrong_with("response_format", {{"type", "xml"}}), Contains("response_format"));
  CHECK_THAT(wrong_with("response_format", {{"type", "json_schema"}}),
             Contains("no json_schema.schema"));
  CHECK_THAT(wrong_with("lintel", {{"no", 1}}), Contains("'no'"));
}

TEST_CASE("a schema's integers beyond 64 bits keep their digits") {
  const std::string schema =
      R"({"type":"integer","minimum":-18446744073709551617,"enum":["a\"",1.5,)"
      R"([340282366920938463463374607431768211457]],"maximum":18446744073709551617})";
  api::ChatParams request;
  const std::string wrong =
      read(R"({"model":"m","messages":[{"role":"user","content":"a"}],"response_format":{)"
           R"("type":"json_schema","json_schema":{"name":"n","schema":)" +
               schema + "}}}",
           request);
  CHECK(wrong.empty());
  CHECK(request.format_text == schema);
}

// The names that a body is read without.
std::string ignored_in(const Json& body) {
  ChatRequest request;
  read_chat_request(body.dump(), "", {}, request);
  INFO(request.status.error_message());
  CHECK(request.status.ok());
  std::string header;
  CHECK(request.ignored.report(/*refuses=*/false, header).ok());
  return header;
}
std::string ignored_with(const char* name, const Json& value) {
  Json body = valid();
  body[name] = value;
  return ignored_in(body);
}

TEST_CASE("members that no row has are ignored and named") {
  CHECK(ignored_in(valid()).empty());
  Json body = valid();
  body["logit_scale"] = 2;
  body["id_slot"] = -1;
  body["nothing"] = nullptr;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"chunks", 3}, {"none", nullptr}};
  CHECK(ignored_in(body) == "logit_scale, id_slot, stream_options.chunks");
  // Members that are read and have no effect are not among them.
  CHECK(ignored_with("user", "a").empty());
}

TEST_CASE("members that change the answer and are not served are refused, but for neutral values") {
  CHECK_THAT(wrong_with("best_of", 2), Contains("best_of: changes the answer and is not served"));
  CHECK(ignored_with("best_of", 1) == "best_of");
  CHECK_THAT(wrong_with("mirostat", 2), Contains("mirostat: changes the answer"));
  CHECK(ignored_with("mirostat", 0) == "mirostat");
  CHECK(ignored_with("typical_p", 1.0) == "typical_p");
  CHECK_THAT(wrong_with("n_predict", 10), Contains("max_tokens is"));
  CHECK_THAT(wrong_with("truncate_prompt_tokens", 10), Contains("changes the answer"));
  CHECK(wrong_with("truncate_prompt_tokens", nullptr).empty());
  for (const char* const name : {"num_predict", "max_new_tokens", "max_length"}) {
    CHECK_THAT(wrong_with(name, 10), Contains("changes the answer") && Contains("max_tokens is"));
    CHECK(ignored_with(name, -1) == name);
  }
  for (const char* const name : {"min_new_tokens", "min_length"}) {
    CHECK_THAT(wrong_with(name, 10), Contains("min_tokens is"));
  }
  CHECK_THAT(wrong_with("stop_sequences", {"x"}), Contains(": stop is"));
  CHECK_THAT(wrong_with("lora_path", "a"), Contains("adapter is"));
  CHECK_THAT(wrong_with("ignore_eos_token", true), Contains("ignore_eos is"));
  CHECK_THAT(wrong_with("custom_logit_processor", "f"), Contains("changes the answer"));
  // A member in its place is named where it is served.
  CHECK(wrong_with("return_full_text", true) ==
        "return_full_text: changes the answer and is not served");
}

TEST_CASE("a slip in a name is refused with the name that it is for") {
  CHECK(wrong_with("temprature", 1) ==
        "temprature: is not a parameter of this server: did you mean temperature?");
  CHECK_THAT(wrong_with("max_token", 1), Contains("did you mean max_tokens?"));
  CHECK_THAT(wrong_with("stream_options", {{"inclde_usage", true}}),
             Contains("did you mean include_usage?"));
  CHECK_THAT(wrong_with("lintel", {{"cahce", false}}), Contains("'cahce'"));  // its own
  // A member that is refused itself is no hint.
  for (const char* const name : {"function", "audioo", "predictions", "chat_templat"}) {
    CHECK(ignored_with(name, "x") == name);
  }
  // Names of fewer letters are too near to others.
  CHECK(ignored_with("sed", 1) == "sed");
}

TEST_CASE("members of other servers: -1, false and the empty text ask for nothing") {
  api::ChatParams request;
  Json body = valid();
  body["max_tokens"] = -1;
  body["max_completion_tokens"] = -1;
  body["top_k"] = -1;
  body["stop"] = "";
  REQUIRE(read(body.dump(), request).empty());
  CHECK_FALSE(request.max_tokens);
  CHECK_FALSE(request.base.sampling.top_k);
  CHECK(request.base.stop.strings.empty());
  CHECK_THAT(wrong_with("max_tokens", -2), Contains("whole number"));
  CHECK_THAT(wrong_with("top_k", -2), Contains("whole number"));
  CHECK_THAT(wrong_with("frequency_penalty", ""), Contains("is not a number"));
}

TEST_CASE("members of other servers: stops, special tokens and ids") {
  api::ChatParams request;
  Json body = valid();
  body["ignore_eos"] = true;
  body["min_tokens"] = 5;
  body["stop_token_ids"] = {3, 4};
  body["include_stop_str_in_output"] = true;
  body["skip_special_tokens"] = false;
  body["return_token_ids"] = true;
  REQUIRE(read(body.dump(), request).empty());
  CHECK(request.base.stop.ignore_eos);
  CHECK(request.base.stop.min_tokens == 5);
  CHECK(request.base.stop.token_ids == std::vector<std::int32_t>{3, 4});
  CHECK(request.base.stop.include_in_output);
  CHECK_FALSE(request.skip_special_tokens);
  CHECK(request.return_token_ids);
  body["response_format"] = {{"type", "json_object"}};
  CHECK_THAT(wrong_with(body.dump()),
             Contains("ignore_eos: cannot be combined with response_format"));
}

TEST_CASE("logit_bias has tokens by their ids or texts, in OpenAI's form and llama.cpp's") {
  using Texts = std::vector<std::pair<std::string, float>>;
  const auto read_biases = [](const char* text) {
    Json body = valid();
    body["logit_bias"] = Json::parse(text);
    api::ChatParams request;
    const std::string wrong = read(body.dump(), request);
    INFO(wrong);
    CHECK(wrong.empty());
    return std::pair(request.base.sampling.logit_bias, request.text_biases);
  };
  using Ids = std::map<std::int32_t, float>;
  CHECK(read_biases(R"({"7": 2, " Hello": -1.5})") ==
        std::pair(Ids{{7, 2}}, Texts{{" Hello", -1.5}}));
  CHECK(read_biases(R"([[7, 2], ["7", 1], ["a", false], [9, false]])") ==
        std::pair(Ids{{7, 2}, {9, -10000}}, Texts{{"7", 1}, {"a", -10000}}));
  CHECK(read_biases("[]") == std::pair(Ids{}, Texts{}));
  CHECK_THAT(wrong_with("logit_bias", Json::parse("[[1]]")), Contains("pairs"));
  CHECK_THAT(wrong_with("logit_bias", Json::parse("[[-1, 2]]")), Contains("-1, which is no token"));
  CHECK_THAT(wrong_with("logit_bias", Json::parse(R"([["", 2]])")), Contains("0 bytes"));
  CHECK_THAT(wrong_with("logit_bias", Json::parse("[[1, true]]")), Contains("not a number"));
  Json many = Json::array();
  for (int i = 0; i <= 64; ++i) many.push_back({"t" + std::to_string(i), 1});
  CHECK_THAT(wrong_with("logit_bias", many), Contains("more than 64 texts"));
}

TEST_CASE("structured_outputs and guided_ members set the format of the answer") {
  using Format = api::ChatParams::Format;
  const auto read_format = [](const char* name, const char* text) {
    Json body = valid();
    body[name] = Json::parse(text);
    api::ChatParams request;
    const std::string wrong = read(body.dump(), request);
    INFO(wrong);
    CHECK(wrong.empty());
    return std::pair(request.format, request.format_text);
  };
  const std::pair choices(Format::kGrammar, std::string(R"(root ::= "a\"b" | "c\nd")"));
  CHECK(read_format("guided_choice", R"(["a\"b", "c\nd"])") == choices);
  CHECK(read_format("structured_outputs", R"({"choice": ["a\"b", "c\nd"]})") == choices);
  const std::pair pattern(Format::kPattern, std::string("[a-z]+"));
  CHECK(read_format("guided_regex", R"("[a-z]+")") == pattern);
  CHECK(read_format("structured_outputs", R"({"regex": "[a-z]+", "json": null})") == pattern);
  const std::pair schema(Format::kJsonSchema, std::string(R"({"type":"object"})"));
  CHECK(read_format("guided_json", R"({"type": "object"})") == schema);
  CHECK(read_format("guided_json", R"("{\"type\":\"object\"}")") == schema);
  CHECK(read_format("structured_outputs", R"({"json": {"type": "object"}})") == schema);
  CHECK(read_format("guided_grammar", R"("root ::= \"a\"")").first == Format::kGrammar);
  CHECK(read_format("structured_outputs", R"({"grammar": "root ::= \"a\""})").first ==
        Format::kGrammar);
  CHECK(read_format("structured_outputs", R"({"json_object": true})").first == Format::kJsonObject);
  CHECK(ignored_with("structured_outputs", {{"regex", "a"}, {"disable_any_whitespace", true}}) ==
        "structured_outputs.disable_any_whitespace");
  CHECK_THAT(wrong_with("structured_outputs", {{"regex", "a"}, {"choice", {"b"}}}),
             Contains("one of them is taken"));
  CHECK_THAT(wrong_with("structured_outputs", {{"structural_tag", "a"}}),
             Contains("structural_tag, which is not served"));
  CHECK_THAT(wrong_with("structured_outputs", Json::object()), Contains("has none of"));
  CHECK_THAT(wrong_with("guided_choice", Json::array()), Contains("list of texts"));
  Json both = valid();
  both["guided_regex"] = "a";
  both["grammar"] = "root ::= \"a\"";
  CHECK_THAT(wrong_with(both.dump()), Contains("guided_regex: cannot be combined with grammar"));
}

TEST_CASE("the format of an answer has the name of the member that was sent") {
  const auto member_of = [](const char* name, const char* text) {
    Json body = valid();
    body[name] = Json::parse(text);
    api::ChatParams request;
    CHECK(read(body.dump(), request).empty());
    return request.format_member;
  };
  CHECK(member_of("response_format", R"({"type": "json_schema", "json_schema": {"schema": {}}})") ==
        "response_format.json_schema.schema");
  CHECK(member_of("response_format", R"({"type": "json_object", "schema": {}})") ==
        "response_format.schema");
  CHECK(member_of("response_format", R"({"type": "json_object"})") == "response_format");
  CHECK(member_of("grammar", R"("root ::= \"a\"")") == "grammar");
  CHECK(member_of("guided_grammar", R"("root ::= \"a\"")") == "guided_grammar");
  CHECK(member_of("guided_regex", R"("a")") == "guided_regex");
  CHECK(member_of("guided_json", "{}") == "guided_json");
  CHECK(member_of("guided_choice", R"(["a"])") == "guided_choice");
  for (const char* const part : {"regex", "json", "choice", "grammar", "json_object"}) {
    const std::string value = part == std::string("choice")        ? R"(["a"])"
                              : part == std::string("json_object") ? "true"
                                                                   : R"("a")";
    CHECK(member_of("structured_outputs",
                    ("{\"" + std::string(part) + "\": " + value + "}").c_str()) ==
          "structured_outputs." + std::string(part));
  }
}

TEST_CASE("empty texts of grammars, expressions and schemas are no format") {
  for (const char* const member : {"grammar", "guided_grammar", "guided_regex", "guided_json"}) {
    Json body = valid();
    body[member] = "";
    body["response_format"] = {{"type", "json_object"}};
    api::ChatParams request;
    CHECK(read(body.dump(), request).empty());
    CHECK(request.format == api::AnswerFormat::Format::kJsonObject);
    CHECK(request.format_member == "response_format");
  }
  CHECK_THAT(wrong_with("guided_choice", ""), Contains("guided_choice: is not a list of texts"));
}

TEST_CASE("response_format of the type text is no format: others may be beside it") {
  for (const char* const member : {"grammar", "guided_regex"}) {
    for (const bool is_first : {false, true}) {
      Json body = valid();
      if (is_first) body["response_format"] = {{"type", "text"}};
      body[member] = "a";
      if (!is_first) body["response_format"] = {{"type", "text"}};
      api::ChatParams request;
      CHECK(read(body.dump(), request).empty());
      CHECK(request.format != api::AnswerFormat::Format::kText);
      CHECK(request.format_member == member);
    }
  }
  Json both = valid();
  both["response_format"] = {{"type", "json_object"}};
  both["guided_regex"] = "a";
  CHECK_THAT(wrong_with(both.dump()),
             Contains("guided_regex: cannot be combined with response_format"));
}

TEST_CASE("enable_thinking is one of chat_template_kwargs") {
  api::ChatParams request;
  Json body = valid();
  body["enable_thinking"] = false;
  REQUIRE(read(body.dump(), request).empty());
  CHECK(request.kwargs["enable_thinking"] == false);
  CHECK(request.kwargs["thinking"] == false);
  body["chat_template_kwargs"] = {{"enable_thinking", true}};
  CHECK_THAT(wrong_with(body.dump()),
             Contains("enable_thinking: is not equal to chat_template_kwargs.enable_thinking"));
  CHECK_THAT(wrong_with("enable_thinking", "no"), Contains("is not true or false"));
}

TEST_CASE("members of response_format: those of no row are ignored, null is none") {
  const auto format = [](const char* text) {
    return wrong_with("response_format", Json::parse(text));
  };
  CHECK(format(R"({"type": "json_object", "schema": {"type": "object"}})").empty());
  CHECK(format(R"({"type": "json_object", "schema": null, "json_schema": null})").empty());
  CHECK(format(R"({"type": "text", "x": null})").empty());
  CHECK(format(R"({"type": "json_schema", "json_schema": {"name": "n", "description": "d",
      "schema": {}, "strict": true, "x": null}})")
            .empty());
  const auto ignored = [](const char* text) {
    return ignored_with("response_format", Json::parse(text));
  };
  CHECK(ignored(R"({"type": "text", "no_such": 1})") == "response_format.no_such");
  CHECK(ignored(R"({"type": "json_object", "no_such": 1})") == "response_format.no_such");
  CHECK(ignored(R"({"type": "json_schema", "json_schema": {"schema": {}}, "no_such": 1})") ==
        "response_format.no_such");
  CHECK(ignored(R"({"type": "json_schema", "json_schema": {"schema": {}, "no_such": 1}})") ==
        "response_format.json_schema.no_such");
  CHECK_THAT(format(R"({"type": "json_object", "schemas": {}})"),
             Contains("'schemas', which is not a parameter of this server: did you mean schema?"));
  CHECK_THAT(format(R"({"type": "json_schema", "json_schema": {"schema": null}})"),
             Contains("no json_schema.schema"));
}

TEST_CASE("wrong values are refused with the member and the limit") {
  CHECK_THAT(wrong_with("not json"), Contains("is not JSON"));
  CHECK_THAT(wrong_with("[]"), Contains("is not an object"));
  CHECK_THAT(wrong_with("{}"), Contains("messages: is missing"));
  CHECK_THAT(wrong_with("messages", Json::array()), Contains("at least one message"));
  CHECK_THAT(wrong_with("messages", Json::array({1})), Contains("[0] is not an object"));
  CHECK_THAT(wrong_with("messages", Json::array({{{"content", "a"}}})), Contains("[0].role"));
  Json many = Json::array();
  for (std::size_t i = 0; i <= kMostMessages; ++i) many.push_back({{"role", "user"}});
  CHECK_THAT(wrong_with("messages", many), Contains("at most 10000"));
  CHECK_THAT(wrong_with("temperature", "hot"), Contains("is not a number"));
  CHECK_THAT(wrong_with("n", 0), Contains("at least 1"));
  CHECK_THAT(wrong_with("n", -1), Contains("whole number"));
  CHECK_THAT(wrong_with("stop", Json::array({"a", 1})), Contains("is not a text or a list"));
  CHECK_THAT(wrong_with("top_logprobs", 3), Contains("goes with logprobs"));
  CHECK_THAT(wrong_with("top_logprobs", -1), Contains("is not a whole number from 0 to"));
  CHECK_THAT(wrong_with("reasoning_effort", "much"), Contains("reasoning_effort"));
  CHECK_THAT(wrong_with("verbosity", "x"), Contains("is not low, medium or high"));
  CHECK(wrong_with("verbosity", "high").empty());
  CHECK_THAT(wrong_with("thinking_token_budget", -1), Contains("whole number"));
  CHECK(wrong_with("thinking_token_budget", 0).empty());
  CHECK_THAT(wrong_with("chat_template_kwargs", {{"messages", 1}}), Contains("the server sets"));
  Json deep = 1;
  for (int i = 0; i < 17; ++i) deep = Json{{"a", deep}};
  CHECK_THAT(wrong_with("chat_template_kwargs", deep), Contains("deeper than 16"));
  CHECK_THAT(wrong_with("chat_template_kwargs", {{"a", std::string(70'000, 'a')}}),
             Contains("more than 65536 bytes"));
  CHECK_THAT(wrong_with("stream_options", {{"include_usage", true}}), Contains("goes with stream"));
  CHECK_THAT(wrong_with("tools", Json::array({{{"type", "web"}}})), Contains("[0].type"));
  CHECK_THAT(
      wrong_with("tools", Json::array({{{"type", "function"}, {"function", {{"name", "a b"}}}}})),
      Contains("function.name"));
  CHECK_THAT(wrong_with("logit_bias", {{"7", "a"}}),
             Contains("has a bias of 7 that is not a number"));
}

TEST_CASE("tools of a chat completion are bounded in number, name and bytes") {
  const auto tool = [](const std::string& name) {
    return Json{{"type", "function"}, {"function", {{"name", name}}}};
  };
  Json tools = Json::array();
  for (std::size_t i = 0; i < kMostTools; ++i) {
    tools.push_back(tool(std::string(120, 'n') + std::to_string(i)));
  }
  CHECK(wrong_with("tools", tools).empty());
  tools.push_back(tool("f"));
  CHECK_THAT(wrong_with("tools", tools), Contains("has 513 tools, at most 512 are taken"));
  CHECK(wrong_with("tools", Json::array({tool(std::string(128, 'n'))})).empty());
  CHECK_THAT(wrong_with("tools", Json::array({tool(std::string(129, 'n'))})),
             Contains("[0].function.name has 129 characters, 1 to 128 are taken"));
  Json large = tool("f");
  large["function"]["description"] = std::string(kMostToolBytes, 'd');
  CHECK_THAT(wrong_with("tools", Json::array({large})), Contains("at most 1048576 are taken"));
}

TEST_CASE("the name of a tool has the characters and the length that its error names") {
  for (const char* const name : {"a", "Z9_.-", "0", "-", ".", "_"}) {
    CAPTURE(name);
    CHECK(tool_name_error(name).empty());
  }
  for (const char* const name : {"a b", "a/b", "a:b", "\xc3\xa9", "a\n"}) {
    CAPTURE(name);
    CHECK(tool_name_error(name) == "has characters other than a-z A-Z 0-9 _ . -");
  }
  CHECK(tool_name_error("") == "has 0 characters, 1 to 128 are taken");
  CHECK(tool_name_error(std::string(128, '9')).empty());
  CHECK(tool_name_error(std::string(129, '9')) == "has 129 characters, 1 to 128 are taken");
  CHECK(tool_name_error(nullptr) == "is not a text");
  CHECK(tool_name_error(9) == "is not a text");
}

TEST_CASE("tool_choice names tools of the request") {
  const auto choice = [](const Json& value, bool has_tools = true) {
    Json body = valid();
    if (has_tools) {
      for (const char* const name : {"f", "g"}) {
        body["tools"].push_back({{"type", "function"}, {"function", {{"name", name}}}});
      }
    }
    body["tool_choice"] = value;
    api::ChatParams request;
    const std::string wrong = read(body.dump(), request);
    return std::pair(wrong, request);
  };
  using ToolChoice = api::ChatParams::ToolChoice;
  const Json f = {{"type", "function"}, {"function", {{"name", "f"}}}};
  CHECK(choice("auto").second.tool_choice == ToolChoice::kAuto);
  CHECK(choice("none").second.tool_choice == ToolChoice::kNone);
  CHECK(choice("required").second.tool_choice == ToolChoice::kRequired);
  CHECK(choice(f).second.offered_tools == std::vector<std::string>{"f"});
  CHECK(choice(f).second.tool_choice == ToolChoice::kRequired);
  const Json allowed = {{"type", "allowed_tools"},
                        {"allowed_tools", {{"mode", "auto"}, {"tools", Json::array({f})}}}};
  CHECK(choice(allowed).second.tool_choice == ToolChoice::kAuto);
  CHECK(choice(allowed).second.offered_tools == std::vector<std::string>{"f"});
  // Forced calls leave no text that a format would bind.
  Json body = valid();
  body["tools"] = Json::array({f});
  body["tool_choice"] = "required";
  body["response_format"] = {{"type", "json_object"}};
  api::ChatParams request;
  CHECK(read(body.dump(), request).empty());
  CHECK(request.format == api::ChatParams::Format::kText);
  CHECK_THAT(choice("required", false).first, Contains("goes with tools"));
  CHECK_THAT(choice("maybe").first, Contains("tool_choice"));
  const Json h = {{"type", "function"}, {"function", {{"name", "h"}}}};
  CHECK_THAT(choice(h).first, Contains("'h'"));
}

TEST_CASE("max_tokens and max_completion_tokens are the same") {
  api::ChatParams request;
  Json body = valid();
  body["max_tokens"] = 5;
  REQUIRE(read(body.dump(), request).empty());
  CHECK(request.max_tokens == 5);
  body["max_completion_tokens"] = 5;
  CHECK(wrong_with(body.dump()).empty());
  body["max_completion_tokens"] = 6;
  CHECK_THAT(wrong_with(body.dump()), Contains("max_tokens"));
}

TEST_CASE("members of tools and messages keep the client's order and digits") {
  api::ChatParams request;
  REQUIRE(read(R"({"messages": [{"role": "user", "z": 1, "content": "a", "b": 2}],
                   "chat_template_kwargs": {"n": 123456789012345678901234567890}})",
               request)
              .empty());
  std::string names;
  for (const auto& [name, value] : request.messages[0].items()) names += name + " ";
  CHECK(names == "role z content b ");
  CHECK(request.kwargs["n"].is_binary());
}

TEST_CASE("a body is charged with its tree, before it is made") {
  RequestMemory memory({.bytes = std::size_t{1} << 20});
  Json body = valid();
  body["messages"][0]["x"] = std::vector<int>(20'000, 0);
  ChatRequest request;
  request.charge = RequestMemory::Charge(&memory, "");
  CHECK(read_chat_request(body.dump(), "", {}, request).kind == JsonFailure::Kind::kNone);
  CHECK(request.status.ok());
  CHECK(request.text_bytes() == body.dump().size());
  CHECK(memory.stats().bytes >= 20'000 * sizeof(Json));
  body["messages"][0]["x"] = std::vector<int>(200'000, 0);
  ChatRequest large;
  large.charge = RequestMemory::Charge(&memory, "");
  CHECK(read_chat_request(body.dump(), "", {}, large).kind == JsonFailure::Kind::kNoSpace);
  CHECK_THAT(large.status.error_message(), Contains("may hold"));
  CHECK(large.params.messages.is_null());
  // A text that is no JSON has a failure of its own.
  ChatRequest broken;
  CHECK(read_chat_request("{\"messages\":", "", {}, broken).kind == JsonFailure::Kind::kNotJson);
  CHECK_THAT(broken.status.error_message(), Contains("is not JSON"));
}

}  // namespace
}  // namespace lintel::testing
