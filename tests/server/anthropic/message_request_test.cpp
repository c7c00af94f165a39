// SPDX-License-Identifier: Apache-2.0
// Requests of Anthropic's API as those of a chat.
#include "server/anthropic/message_request.h"

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;
using ToolChoice = api::ChatParams::ToolChoice;

const Sealer kMessageSealer(Sealer::Secret{}, "ada");

struct ReadMessage {
  explicit ReadMessage(ojson body, MessageUse use = MessageUse::kCreate) {
    status = read_message_request(std::move(body), use, kMessageSealer, request, form);
  }
  const api::ChatParams& params() const { return request.params; }
  ojson messages() const { return request.params.messages; }
  std::string ignored() const {
    std::string names;
    REQUIRE(request.ignored.report(/*refuses=*/false, names).ok());
    return names;
  }
  // "FIELD: DESCRIPTION" of what is wrong; empty: nothing is.
  std::string wrong() const {
    google::rpc::Status details;
    details.ParseFromString(status.error_details());
    for (const auto& detail : details.details()) {
      google::rpc::BadRequest bad;
      if (detail.UnpackTo(&bad)) {
        return bad.field_violations(0).field() + ": " + bad.field_violations(0).description();
      }
    }
    return status.error_message();
  }

  ChatRequest request;
  MessageForm form;
  grpc::Status status;
};

