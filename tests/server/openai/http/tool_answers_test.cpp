// SPDX-License-Identifier: Apache-2.0
// Calls and documents of models that say a given text: in reasoning, with formats, cut off.
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/support/http_client.h"
#include "tests/server/support/scripted_model.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

constexpr const char* kXmlCall = R"(<tool_call>
<function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}
<parameter={{ k }}>
{{ v if v is string else v | tojson }}
</parameter>{% endfor %}
</function>
</tool_call>)";
constexpr const char* kHermesCall = R"(<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>)";
constexpr const char* kPythonicCall =
    "<|tool_call_start|>[{{ c.function.name }}({% for k, v in c.function.arguments | items %}"
    "{{ k }}={{ v | tojson }}{% endfor %})]<|tool_call_end|>";

std::string template_of(const std::string& call, bool thinks) {
  return "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ "
         "m.role "
         "}}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}" +
         call +
         "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
         "%}<|im_start|>assistant\n" +
         (thinks ? "<think>\n" : "") + "{% endif %}";
}

// A server with one model, "m", that says `pieces`.
struct ScriptedServer : TestServer {
  ScriptedServer(const std::vector<std::string>& pieces, const std::string& call, bool thinks,
                 const TemporaryDirectory& files = TemporaryDirectory())
      : TestServer(options_with(template_of(call, thinks), files), clock(),
                   {{"m", scripted_model(pieces)}}) {}
  static const Clock& clock() {
    static const SteadyClock steady;
    return steady;
  }
  static ServerOptions options_with(const std::string& source, const TemporaryDirectory& files) {
    const auto path = files.path() / "chat.jinja";
    std::ofstream(path) << source;
    ServerOptions options = with_http();
    options.models.chat_templates = {{"m", path}};
    return options;
  }

  // The choice of an answer; that of a stream is put together and has to be the same, but for
  // calls that broke off.
  ojson answered(ojson body) {
    const HttpReply reply = post(server().http_port(), "/v1/chat/completions", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    const ojson choice = ojson::parse(reply.body)["choices"][0];
    body["stream"] = true;
    const HttpReply streamed = post(server().http_port(), "/v1/chat/completions", body.dump());
    REQUIRE(streamed.status == 200);
    std::string content, reasoning, finish;
    std::vector<std::pair<std::string, std::string>> calls;
    for (std::size_t at = streamed.body.find("data: {"); at != std::string::npos;
         at = streamed.body.find("data: {", at + 1)) {
      const std::size_t end = streamed.body.find("\n\n", at);
      const ojson chunk = ojson::parse(streamed.body.substr(at + 6, end - at - 6));
      const ojson& part = chunk["choices"][0];
      if (!part["finish_reason"].is_null()) finish = part["finish_reason"];
      const ojson& delta = part["delta"];
      content += delta.value("content", "");
      reasoning += delta.value("reasoning_content", "");
      if (!delta.contains("tool_calls")) continue;
      const ojson& function = delta["tool_calls"][0]["function"];
      if (function.contains("name")) calls.emplace_back(function["name"], "");
      calls.back().second += function.value("arguments", "");
    }
    const ojson& message = choice["message"];
    CHECK(choice["finish_reason"] == finish);
    CHECK(content == (message["content"].is_null() ? "" : message["content"].get<std::string>()));
    CHECK(reasoning == message.value("reasoning_content", ""));
    std::erase_if(calls, [](const auto& call) { return !ojson::accept(call.second); });
    CHECK(calls == calls_of(choice));
    return choice;
  }

  static std::vector<std::pair<std::string, std::string>> calls_of(const ojson& choice) {
    std::vector<std::pair<std::string, std::string>> calls;
    for (const ojson& call : choice["message"].value("tool_calls", ojson::array())) {
      calls.emplace_back(call["function"]["name"], call["function"]["arguments"]);
    }
    return calls;
  }
};
using Calls = std::vector<std::pair<std::string, std::string>>;

ojson tool(const std::string& name, const ojson& properties, bool strict = false) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"strict", strict},
            {"parameters",
             {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}}}}}};
}

ojson question(const ojson& tools, int max_tokens = 40) {
  ojson body = {{"model", "m"},
                {"messages", ojson::array({{{"role", "user"}, {"content", "hi"}}})},
                {"max_tokens", max_tokens},
                {"temperature", 0}};
  if (!tools.empty()) body["tools"] = tools;
  return body;
}

const std::vector<std::string> kCall = {"<tool_call>", "\n<function=m>\n<parameter=identifier>\n",
                                        "abc", "\n</parameter>\n</function>\n", "</tool_call>"};
const ojson kIdentifier = {{"identifier", {{"type", "string"}}}};
const ojson kNumber = {{"identifier", {{"type", "integer"}}}};

