// SPDX-License-Identifier: Apache-2.0
// Requests for responses, and their items as messages.
#include "server/openai/response_items.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/chat/template/request_json.h"
#include "server/openai/response_request.h"
#include "server/rpc/status.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using ojson = nlohmann::ordered_json;

ojson items_of(const ojson& input) {
  ojson items;
  const grpc::Status status = read_items(input, "r_in", items);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return items;
}
std::string names_of(const IgnoredMembers& ignored) {
  std::string names;
  REQUIRE(ignored.report(/*refuses=*/false, names).ok());
  return names;
}
ojson messages_of_input(const ojson& input, const ojson& instructions = nullptr) {
  ojson messages;
  const grpc::Status status = messages_of(instructions, items_of(input), 0, messages);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return messages;
}

TEST_CASE("items: a text, short and long forms of messages are stored in one form") {
  CHECK(items_of("Hi")[0] == ojson::parse(R"({"type": "message", "id": "msg_r_in0",
      "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]})"));
  const ojson items = items_of(ojson::parse(R"([
      {"role": "assistant", "content": "A", "phase": "commentary", "id": "mine", "status": null},
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "B"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]},
      {"id": "msg_other"}])"));
  CHECK(items[0]["content"][0].dump() == R"({"type":"output_text","text":"A","annotations":[]})");
  CHECK(items[0]["phase"] == "commentary");
  CHECK(items[0]["id"] == "mine");
  CHECK(items[0]["status"] == "completed");
  CHECK(items[2]["id"] == "fc_r_in2");
  CHECK(items[3]["output"][0]["text"] == "1");
  CHECK(items[4]["id"] == "rs_r_in4");
  CHECK(items[5] == ojson({{"type", "item_reference"}, {"id", "msg_other"}}));
}

TEST_CASE("items: a call without arguments has an empty object") {
  for (const char* const arguments : {"", R"(, "arguments": null)"}) {
    const ojson items =
        items_of(ojson::parse(R"([{"type": "function_call", "call_id": "c", "name": "f")" +
                              std::string(arguments) + "}]"));
    CHECK(items[0]["arguments"] == "{}");
  }
}

TEST_CASE("items: what cannot be read is refused by its place") {
  const auto refusal = [](const char* input) {
    ojson items;
    const grpc::Status status = read_items(ojson::parse(input), "", items);
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  CHECK_THAT(refusal("3"), Contains("input: "));
  CHECK_THAT(refusal(R"([{"role": "user", "content": [{"type": "input_image"}]}])"),
             Contains("input[0].content[0].type: is input_image"));
  CHECK_THAT(refusal(R"([{"role": "user", "content": "a"}, {"type": "web_serch_call"}])"),
             Contains("input[1].type: is web_serch_call"));
  CHECK_THAT(refusal(R"([{"type": "custom_tool_call", "call_id": "c", "name": 3}])"),
             Contains("input[0].name"));
  CHECK_THAT(refusal(R"([{"type": "local_shell_call", "call_id": "c"}])"),
             Contains("input[0].action: is not an object"));
  CHECK_THAT(refusal(R"([{"type": "custom_tool_call_output", "call_id": "c"}])"),
             Contains("input[0].output"));
  CHECK_THAT(refusal(R"([{"role": "robot", "content": "a"}])"), Contains("input[0].role"));
  CHECK_THAT(refusal(R"([{"role": "user"}])"), Contains("input[0].content"));
  CHECK_THAT(refusal(R"([{"type": "function_call", "call_id": 3}])"), Contains("input[0].call_id"));
  CHECK_THAT(refusal("[{}]"), Contains("input[0].type: is missing"));
  CHECK_THAT(refusal("[7]"), Contains("input[0]: is not an object"));
}

TEST_CASE("items: reasoning, a message and calls in a row are one message of the assistant") {
  const ojson messages = messages_of_input(ojson::parse(R"([
      {"role": "user", "content": "Q"},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]},
      {"role": "assistant", "content": "I look."},
      {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{\"x\": 1}"},
      {"type": "function_call_output", "call_id": "b", "output": "2"},
      {"type": "function_call_output", "call_id": "a", "output": "1"},
      {"role": "assistant", "content": "One."},
      {"role": "assistant", "content": "Two."},
      {"role": "user", "content": [{"type": "input_text", "text": "x"},
                                   {"type": "input_text", "text": "y"}]}])"),
                                           "Be brief.");
  CHECK(messages == ojson::parse(R"([
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Q"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "T", "tool_calls": [
          {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
          {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "tool_call_id": "b", "content": "2"},
      {"role": "tool", "tool_call_id": "a", "content": "1"},
      {"role": "assistant", "content": "One."},
      {"role": "assistant", "content": "Two."},
      {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}])"));
}