ojson user(const ojson& content) { return {{"role", "user"}, {"content", content}}; }
ojson assistant(const ojson& content) { return {{"role", "assistant"}, {"content", content}}; }
ojson text_block(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

ojson body_of(const std::vector<ojson>& messages) {
  return {{"model", "m"}, {"max_tokens", 100}, {"messages", messages}};
}
ojson body_with(const std::string& name, const ojson& value) {
  ojson body = body_of({user("hi")});
  body[name] = value;
  return body;
}
ojson tool_of(const std::string& name) {
  return {{"name", name}, {"description", "d"}, {"input_schema", {{"type", "object"}}}};
}

TEST_CASE("a message request becomes a chat: system, texts, sampling") {
  ojson body =
      body_of({user(ojson::array({text_block("a"), text_block("b")})), assistant("c"), user("d")});
  body["system"] = ojson::array(
      {text_block("x-anthropic-billing-header: cc_version=1; cch=2;"),
       text_block("one"),
       {{"type", "text"}, {"text", "two"}, {"cache_control", {{"type", "ephemeral"}}}}});
  body["temperature"] = 0.5;
  body["top_k"] = 7;
  body["stop_sequences"] = {"x", "y"};
  body["stream"] = true;
  body["metadata"] = {{"user_id", "u"}};
  const ReadMessage read(body);
  REQUIRE(read.status.ok());
  CHECK(read.messages() == ojson::array({{{"role", "system"}, {"content", "one\ntwo"}},
                                         user("a\nb"),
                                         {{"role", "assistant"}, {"content", "c"}},
                                         user("d")}));
  CHECK(read.params().base.model == "m");
  CHECK(read.params().base.sampling.temperature == 0.5f);
  CHECK(read.params().base.sampling.top_k == 7);
  CHECK(read.params().base.stop.strings == std::vector<std::string>{"x", "y"});
  CHECK(read.params().max_tokens == 100);
  CHECK(read.params().shortens_answer);
  CHECK(read.request.streams);
  CHECK(read.ignored().empty());
  // Without a member for it models do not think.
  CHECK(read.params().kwargs == ojson{{"enable_thinking", false}, {"thinking", false}});
  // A system text that is the billing header alone is none.
  body["system"] = ojson::array({text_block("x-anthropic-billing-header: cc_version=1;")});
  CHECK(ReadMessage(body).messages()[0] == user("a\nb"));
}

TEST_CASE("the billing header is left out of every system text, with its line") {
  const std::string header = "x-anthropic-billing-header: cc_version=1; cch=2;";
  ojson body = body_of({user("a")});
  const auto system_of = [&](const ojson& system) {
    body["system"] = system;
    const ojson first = ReadMessage(body).messages()[0];
    return first["role"] == "system" ? first["content"].get<std::string>() : std::string();
  };
  CHECK(system_of(header + "\n\nBe brief.\nAlways.") == "Be brief.\nAlways.");
  CHECK(system_of(header).empty());
  CHECK(system_of(header + "\n").empty());
  CHECK(system_of("Say " + header) == "Say " + header);
  // A message of role system has one, too.
  const ojson blocks = {{"role", "system"},
                        {"content", ojson::array({text_block(header), text_block("s")})}};
  const ojson text = {{"role", "system"}, {"content", header + "\ns"}};
  const ojson alone = {{"role", "system"}, {"content", header}};
  for (const ojson& late : {blocks, text}) {
    CHECK(ReadMessage(body_of({user("a"), late})).messages()[1]["content"] == "s");
  }
  CHECK(ReadMessage(body_of({user("a"), alone})).messages() == ojson::array({user("a")}));
  CHECK(ReadMessage(body_of({alone})).wrong() == "messages: have no text");
  // What a user wrote stays.
  CHECK(ReadMessage(body_of({user(header)})).messages()[0] == user(header));
}

TEST_CASE("limits beyond 32 bits are as good as none") {
  for (const char* const count : {"4294967295", "4294967296", "18446744073709551616", "1e300"}) {
    CAPTURE(count);
    const ReadMessage read(body_with("max_tokens", ojson::parse(count)));
    CHECK(read.params().max_tokens == 4294967295);
  }
  const ReadMessage thinks(
      body_with("thinking", {{"type", "enabled"}, {"budget_tokens", 4294967297}}));
  CHECK(thinks.params().thinking_budget == 4294967295);
  for (const ojson& count : {ojson(-1), ojson(1.5), ojson("1")}) {
    CHECK(ReadMessage(body_with("max_tokens", count)).wrong() ==
          "max_tokens: is not a whole number from 0 on");
  }
}

TEST_CASE("neighbouring messages of one role are joined") {
  const ReadMessage read(body_of({user("a"), user(ojson::array({text_block("b")})), assistant("c"),
                                  assistant("d"), user("e")}));
  CHECK(read.messages() == ojson::array({user("a\n\nb"), assistant("c\n\nd"), user("e")}));
}

TEST_CASE("a system role within the messages stays at its place") {
  const ojson as_blocks = {{"role", "system"}, {"content", ojson::array({text_block("s")})}};
  const ojson as_text = {{"role", "system"}, {"content", "s"}};
  const ReadMessage read(body_of({user("a"), as_blocks, user("b")}));
  CHECK(read.messages() == ojson::array({user("a"), as_text, user("b")}));
  CHECK(ReadMessage(body_of({user("a"), as_text, user("b")})).messages() == read.messages());
}

TEST_CASE("a last message of the assistant is continued") {
  const ReadMessage read(body_of({user("a"), assistant("The answer is")}));
  REQUIRE(read.status.ok());
  CHECK(read.params().continue_final_message);
  CHECK_FALSE(read.params().add_generation_prompt);
  // One without text is left out.
  const ReadMessage empty(body_of({user("a"), assistant(ojson::array())}));
  CHECK(empty.messages() == ojson::array({user("a")}));
  CHECK(empty.params().add_generation_prompt);
  const ojson call = {{"type", "tool_use"}, {"id", "1"}, {"name", "f"}, {"input", ojson::object()}};
  CHECK(ReadMessage(body_of({user("a"), assistant(ojson::array({call}))})).wrong() ==
        "messages: end with a tool_use, whose tool_result is missing");
}

TEST_CASE("calls and their results become tool calls and messages of tools") {
  const ojson call = {
      {"type", "tool_use"}, {"id", "t1"}, {"name", "f"}, {"input", {{"b", 1}, {"a", "x"}}}};
  const ojson other = {{"type", "tool_use"}, {"id", "t2"}, {"name", "g"}, {"input", nullptr}};
  const ojson result = {{"type", "tool_result"},
                        {"tool_use_id", "t1"},
                        {"content", ojson::array({text_block("r"), text_block("s")})}};
  const ojson failure = {
      {"type", "tool_result"}, {"tool_use_id", "t2"}, {"content", "no"}, {"is_error", true}};
  const ReadMessage read(
      body_of({user("a"), assistant(ojson::array({text_block("I call"), call, other})),
               user(ojson::array({result, failure, text_block("continue")}))}));
  INFO(read.wrong());
  REQUIRE(read.status.ok());
  CHECK(read.messages()[1].dump() ==
        R"({"role":"assistant","content":"I call","tool_calls":[)"
        R"({"id":"t1","type":"function","function":{"name":"f","arguments":{"b":1,"a":"x"}}},)"
        R"({"id":"t2","type":"function","function":{"name":"g","arguments":{}}}]})");
  CHECK(read.messages()[2].dump() == R"({"role":"tool","tool_call_id":"t1","content":"r\ns"})");
  CHECK(read.messages()[3].dump() ==
        R"({"role":"tool","tool_call_id":"t2","content":"Error: no"})");
  CHECK(read.messages()[4] == user("continue"));
  CHECK(ReadMessage(body_of({user(ojson::array({result}))})).wrong() ==
        "messages[0].content[0].tool_use_id: is t1, which no tool_use before it has");
}

TEST_CASE("thinking comes back where its signature was sealed for this caller", "[threat-83]") {
  const auto with_signature = [](const std::string& signature) {
    return body_of(
        {user("a"),
         assistant(ojson::array({{{"type", "thinking"}, {"thinking", ""}, {"signature", signature}},
                                 {{"type", "redacted_thinking"}, {"data", "x"}},
                                 text_block("b")})),
         user("c")});
  };
  const ReadMessage read(with_signature(seal_thinking(kMessageSealer, "I thought")));
  CHECK(read.messages()[1] ==
        ojson{{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "I thought"}});
  const Sealer other(Sealer::Secret{}, "bob");
  for (const std::string& signature :
       {std::string("EqQBCkYIBBgC"), std::string(), seal_thinking(other, "I thought")}) {
    const ReadMessage dropped(with_signature(signature));
    REQUIRE(dropped.status.ok());
    CHECK(dropped.messages()[1] == assistant("b"));
  }
  for (const ojson& unsigned_block : {ojson{{"type", "thinking"}, {"thinking", "I thought"}},
                                      ojson{{"type", "thinking"}, {"signature", nullptr}}}) {
    const ReadMessage dropped(body_of(
        {user("a"), assistant(ojson::array({unsigned_block, text_block("b")})), user("c")}));
    INFO(dropped.wrong());
    REQUIRE(dropped.status.ok());
    CHECK(dropped.messages()[1] == assistant("b"));
  }
}

TEST_CASE("thinking of a request: budget, effort, display") {
  const ojson on = {{"enable_thinking", true}, {"thinking", true}};
  const ReadMessage enabled(body_with("thinking", {{"type", "enabled"}, {"budget_tokens", 2048}}));
  CHECK(enabled.params().kwargs == on);
  CHECK(enabled.params().thinking_budget == 2048);
  CHECK(enabled.form.shows_thinking);
  ojson body = body_with("thinking", {{"type", "adaptive"}, {"display", "omitted"}});
  body["output_config"] = {{"effort", "high"}, {"task_budget", 1}};
  const ReadMessage adaptive(body);
  CHECK(adaptive.params().kwargs == on);
  CHECK(adaptive.params().reasoning_effort == "high");
  CHECK_FALSE(adaptive.params().thinking_budget);
  CHECK_FALSE(adaptive.form.shows_thinking);
  CHECK(adaptive.ignored() == "output_config.task_budget");
  CHECK(ReadMessage(body_with("thinking", {{"type", "disabled"}})).params().kwargs ==
        ojson{{"enable_thinking", false}, {"thinking", false}});
  CHECK(ReadMessage(body_with("thinking", {{"type", "enabled"}})).wrong() ==
        "thinking.budget_tokens: is not a whole number from 0 on");
  CHECK(ReadMessage(body_with("thinking", {{"type", "deep"}})).wrong() ==
        "thinking.type: is not enabled, adaptive or disabled");
}

TEST_CASE("tools and the choice among them") {
  ojson body = body_with("tools", ojson::array({tool_of("f"), tool_of("g")}));
  body["tools"][0]["strict"] = true;
  body["tools"][1]["defer_loading"] = true;
  body["tools"][1]["cache_control"] = {{"type", "ephemeral"}};
  body["tools"].push_back({{"type", "web_search_20250305"}, {"name", "web_search"}});
  const auto chosen = [&](const ojson& choice) {
    ojson with = body;
    with["tool_choice"] = choice;
    return with;
  };
  const ReadMessage automatic(chosen({{"type", "auto"}, {"disable_parallel_tool_use", true}}));
  INFO(automatic.wrong());
  REQUIRE(automatic.status.ok());
  CHECK(automatic.params().tools.dump() ==
        R"([{"type":"function","function":{"name":"f","description":"d",)"
        R"("parameters":{"type":"object"},"strict":true}},)"
        R"({"type":"function","function":{"name":"g","description":"d",)"
        R"("parameters":{"type":"object"}}}])");
  CHECK(automatic.ignored() == "tools.defer_loading, tools=web_search_20250305");
  CHECK_FALSE(automatic.params().parallel_tool_calls);
  CHECK(automatic.params().tool_choice == ToolChoice::kAuto);
  CHECK(ReadMessage(chosen({{"type", "any"}})).params().tool_choice == ToolChoice::kRequired);
  CHECK(ReadMessage(chosen({{"type", "none"}})).params().tool_choice == ToolChoice::kNone);
  const ReadMessage named(chosen({{"type", "tool"}, {"name", "g"}}));
  CHECK(named.params().tool_choice == ToolChoice::kRequired);
  CHECK(named.params().offered_tools == std::vector<std::string>{"g"});
  CHECK(ReadMessage(chosen({{"type", "tool"}, {"name", "h"}})).wrong() ==
        "tool_choice.name: names 'h', which is no tool");
  CHECK(ReadMessage(chosen({{"type", "tool"}, {"name", "web_search"}})).wrong() ==
        "tool_choice.name: names 'web_search', a tool of the server's, which is not served");
  CHECK(ReadMessage(body_with("tool_choice", {{"type", "any"}})).wrong() ==
        "tool_choice: goes with tools");
}

TEST_CASE("tools are bounded in number, name and bytes") {
  ojson tools = ojson::array();
  for (std::size_t i = 0; i < kMostTools; ++i) {
    tools.push_back(tool_of(std::string(120, 'n') + std::to_string(i)));
  }
  CHECK(ReadMessage(body_with("tools", tools)).status.ok());
  tools.push_back(tool_of("f"));
  CHECK(ReadMessage(body_with("tools", tools)).wrong() ==
        "tools: has 513 tools, at most 512 are taken");
  CHECK(ReadMessage(body_with("tools", ojson::array({tool_of(std::string(129, 'n'))}))).wrong() ==
        "tools[0].name: has 129 characters, 1 to 128 are taken");
  ojson large = tool_of("f");
  large["description"] = std::string(kMostToolBytes, 'd');
  CHECK(ReadMessage(body_with("tools", ojson::array({large})))
            .wrong()
            .starts_with("tools: has 1048"));
}

TEST_CASE("a format is a strict schema, and calls that are required come before it") {
  const ojson format = {{"type", "json_schema"}, {"schema", {{"type", "object"}}}};
  const ReadMessage read(body_with("output_config", {{"format", format}}));
  CHECK(read.params().format == api::ChatParams::Format::kJsonSchema);
  CHECK(read.params().format_text == R"({"type":"object"})");
  CHECK(read.params().format_member == "output_config.format.schema");
  CHECK(read.params().strict_schema);
  const ReadMessage earlier(body_with("output_format", format));
  CHECK(earlier.params().format == api::ChatParams::Format::kJsonSchema);
  CHECK(earlier.params().format_member == "output_format.schema");
  ojson body = body_with("output_config", {{"format", format}});
  body["tools"] = ojson::array({tool_of("f")});
  body["tool_choice"] = {{"type", "any"}};
  CHECK(ReadMessage(body).params().format == api::ChatParams::Format::kText);
}

TEST_CASE("members without effect are named, once each") {
  ojson body = body_of({user("a"),
                        assistant(ojson::array({{{"type", "server_tool_use"}, {"id", "1"}},
                                                {{"type", "web_search_tool_result"}},
                                                text_block("b")})),
                        user("c")});
  for (const char* const name :
       {"context_management", "service_tier", "container", "mcp_servers", "speed"}) {
    body[name] = "x";
  }
  body["inference_geo"] = nullptr;
  CHECK(ReadMessage(body).ignored() ==
        "messages=server_tool_use, messages=web_search_tool_result, context_management, "
        "service_tier, container, mcp_servers, speed");
}

TEST_CASE("members that change a message and are not served are refused, but for neutral values") {
  for (const auto& [name, value, neutral] :
       {std::tuple("mirostat", ojson(2), ojson(0)), std::tuple("typical_p", ojson(0.5), ojson(1)),
        std::tuple("guided_regex", ojson("a"), ojson()), std::tuple("n", ojson(2), ojson(1)),
        std::tuple("response_format", ojson{{"type", "json_object"}}, ojson{{"type", "text"}})}) {
    CAPTURE(name);
    CHECK(ReadMessage(body_with(name, value))
              .wrong()
              .starts_with(std::string(name) + ": changes the answer and is not served"));
    CHECK(ReadMessage(body_with(name, neutral)).status.ok());
  }
  // The member in its place is named.
  CHECK(ReadMessage(body_with("stop", "x")).wrong() ==
        "stop: changes the answer and is not served: stop_sequences is");
  CHECK(ReadMessage(body_with("response_format", {{"type", "json_object"}})).wrong() ==
        "response_format: changes the answer and is not served: output_config.format is");
  CHECK(ReadMessage(body_with("bad_words", {"x"})).wrong() ==
        "bad_words: changes the answer and is not served: logit_bias is");
}

TEST_CASE("a message request without a member, or with a wrong one, is refused by its name") {
  ojson without = body_of({user("a")});
  without.erase("max_tokens");
  CHECK(ReadMessage(without).wrong() == "max_tokens: is missing");
  CHECK(ReadMessage(without, MessageUse::kCount).status.ok());
  CHECK(ReadMessage(ojson{{"max_tokens", 1}}).wrong() == "messages: is missing");
  const ojson image = {{"type", "image"}, {"source", ojson::object()}};
  CHECK(ReadMessage(body_of({user(ojson::array({image}))})).wrong() ==
        "messages[0].content[0].type: is image, which is not served: models here read text");
  const ojson document = {{"type", "document"}};
  CHECK(
      ReadMessage(body_of({user("a"), user(ojson::array({text_block("b"), document}))})).wrong() ==
      "messages[1].content[1].type: is document, which is not served: models here read text");
  CHECK(ReadMessage(body_of({{{"role", "tool"}, {"content", "x"}}})).wrong() ==
        "messages[0].role: is not user, assistant or system");
  const ReadMessage thread(body_with("thread", {{"type", "create"}}));
  CHECK(thread.wrong() == "thread: is not served: no conversation is kept here");
  CHECK(ReadMessage(body_with("stop_sequence", "x")).wrong() ==
        "stop_sequence: is not a parameter of this server: did you mean stop_sequences?");
  CHECK(ReadMessage(body_with("top_k", "x")).wrong().starts_with("top_k: "));
  CHECK(ReadMessage(body_with("stop_sequences", "x")).wrong() ==
        "stop_sequences: is not a list of texts");
}

TEST_CASE("members of chats that change the sampling are read in a message request, too") {
  ReadMessage read(body_with("logit_bias", {{"7", 2}, {"word", -1}}));
  CHECK(read.params().base.sampling.logit_bias.at(7) == 2);
  REQUIRE(read.params().text_biases.size() == 1);
  CHECK(read.params().text_biases[0].first == "word");
  CHECK(ReadMessage(body_with("logit_bias", 3)).wrong().starts_with("logit_bias: "));
  ReadMessage stops(body_with("stop_sequences", {"", "end"}));
  CHECK(stops.params().base.stop.strings == std::vector<std::string>{"end"});
}

TEST_CASE("fields of a chat have the names that the message request gave them") {
  CHECK(message_member("stop[1]") == "stop_sequences[1]");
  CHECK(message_member("stop.strings[1]") == "stop_sequences[1]");
  CHECK(message_member("stop.min_tokens") == "min_tokens");
  CHECK(message_member("sampling.top_k") == "top_k");
  CHECK(message_member("stop.token_ids[0]") == "stop_token_ids[0]");
  CHECK(message_member("sampling.top_p") == "top_p");
  CHECK(message_member("max_new_tokens") == "max_tokens");
  CHECK(message_member("tools[2].function.parameters.properties.a") ==
        "tools[2].input_schema.properties.a");
  CHECK(message_member("stopped") == "stopped");
}

}  // namespace
}  // namespace lintel::testing