std::vector<std::string> joined(std::vector<std::string> one,
                                const std::vector<std::string>& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

TEST_CASE("call in reasoning: in mid-line, in both dialects") {
  const ojson tools = ojson::array({tool("m", kIdentifier)});
  ScriptedServer xml(joined({"plan: "}, kCall), kXmlCall, /*thinks=*/true);
  ScriptedServer hermes(
      {"plan: ", "<tool_call>", "\n{\"name\": \"m\", \"arguments\": {\"identifier\": \"abc\"}}\n",
       "</tool_call>"},
      kHermesCall, /*thinks=*/true);
  for (ScriptedServer* const server : {&xml, &hermes}) {
    for (const char* const forced : {"auto", "required"}) {
      CAPTURE(server == &xml, forced);
      ojson body = question(tools);
      body["tool_choice"] = forced;
      const ojson choice = server->answered(body);
      CHECK(choice["finish_reason"] == "tool_calls");
      CHECK(choice["message"]["reasoning_content"] == "plan:");
      CHECK(choice["message"]["content"].is_null());
      CHECK(ScriptedServer::calls_of(choice) == Calls{{"m", "{\"identifier\": \"abc\"}"}});
    }
  }
}

TEST_CASE("call in reasoning: a strict schema holds, and no other function is called") {
  ScriptedServer server(joined({"plan.\n\n"}, kCall), kXmlCall, /*thinks=*/true);
  const auto calls = [&](const ojson& body) {
    Calls made = ScriptedServer::calls_of(server.answered(body));
    return made;
  };
  ojson body = question(ojson::array({tool("m", kNumber, /*strict=*/true)}));
  for (const auto& [name, arguments] : calls(body)) {
    CHECK(ojson::parse(arguments)["identifier"].is_number_integer());
  }
  body["tool_choice"] = "required";
  for (const auto& [name, arguments] : calls(body)) {
    CHECK(ojson::parse(arguments)["identifier"].is_number_integer());
  }
  body = question(ojson::array({tool("other", kIdentifier), tool("m", kIdentifier)}));
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "other"}}}};
  for (const auto& [name, arguments] : calls(body)) CHECK(name == "other");
  // One that was never given.
  body = question(ojson::array({tool("other", kIdentifier)}));
  for (const auto& [name, arguments] : calls(body)) CHECK(name == "other");
  // A tool that may be called is called.
  body = question(ojson::array({tool("other", kIdentifier), tool("m", kIdentifier)}));
  CHECK(calls(body) == Calls{{"m", "{\"identifier\": \"abc\"}"}});
}

TEST_CASE("call in reasoning: the end of the reasoning after it is not shown") {
  ScriptedServer server(joined(joined({"plan.\n\n"}, kCall), {"</think>", "\n\n", "done"}),
                        kXmlCall, /*thinks=*/true);
  const ojson choice = server.answered(question(ojson::array({tool("m", kIdentifier)})));
  CHECK(choice["message"]["reasoning_content"] == "plan.");
  CHECK(choice["message"]["content"] == "done");
  CHECK(ScriptedServer::calls_of(choice) == Calls{{"m", "{\"identifier\": \"abc\"}"}});
}

TEST_CASE("call in reasoning: a tag that is spoken of is reasoning, also of other functions") {
  ScriptedServer server({"Use ", "<tool_call>", " and <function=m>\n", "</think>", "\n\n", "ok"},
                        kXmlCall,
                        /*thinks=*/true);
  const ojson choice = server.answered(question(ojson::array({tool("m", kIdentifier)})));
  CHECK(choice["message"]["reasoning_content"] == "Use <tool_call> and <function=m>");
  CHECK(choice["message"]["content"] == "ok");
  CHECK(ScriptedServer::calls_of(choice).empty());
}