TEST_CASE("items: calls of custom tools and the local shell are calls of functions") {
  const ojson messages = messages_of_input(ojson::parse(R"([
      {"role": "user", "content": "Q"},
      {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "x\n\"y\""},
      {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
      {"type": "local_shell_call", "id": "lsh_1", "call_id": null, "status": "completed",
       "action": {"type": "exec", "command": ["ls"]}},
      {"type": "local_shell_call_output", "id": "lsh_1", "output": "made.txt"},
      {"type": "local_shell_call", "call_id": "b", "action": {"type": "exec"}},
      {"type": "function_call_output", "call_id": "b", "output": null}])"));
  const auto call = [](const char* id, const char* name, const char* arguments) {
    return ojson({{"id", id},
                  {"type", "function"},
                  {"function", {{"name", name}, {"arguments", arguments}}}});
  };
  REQUIRE(messages.size() == 7);
  CHECK(messages[1]["tool_calls"] == ojson::array({call("a", "patch", R"({"input":"x\n\"y\""})")}));
  CHECK(messages[2]["content"] == "ok");
  CHECK(messages[3]["tool_calls"] ==
        ojson::array({call("lsh_1", "local_shell", R"({"type":"exec","command":["ls"]})")}));
  CHECK(messages[4] ==
        ojson({{"role", "tool"}, {"tool_call_id", "lsh_1"}, {"content", "made.txt"}}));
  CHECK(messages[6]["content"] == "");
  // Stored items are read again.
  const ojson items = items_of(ojson::parse(
      R"([{"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": null}])"));
  CHECK(items[0] == ojson::parse(R"({"type": "custom_tool_call", "id": "ctc_r_in0",
      "call_id": "a", "name": "patch", "input": "", "status": "completed"})"));
  CHECK(items_of(items) == items);
}

TEST_CASE("items: a picture or file in a call's output is left out by name, elsewhere refused") {
  for (const char* const kind : {"function_call", "custom_tool_call"}) {
    CAPTURE(kind);
    const std::string of_kind = kind;
    const ojson input =
        ojson::array({{{"type", of_kind}, {"call_id", "c"}, {"name", "view"}, {"input", "{}"}},
                      {{"type", of_kind + "_output"},
                       {"call_id", "c"},
                       {"output",
                        {{{"type", "input_text"}, {"text", "Done."}},
                         {{"type", "input_image"}, {"image_url", "data:image/png;base64,AAAA"}},
                         {{"type", "input_image"}, {"image_url", "data:image/png;base64,BBBB"}},
                         {{"type", "input_file"}, {"file_data", "AAAA"}}}}}});
    IgnoredMembers ignored;
    name_unread_items(input, ignored);
    CHECK(names_of(ignored) == "output=input_image, output=input_file");
    const ojson items = items_of(input);
    CHECK(items_of(items) == items);  // as it is stored
    CHECK_THAT(items.dump(), !Contains("base64"));
    const ojson messages = messages_of_input(input);
    REQUIRE(messages.size() == 2);
    REQUIRE(messages[1]["content"].size() == 4);
    CHECK(messages[1]["content"][0]["text"] == "Done.");
    CHECK_THAT(messages[1]["content"][1]["text"].get<std::string>(), Contains("image"));
    CHECK_THAT(messages[1]["content"][3]["text"].get<std::string>(), Contains("file"));
  }
  ojson items;
  const grpc::Status unknown = read_items(ojson::parse(R"([
      {"type": "function_call", "call_id": "c", "name": "f"},
      {"type": "function_call_output", "call_id": "c", "output": [{"type": "video"}]}])"),
                                          "", items);
  CHECK_THAT(unknown.error_message(), Contains("input[1].output[0].type: is video"));
}

TEST_CASE("items: those of tools that run elsewhere are kept, named once, and not shown") {
  const ojson input = ojson::parse(R"([
      {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [{"type": "x"}]},
      {"role": "user", "content": "Q"},
      {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "T"}]},
      {"type": "web_search_call", "action": {"type": "search", "query": "q"}, "status": null},
      {"type": "web_search_call", "action": {"type": "search", "query": "r"}},
      {"role": "assistant", "content": "A"}])");
  IgnoredMembers ignored;
  name_unread_items(input, ignored);
  CHECK(names_of(ignored) == "input=additional_tools, input=web_search_call");
  name_unread_items(ojson("Hi"), ignored);
  name_unread_items(ojson::parse(R"([1, {"type": 1}, {"type": "message"}])"), ignored);
  CHECK(names_of(ignored) == "input=additional_tools, input=web_search_call");
  const ojson items = items_of(input);
  REQUIRE(items.size() == 6);
  CHECK(items[3] == ojson::parse(R"({"type": "web_search_call", "id": "item_r_in3",
      "action": {"type": "search", "query": "q"}})"));
  ojson messages;
  REQUIRE(messages_of(nullptr, items, 0, messages).ok());
  CHECK(messages == ojson::parse(R"([{"role": "user", "content": "Q"},
      {"role": "assistant", "content": "A", "reasoning_content": "T"}])"));
}

TEST_CASE("items: null content has no parts, and empty content leaves sealed reasoning sealed") {
  const ojson items = items_of(ojson::parse(R"([
      {"role": "assistant", "content": null},
      {"type": "reasoning", "content": [], "encrypted_content": "x"},
      {"type": "reasoning", "content": null, "encrypted_content": "x"}])"));
  CHECK(items[0]["content"] == ojson::array());
  CHECK_FALSE(items[1].contains("content"));
  CHECK(has_sealed_items(items));
  CHECK(messages_of_input(ojson::parse(R"([{"role": "user", "content": null}])"))[0]["content"] ==
        "");
}

TEST_CASE("items: an output whose call is not there is refused") {
  ojson messages;
  const ojson items = items_of(ojson::parse(R"([{"role": "user", "content": "Q"},
      {"type": "function_call_output", "call_id": "nosuch", "output": "1"}])"));
  const grpc::Status status = messages_of(nullptr, items, 0, messages);
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(status.error_message(), Contains("input[1].call_id: is nosuch"));
}

TEST_CASE("items: a compaction stands for all before it, sealed reasoning for its text") {
  const Sealer sealer(Sealer::Secret{}, "ada");
  const ojson before = items_of(ojson::parse(R"([{"role": "user", "content": "A"},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}])"));
  ojson item;
  REQUIRE(compact_items(before, sealer, "cmp_1", item).ok());
  CHECK(item["encrypted_content"].get<std::string>().find("call_id") == std::string::npos);
  const ojson thought = {{"type", "reasoning"},
                         {"summary", ojson::array()},
                         {"encrypted_content", seal_reasoning(sealer, "T")}};
  ojson items = items_of(
      ojson::array({{{"role", "user"}, {"content", "old"}},
                    item,
                    {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "1"}},
                    thought,
                    {{"role", "assistant"}, {"content", "B"}},
                    {{"type", "function_call_output"}, {"call_id", "d"}, {"output", "1"}}}));
  REQUIRE(has_sealed_items(items));
  std::ptrdiff_t first_input = 0;
  ojson opened = items;
  REQUIRE(open_items(sealer, opened, first_input).ok());
  CHECK_FALSE(has_sealed_items(opened));
  REQUIRE(opened.size() == 6);
  CHECK(opened[0] == before[0]);
  CHECK(opened[3]["content"][0]["text"] == "T");
  ojson messages;
  // The place of an error is the request's.
  CHECK_THAT(messages_of(nullptr, opened, first_input, messages).error_message(),
             Contains("input[5].call_id: is d"));
  opened.erase(5);
  REQUIRE(messages_of(nullptr, opened, first_input, messages).ok());
  CHECK(messages[0]["content"] == "A");
  CHECK(messages[3]["reasoning_content"] == "T");

  for (const bool changed : {true, false}) {
    ojson theirs = items;
    if (changed) theirs[1]["encrypted_content"] = "AAAA";
    const grpc::Status refused =
        open_items(changed ? sealer : Sealer(Sealer::Secret{}, "eve"), theirs, first_input = 0);
    CHECK(refused.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK_THAT(refused.error_message(), Contains("input[1].encrypted_content"));
  }
  const ojson large = ojson::array({std::string(kMostItemBytes, 'x')});
  CHECK_THAT(compact_items(large, sealer, "cmp_1", item).error_message(), Contains("50331648"));
}