TEST_CASE("format with tools: the answer is a call, or a document") {
  const ojson tools = ojson::array({tool("m", kIdentifier, /*strict=*/true)});
  const ojson schema = {{"type", "object"},
                        {"properties", {{"x", {{"const", 1}}}}},
                        {"required", {"x"}},
                        {"additionalProperties", false}};
  const ojson format = {{"type", "json_schema"},
                        {"json_schema", {{"name", "x"}, {"strict", true}, {"schema", schema}}}};
  const Calls call = {{"m", "{\"identifier\": \"abc\"}"}};
  const bool thinks = GENERATE(false, true);
  const std::vector<std::string> before =
      thinks ? std::vector<std::string>{"plan", "</think>", "\n\n"} : std::vector<std::string>{};
  ScriptedServer calls(joined(before, kCall), kXmlCall, thinks);
  ScriptedServer documents(joined(before, {"{", "\"x\"", ": ", "2", "1", "}"}), kXmlCall, thinks);
  for (const char* const member : {"response_format", "grammar"}) {
    ojson body = question(tools);
    if (std::string(member) == "grammar") {
      body["grammar"] = R"gbnf(root ::= "{\"x\": 1}")gbnf";
    } else {
      body["response_format"] = format;
    }
    for (const bool is_held : {true, false}) {
      body["lintel"] = {{"tool_grammar", is_held}};
      const ojson called = calls.answered(body);
      CHECK(called["finish_reason"] == "tool_calls");
      CHECK(ScriptedServer::calls_of(called) == call);
      const ojson said = documents.answered(body)["message"];
      CHECK_FALSE(said.contains("tool_calls"));
      CHECK(ojson::parse(said["content"].get<std::string>()) == ojson({{"x", 1}}));
    }
    // Forced calls: the format says nothing, not even where it is wrong.
    body["tool_choice"] = "required";
    if (body.contains("grammar")) body["grammar"] = "no grammar";
    CHECK(ScriptedServer::calls_of(calls.answered(body)) == call);
  }
  ojson body = {{"model", "m"},
                {"input", "hi"},
                {"temperature", 0},
                {"max_output_tokens", 40},
                {"tools", ojson::array({tools[0]["function"]})},
                {"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"strict", true}}}}}};
  body["tools"][0]["type"] = "function";
  body["text"]["format"]["schema"] = schema;
  for (const char* const choice : {"auto", "required"}) {
    body["tool_choice"] = choice;
    const HttpReply reply = post(calls.server().http_port(), "/v1/responses", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    const ojson last = ojson::parse(reply.body)["output"].back();
    CHECK(last["type"] == "function_call");
    CHECK(last["arguments"] == call[0].second);
  }
  body["tool_choice"] = "auto";
  const HttpReply reply = post(documents.server().http_port(), "/v1/responses", body.dump());
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const ojson last = ojson::parse(reply.body)["output"].back();
  REQUIRE(last["type"] == "message");
  CHECK(ojson::parse(last["content"][0]["text"].get<std::string>()) == ojson({{"x", 1}}));
}

TEST_CASE("format with tools: an error names the part that is wrong") {
  ScriptedServer server(kCall, kXmlCall, /*thinks=*/false);
  const auto param = [&](const ojson& format, const ojson& properties) {
    ojson body = question(ojson::array({tool("m", properties, /*strict=*/true)}));
    body["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"name", "x"}, {"strict", true}, {"schema", format}}}};
    const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
    CHECK(reply.status == 400);
    return ojson::parse(reply.body)["error"]["param"].get<std::string>();
  };
  const ojson refused = {{"a", {{"uniqueItems", true}}}};
  CHECK_THAT(param({{"type", "object"}, {"properties", refused}}, kIdentifier),
             Catch::Equals("response_format"));
  CHECK_THAT(param({{"type", "object"}}, refused), Catch::StartsWith("tools"));
}

TEST_CASE("reasoning that a budget ended: a late </think> is not in the content") {
  ScriptedServer server({"a thought", "</think>", " answer", "</tool_call>"}, kXmlCall,
                        /*thinks=*/true);
  for (const bool has_tools : {false, true}) {
    ojson body = question(has_tools ? ojson::array({tool("m", kIdentifier)}) : ojson());
    if (has_tools) body["parallel_tool_calls"] = false;
    for (const int budget : {-1, 0, 1, 8}) {
      CAPTURE(has_tools, budget);
      if (budget >= 0) body["thinking_token_budget"] = budget;
      const ojson message = server.answered(body)["message"];
      const bool is_ended = budget == 0 || budget == 1;
      CHECK(message.value("reasoning_content", "") == (budget == 0 ? "" : "a thought"));
      CHECK(message["content"] ==
            (is_ended ? "a thought answer</tool_call>" : "answer</tool_call>"));
    }
  }
}

TEST_CASE("call of a record: names that no property has, with values of its type") {
  ScriptedServer server(
      {"<tool_call>", "\n<function=m>\n<parameter=New York>\n", "3",
       "\n</parameter>\n<parameter=東京>\n", "-1", "\n</parameter>\n</function>\n", "</tool_call>"},
      kXmlCall, /*thinks=*/false);
  ojson function = tool("m", ojson::object(), /*strict=*/true);
  function["function"]["parameters"]["additionalProperties"] = {{"type", "integer"}};
  ojson body = question(ojson::array({function}));
  body["tool_choice"] = "required";
  CHECK(ScriptedServer::calls_of(server.answered(body)) ==
        Calls{{"m", R"({"New York": 3, "東京": -1})"}});
}

TEST_CASE("json_object with a schema: the answer is a document of it") {
  ScriptedServer server({"{", "\"x\"", ": ", "2", "1", "}"}, kXmlCall, /*thinks=*/false);
  const ojson schema = {{"type", "object"},
                        {"properties", {{"x", {{"const", 1}}}}},
                        {"required", {"x"}},
                        {"additionalProperties", false},
                        {"uniqueItems", true}};
  ojson body = question({});
  body["response_format"] = {{"type", "json_object"}, {"schema", schema}};
  CHECK(ojson::parse(server.answered(body)["message"]["content"].get<std::string>()) ==
        ojson({{"x", 1}}));
  const HttpReply relaxed = post(server.server().http_port(), "/v1/chat/completions", body.dump());
  CHECK_THAT(relaxed.header("lintel-schema-relaxed"), Catch::Contains("uniqueItems"));
  const ojson response = {{"model", "m"},
                          {"input", "hi"},
                          {"temperature", 0},
                          {"max_output_tokens", 40},
                          {"text", {{"format", {{"type", "json_object"}, {"schema", schema}}}}}};
  const HttpReply reply = post(server.server().http_port(), "/v1/responses", response.dump());
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const ojson made = ojson::parse(reply.body);
  CHECK(made["text"]["format"]["schema"] == schema);
  CHECK(ojson::parse(made["output"][0]["content"][0]["text"].get<std::string>()) ==
        ojson({{"x", 1}}));
}

TEST_CASE("call that is cut: its reason is not tool_calls, and no broken call is in the answer") {
  const std::vector<std::string> cut(kCall.begin(), kCall.begin() + 3);
  ScriptedServer server(cut, kXmlCall, /*thinks=*/false);
  ojson body = question(ojson::array({tool("m", kIdentifier)}));
  body["lintel"] = {{"tool_grammar", false}};
  ojson choice = server.answered(body);
  CHECK(choice["finish_reason"] == "stop");
  CHECK_FALSE(choice["message"].contains("tool_calls"));
  CHECK(choice["message"]["content"] == "");
  body["max_tokens"] = 3;
  choice = server.answered(body);
  CHECK(choice["finish_reason"] == "length");
  CHECK_FALSE(choice["message"].contains("tool_calls"));
  // A call that is whole stays.
  ScriptedServer two(joined(kCall, {"\n<tool_call>\n", "<function=m>\n<parameter=identifier>\nx"}),
                     kXmlCall, /*thinks=*/false);
  body["max_tokens"] = 40;
  choice = two.answered(body);
  CHECK(choice["finish_reason"] == "stop");
  CHECK(ScriptedServer::calls_of(choice) == Calls{{"m", "{\"identifier\": \"abc\"}"}});
}

TEST_CASE("pythonic: a call that is repeated after its end tag leaves no tag in the content") {
  ScriptedServer server({"<|tool_call_start|>", "[m(identifier=\"abc\")]", "<|tool_call_end|>",
                         " [m(identifier=\"abc\")]"},
                        kPythonicCall, /*thinks=*/false);
  const ojson choice = server.answered(question(ojson::array({tool("m", kIdentifier)})));
  CHECK(ScriptedServer::calls_of(choice) == Calls{{"m", "{\"identifier\": \"abc\"}"}});
  const ojson& content = choice["message"]["content"];
  CHECK_THAT(content.is_null() ? "" : content.get<std::string>(), !Catch::Contains("<|"));
}

TEST_CASE("xml: values have the types of references, and names are those declared") {
  ScriptedServer trip(
      {"<tool_call>", "\n<function=m>\n<parameter=trip>\n", "{\"city\": \"Oslo\", \"days\": 3}",
       "\n</parameter>\n<parameter=城市>\n", "10", "\n</parameter>\n<parameter=ids[]>\n",
       "7\n</parameter>\n</function>\n", "</tool_call>"},
      kXmlCall, /*thinks=*/false);
  for (const bool strict : {false, true}) {
    ojson function = tool("m",
                          {{"trip", {{"$ref", "#/$defs/Trip"}}},
                           {"城市", {{"anyOf", {{{"$ref", "#/$defs/N"}}, {{"type", "null"}}}}}},
                           {"ids[]", {{"type", "string"}}}},
                          strict);
    function["function"]["parameters"]["$defs"] = {
        {"Trip",
         {{"type", "object"},
          {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}},
          {"additionalProperties", false}}},
        {"N", {{"type", "integer"}}}};
    for (const char* const forced : {"auto", "required"}) {
      CAPTURE(strict, forced);
      ojson body = question(ojson::array({function}), 60);
      body["tool_choice"] = forced;
      CHECK(
          ScriptedServer::calls_of(trip.answered(body)) ==
          Calls{{"m",
                 "{\"trip\": {\"city\": \"Oslo\", \"days\": 3}, \"城市\": 10, \"ids[]\": \"7\"}"}});
    }
  }
}

}  // namespace
}  // namespace lintel::testing