TEST_CASE("items: thousands of reasoning items in a row are joined in time linear in their bytes",
          "[threat-95]") {
  const auto seconds_of = [](std::size_t count) {
    const ojson item = ojson::parse(R"({"type": "reasoning", "id": "r", "content": [
        {"type": "reasoning_text", "text": "thought "}, {"type": "reasoning_text", "text": "on"}]})");
    ojson items = std::vector<ojson>(count, item), messages;
    const double seconds =
        cpu_seconds_of([&] { REQUIRE(messages_of(nullptr, items, 0, messages).ok()); });
    REQUIRE(messages.size() == 1);
    const std::string all = messages[0]["reasoning_content"];
    CHECK(all.size() == count * 11 - 1);
    CHECK(all.starts_with("thought on\nthought on"));
    return seconds;
  };
  // Four times the bytes: quadratic code takes sixteen times as long.
  seconds_of(1000);
  const double small = seconds_of(20'000), large = seconds_of(80'000);
  CHECK(large < 10 * small + 0.05);
}

TEST_CASE("items: references are found by response, and each counts as often as it is named",
          "[threat-95]") {
  const std::string a(32, 'a'), b(32, 'b');
  const auto id = [](const std::string& digits, int at) {
    return "msg_" + digits + "_in" + std::to_string(at);
  };
  ojson items = items_of(ojson::array({{{"id", id(a, 0)}},
                                       {{"id", id(b, 0)}},
                                       {{"role", "user"}, {"content", "Q"}},
                                       {{"id", id(a, 0)}},
                                       {{"id", id(a, 1)}}}));
  References references = references_of(items);
  REQUIRE(references.size() == 2);
  CHECK(references.at(a).at(id(a, 0)) == std::vector<std::size_t>{0, 3});
  const ojson found = ojson::array({{{"id", id(a, 0)}, {"text", std::string(1000, 'x')}},
                                    {{"id", "other"}},
                                    {{"id", id(a, 1)}, {"text", "y"}}});
  std::size_t bytes = 0;
  REQUIRE(put_in_place(found, references.at(a), items, bytes));
  CHECK(references.at(a).empty());
  CHECK(items[0] == found[0]);
  CHECK(items[3] == found[0]);
  CHECK(items[4] == found[2]);
  CHECK(bytes == 2 * tree_memory(found[0]) + tree_memory(found[2]));
  REQUIRE(put_in_place(found, references.at(b), items, bytes));
  CHECK(references.at(b).size() == 1);  // it has none of it

  // A hundred times an item of 1 MB is more than a request may hold.
  const ojson large = ojson::array({{{"id", id(a, 0)}, {"text", std::string(1'000'000, 'x')}}});
  for (const std::size_t times : {45, 100}) {
    ojson many = items_of(std::vector<ojson>(times, ojson({{"id", id(a, 0)}})));
    References all = references_of(many);
    bytes = tree_memory(many);
    CHECK(put_in_place(large, all.at(a), many, bytes) == (times == 45));
    CHECK(bytes <= kMostItemBytes);
  }
  for (const char* const odd : {"", "_", "msg", "msg_", "a_b_c_d"}) {
    CHECK(references_of(ojson::array({{{"type", "item_reference"}, {"id", odd}}})).size() == 1);
  }
}

struct CountingBudget final : JsonBudget {
  bool charge(std::int64_t bytes) override {
    held += bytes;
    return true;
  }
  bool cancelled() const override { return false; }
  std::int64_t held = 0;
};

TEST_CASE("items: a value's memory is what the reader of requests counts") {
  for (const char* const text : {R"({"a": [1, "two", null, true], "bb": {"c": "ddd"}})",
                                 R"([[], {}, "", "a text of more than 15 bytes"])", "1"}) {
    JsonFailure failure;
    const std::optional<ojson> read = read_request_json(text, {}, failure);
    REQUIRE(read);
    const auto bytes = static_cast<std::int64_t>(tree_memory(*read));
    CountingBudget budget;
    CHECK(read_request_json(text, {.budget = &budget}, failure));
    CHECK(budget.held == bytes);
    JsonBounds bounds;
    bounds.max_bytes = bytes - 1;
    if (bytes > 0) CHECK_FALSE(read_request_json(text, bounds, failure));
  }
}

ResponseRequest read(const ojson& body, ResponseUse use = ResponseUse::kCreate) {
  ResponseRequest request;
  const grpc::Status status = read_response_request(body, use, request);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return request;
}
std::string refused(ojson body, ResponseUse use = ResponseUse::kCreate) {
  ResponseRequest request;
  const grpc::Status status = read_response_request(body, use, request);
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  return status.error_message();
}

TEST_CASE("request: tools, choices and formats become a chat completion's, and are repeated flat") {
  const ResponseRequest request = read(ojson::parse(R"({
      "model": "m", "input": "Hi", "instructions": "Be brief.", "temperature": 0.5, "seed": 3,
      "max_output_tokens": 20, "stream": true, "store": null,
      "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": null}],
      "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
      "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
      "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"},
      "include": ["reasoning.encrypted_content"], "truncation": "auto"})"));
  CHECK(request.streams);
  CHECK(request.store);
  CHECK(request.seals_reasoning);
  CHECK_FALSE(request.has_logprobs);
  const api::ChatParams& chat = request.chat;
  CHECK(chat.base.model == "m");
  CHECK(chat.base.sampling.temperature == 0.5F);
  CHECK(chat.base.sampling.seed == 3);
  CHECK(chat.tools == ojson::parse(R"([{"type": "function",
      "function": {"name": "f", "parameters": {"type": "object"}}}])"));
  CHECK(chat.offered_tools == std::vector<std::string>{"f"});
  CHECK(chat.tool_choice == api::ChatParams::ToolChoice::kAuto);
  CHECK(chat.format == api::ChatParams::Format::kJsonSchema);
  CHECK(ojson::parse(chat.format_text) == ojson({{"type", "object"}}));
  CHECK_FALSE(chat.strict_schema);
  CHECK(chat.reasoning_effort == "low");
  CHECK(chat.max_tokens == 20);
  CHECK(chat.messages.is_null());
  const ojson& response = request.response;
  CHECK(response["tools"] == ojson::parse(R"([{"type": "function", "name": "f",
      "description": null, "parameters": {"type": "object"}, "strict": null}])"));
  CHECK(response["tool_choice"]["mode"] == "auto");
  CHECK(response["text"]["format"]["strict"] == false);
  CHECK(response["reasoning"] == ojson({{"effort", "low"}, {"summary", "auto"}}));
  CHECK(response["truncation"] == "disabled");
  CHECK(response["temperature"] == 0.5);
  CHECK(response["top_p"] == 1.0);
  CHECK(response["metadata"] == ojson({{"a", "b"}}));
  CHECK(response["max_output_tokens"] == 20);
}

TEST_CASE("request: tools that run elsewhere are left out and named, custom ones are functions") {
  const ResponseRequest request = read(ojson::parse(R"({
      "model": "m", "input": "Hi", "max_output_tokens": 1, "client_metadata": {"a": {"b": 1}},
      "include": ["reasoning.encrypted_content", "web_search_call.results"],
      "reasoning": {"effort": "low", "context": "all_turns"},
      "tools": [{"type": "web_search"},
                {"type": "function", "name": "shell", "strict": false},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
                {"type": "custom", "name": "patch", "description": "d", "format": {
                 "type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
                {"type": "custom", "name": "say"}],
      "tool_choice": {"type": "custom", "name": "patch"}})"));
  CHECK(request.seals_reasoning);
  CHECK(request.chat.max_tokens == 1);
  CHECK(names_of(request.ignored) ==
        "include=web_search_call.results, tools=web_search, tools=namespace, tools.format=lark, "
        "reasoning.context");
  REQUIRE(request.chat.tools.size() == 3);
  CHECK(request.chat.tools[0]["function"] == ojson({{"name", "shell"}, {"strict", false}}));
  CHECK(request.chat.tools[1]["function"]["name"] == "patch");
  CHECK(request.chat.tools[1]["function"]["parameters"]["required"] == ojson::array({"input"}));
  CHECK(request.chat.offered_tools == std::vector<std::string>{"patch"});
  CHECK(request.chat.tool_choice == api::ChatParams::ToolChoice::kRequired);
  REQUIRE(request.response["tools"].size() == 3);
  CHECK(request.response["tools"][2] == ojson::parse(R"({"type": "custom", "name": "say",
      "description": null, "format": {"type": "text"}})"));
  CHECK(request.response["tool_choice"] == ojson({{"type", "custom"}, {"name", "patch"}}));
}

TEST_CASE("request: json_object has a schema, if one is given") {
  const auto request = [](const char* format) {
    return read({{"model", "m"}, {"input", "Hi"}, {"text", {{"format", ojson::parse(format)}}}});
  };
  const ResponseRequest with = request(R"({"type": "json_object", "schema": {"type": "object"}})");
  CHECK(with.chat.format == api::ChatParams::Format::kJsonObject);
  CHECK(ojson::parse(with.chat.format_text) == ojson({{"type", "object"}}));
  CHECK(with.response["text"]["format"]["schema"] == ojson({{"type", "object"}}));
  const ResponseRequest without = request(R"({"type": "json_object", "schema": null})");
  CHECK(without.chat.format == api::ChatParams::Format::kJsonObject);
  CHECK(without.response["text"]["format"] == ojson({{"type", "json_object"}}));
}

TEST_CASE("request: members of other servers are a chat's") {
  const ResponseRequest request = read(ojson::parse(R"({
      "input": "Hi", "min_tokens": 2, "ignore_eos": true, "stop_token_ids": [5],
      "include_stop_str_in_output": true, "skip_special_tokens": false, "timings_per_token": true,
      "enable_thinking": false, "documents": [{"text": "D"}], "return_token_ids": true})"));
  const api::ChatParams& chat = request.chat;
  CHECK(chat.base.stop.min_tokens == 2);
  CHECK(chat.base.stop.ignore_eos);
  CHECK(chat.base.stop.token_ids == std::vector<std::int32_t>{5});
  CHECK(chat.base.stop.include_in_output);
  CHECK_FALSE(chat.skip_special_tokens);
  CHECK(request.has_timings);
  CHECK(chat.kwargs == ojson({{"enable_thinking", false}, {"thinking", false}}));
  CHECK(chat.documents == ojson::parse(R"([{"text": "D"}])"));
  CHECK_FALSE(chat.return_token_ids);
  CHECK(names_of(request.ignored) == "return_token_ids");
  CHECK_FALSE(read({{"input", "Hi"}}).has_timings);
}

TEST_CASE("request: one member says what form the text has") {
  using Format = api::ChatParams::Format;
  const auto chat_of = [](const char* members) {
    ojson body = {{"input", "Hi"}};
    body.update(ojson::parse(members));
    return read(body).chat;
  };
  const api::ChatParams choice = chat_of(R"({"structured_outputs": {"choice": ["a", "b"]}})");
  CHECK(choice.format == Format::kGrammar);
  CHECK(choice.format_text == R"(root ::= "a" | "b")");
  CHECK(chat_of(R"({"guided_choice": ["a", "b"]})").format_text == choice.format_text);
  CHECK(chat_of(R"({"guided_regex": "a+"})").format == Format::kPattern);
  CHECK(chat_of(R"({"guided_json": {"type": "object"}})").format == Format::kJsonSchema);
  CHECK(chat_of(R"({"grammar": "root ::= \"a\""})").format == Format::kGrammar);
  CHECK(chat_of(R"({"guided_grammar": "root ::= \"a\""})").format_text == R"(root ::= "a")");
  const auto wrong = [](const char* members) {
    ojson body = {{"input", "Hi"}};
    body.update(ojson::parse(members));
    return refused(body);
  };
  CHECK_THAT(wrong(R"({"guided_regex": "a", "text": {"format": {"type": "json_object"}}})"),
             Contains("guided_regex: cannot be combined with text.format"));
  CHECK_THAT(wrong(R"({"ignore_eos": true, "text": {"format": {"type": "json_object"}}})"),
             Contains("ignore_eos: cannot be combined with text.format"));
  CHECK_THAT(wrong(R"({"guided_regex": "a", "grammar": "root ::= \"a\""})"),
             Contains("guided_regex: cannot be combined with grammar"));
  CHECK_THAT(wrong(R"({"ignore_eos": true, "guided_regex": "a"})"),
             Contains("ignore_eos: cannot be combined with guided_regex"));
  CHECK_THAT(wrong(R"({"structured_outputs": {"structural_tag": "x"}})"),
             Contains("structured_outputs: has structural_tag, which is not served"));
  // Unknown members within are named as a chat's are.
  ojson inner =
      ojson::parse(R"({"input": "Hi", "structured_outputs": {"regex": "a", "other": 1}})");
  CHECK(names_of(read(inner).ignored) == "structured_outputs.other");
}

TEST_CASE("request: what is not served is refused by its name") {
  const auto with = [](const char* name, ojson value) {
    ojson body = {{"model", "m"}, {"input", "Hi"}};
    body[name] = std::move(value);
    return refused(body);
  };
  CHECK_THAT(with("conversation", "c"), Contains("conversation: is not served"));
  CHECK_THAT(with("instruction", "x"), Contains("did you mean instructions?"));
  CHECK_THAT(with("best_of", 2), Contains("best_of: changes the answer"));
  CHECK_THAT(refused({{"input", "Hi"}, {"background", true}, {"store", false}}),
             Contains("background: true goes with store"));
  CHECK_THAT(with("max_output_tokens", 0), Contains("max_output_tokens") && Contains("from 1 "));
  CHECK_THAT(with("top_logprobs", -1), Contains("top_logprobs: is not a whole number from 0 to"));
  CHECK_THAT(with("tools", ojson::array({{{"name", "f"}}})), Contains("tools[0].type: is not"));
  CHECK_THAT(with("tool_choice", {{"type", "web_search"}}),
             Contains("tool_choice: names a tool of type web_search"));
  CHECK_THAT(with("tool_choice", {{"type", "allowed_tools"}, {"tools", {{{"type", "mcp"}}}}}),
             Contains("tool_choice: names a tool of type mcp"));
  const auto tool = [&](const char* more) {
    return with("tools", ojson::array({{{"type", "web_search"}}, ojson::parse(more)}));
  };
  CHECK_THAT(tool(R"({"type": "custom"})"), Contains("tools[1].name: is not a text"));
  CHECK_THAT(tool(R"({"type": "function", "name": "a b"})"),
             Contains("tools[1].name: has characters other than"));
  CHECK_THAT(tool(R"({"type": "custom", "name": "a", "description": 1})"),
             Contains("tools[1].description: is not a text"));
  CHECK_THAT(tool(R"({"type": "custom", "name": "a", "format": {"type": "xml"}})"),
             Contains("tools[1].format: is not of type text or grammar"));
  CHECK_THAT(tool(R"({"type": "custom", "name": "a", "format": {"type": "grammar",
      "syntax": "gbnf"}})"),
             Contains("tools[1].format.syntax: is not lark or regex"));
  CHECK_THAT(tool(R"({"type": "custom", "name": "a", "format": {"type": "grammar",
      "syntax": "regex"}})"),
             Contains("tools[1].format.definition: is not a text"));
  const auto expression = [&](const std::string& definition) {
    const ojson format = {{"type", "grammar"}, {"syntax", "regex"}, {"definition", definition}};
    return tool(ojson{{"type", "custom"}, {"name", "a"}, {"format", format}}.dump().c_str());
  };
  for (const char* const invalid : {"(", "[", "(?<=a)b", "a)|(b", "a$b"}) {
    CAPTURE(invalid);
    CHECK_THAT(expression(invalid), Contains("tools[1].format.definition: is not a regular "
                                             "expression that is served: pattern"));
  }
  read(ojson::parse(R"({"model": "m", "input": "Hi", "tools": [{"type": "custom", "name": "a",
      "format": {"type": "grammar", "syntax": "regex", "definition": "^[a-z]+$|x"}}]})"));
  CHECK_THAT(with("tools", ojson::parse(R"([{"type": "function", "name": "a"},
                                            {"type": "custom", "name": "a"}])")),
             Contains("tools[1].name: is a, the name of another tool"));
  CHECK_THAT(with("include", ojson::array({1})), Contains("include"));
  CHECK_THAT(with("text", {{"format", {{"type", "xml"}}}}), Contains("text.format"));
  CHECK_THAT(with("store", "yes"), Contains("store: is not true or false"));
  CHECK_THAT(with("metadata", {{std::string(65, 'k'), "v"}}), Contains("metadata"));
  CHECK_THAT(refused({{"model", "m"}}), Contains("input: is missing"));
  CHECK_THAT(refused({{"input", "Hi"}}, ResponseUse::kCompact), Contains("model: is missing"));
}

TEST_CASE("request: members that no row has are ignored and named") {
  const ojson body = {
      {"model", "m"},
      {"input", "Hi"},
      {"no_such", 1},
      {"stream", true},
      {"stream_options", {{"include_obfuscation", true}}},
      {"reasoning", {{"effort", "low"}, {"budget", 1}}},
      {"text", {{"format", {{"type", "text"}, {"more", 1}}}, {"other", 1}, {"none", nullptr}}}};
  std::string header;
  CHECK(read(body).ignored.report(/*refuses=*/false, header).ok());
  CHECK(header ==
        "no_such, stream_options.include_obfuscation, text.format.more, text.other, "
        "reasoning.budget");
}

TEST_CASE("request: a chat's refusal has the names of a response's members") {
  const auto renamed = [](const char* field) {
    return with_response_members(invalid_argument({{field, "is wrong"}}, "REASON")).error_message();
  };
  CHECK(renamed("messages[3].content") == "input[3].content: is wrong");
  CHECK(renamed("max_completion_tokens") == "max_output_tokens: is wrong");
  CHECK(renamed("tools[0].function.name") == "tools[0].name: is wrong");
  CHECK(renamed("response_format.json_schema.schema/a") == "text.format.schema/a: is wrong");
  CHECK(renamed("temperature") == "temperature: is wrong");
}

}  // namespace
}  // namespace lintel::testing
