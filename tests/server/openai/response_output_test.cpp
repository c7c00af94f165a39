// SPDX-License-Identifier: Apache-2.0
// Answers as items and events.
#include "server/openai/response_output.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/chat/template/request_json.h"
#include "tests/server/chat/answer_cases.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

ojson golden_streams() {
  std::ifstream file(std::filesystem::path(LINTEL_TEST_DATA) /
                     "golden/chat/responses/streams.json");
  REQUIRE(file);
  return ojson::parse(file);
}

// Without the ids of calls, which draws make.
std::string comparable(ojson event) {
  const auto mask = [](ojson& item) {
    if (item.contains("call_id")) item["call_id"] = "call";
  };
  if (event.contains("item")) mask(event["item"]);
  if (event.contains("response")) {
    for (ojson& item : event["response"]["output"]) mask(item);
  }
  return event.dump();
}

// The answer of a case, whose pieces come in messages of `group` tokens.
struct Answer {
  Answer(const ojson& file, const ojson& item, std::size_t group)
      : output(item["responses_events"][0]["response"], "") {
    const std::vector<std::string> pieces = item["pieces"];
    const ChatOutput chat = output_of_case(file, item);
    ChatChoice choice(chat, 0);
    output.begin(&events);
    v1::ChatResponse message;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      choice.push({.id = static_cast<std::int32_t>(i)}, message);
      if ((i + 1) % group != 0) continue;
      output.push(message, &events);
      message.Clear();
    }
    choice.finish(item["end"] == "stop", message);
    set_golden_usage(*message.mutable_usage());
    output.push(message, &events);
    output.finish(1764000001, &events);
  }

  v1::ResponseEvents events;
  ResponseOutput output;
};

TEST_CASE("goldens: an output as the events of a response, however its tokens are grouped") {
  const ojson file = golden_streams();
  for (const ojson& item : file["cases"]) {
    CAPTURE(item["name"].get<std::string>());
    const ojson& expected = item["responses_events"];
    for (const std::size_t group : {1, 2, 100}) {
      CAPTURE(group);
      const Answer answer(file, item, group);
      REQUIRE(answer.events.events_size() == static_cast<int>(expected.size()));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const v1::ResponseEvent& event = answer.events.events(static_cast<int>(i));
        CHECK(event.type() == expected[i]["type"].get<std::string>());
        CHECK(comparable(ojson::parse(event.body())) == comparable(expected[i]));
      }
    }
  }
}

TEST_CASE("events: an answer ends where it would have more than 128 calls") {
  const ojson file = golden_streams();
  ojson item = file["cases"][0];
  item["dialect"] = "hermes";
  item["reasoning"] = "tags";
  item["parallel"] = true;
  item["end"] = "stop";
  for (const int count : {128, 129}) {
    CAPTURE(count);
    item["pieces"] = {"<think>Hm</think>"};
    for (int i = 0; i < count; ++i) {
      item["pieces"].push_back("x");
      item["pieces"].push_back(
          "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>");
    }
    item["pieces"].push_back("y");
    const Answer answer(file, item, 3);
    const ojson& response = answer.output.response();
    CHECK(response["status"] == (count == 128 ? "completed" : "incomplete"));
    // Reasoning, a message before each call, and one after the last.
    REQUIRE(response["output"].size() == 1 + 2 * 128 + 1);
    CHECK(response["output"].back()["content"][0]["text"] == (count == 128 ? "y" : "x"));
  }
}

// Repeats the events in messages of a few.
v1::ResponseEvents repeated(const ojson& response, const ojson& pieces, const std::string& suffix,
                            std::int64_t after) {
  RepeatedEvents events(response, pieces, suffix, after);
  v1::ResponseEvents all;
  for (bool is_last = false; !is_last;) {
    v1::ResponseEvents some;
    is_last = events.read(3, some);
    all.MergeFrom(some);
  }
  return all;
}

TEST_CASE("events: they are made again from what is kept of a response, from any number on") {
  const ojson file = golden_streams();
  for (const ojson& item : file["cases"]) {
    CAPTURE(item["name"].get<std::string>());
    const Answer answer(file, item, 1);
    const int count = answer.events.events_size();
    for (int after = -1; after < count + 1; ++after) {
      const v1::ResponseEvents again =
          repeated(answer.output.response(), answer.output.pieces(), "", after);
      REQUIRE(again.events_size() == std::max(count - after - 1, 0));
      for (int i = 0; i < again.events_size(); ++i) {
        CHECK(again.events(i).body() == answer.events.events(i + after + 1).body());
      }
      CHECK(ojson::parse(again.response()) == answer.output.response());
    }
  }
}

TEST_CASE("events: a response that fails or is cancelled closes its open item") {
  v1::ChatResponse message;
  message.add_deltas()->set_content("Hel");
  for (const bool fails : {true, false}) {
    CAPTURE(fails);
    ResponseOutput output(begun_response({{"id", "resp_0"}}), "a_");
    v1::ResponseEvents events;
    output.begin(&events);
    output.push(message, &events);
    if (fails) {
      output.fail("server_error", "why", &events);
    } else {
      output.cancel(&events);
    }
    const ojson& response = output.response();
    CHECK(response["status"] == (fails ? "failed" : "cancelled"));
    CHECK(response["output"][0]["id"] == "msg_a_0");
    CHECK(response["output"][0]["status"] == "incomplete");
    CHECK(response["error"].is_null() != fails);
    const std::string last = events.events(events.events_size() - 1).type();
    CHECK(last == (fails ? "response.failed" : "response.incomplete"));
    const v1::ResponseEvents again = repeated(response, output.pieces(), "a_", -1);
    REQUIRE(again.events_size() == events.events_size());
    CHECK(again.events(again.events_size() - 1).body() ==
          events.events(events.events_size() - 1).body());
  }
}

TEST_CASE("events: a call that broke off is left out where there is no stream") {
  v1::ChatResponse message;
  message.add_deltas()->mutable_call()->set_id("call_0");
  message.mutable_deltas(0)->mutable_call()->set_name("f");
  message.mutable_deltas(0)->mutable_call()->set_arguments("{\"a\": ");
  message.add_finished()->set_reason(v1::CHAT_FINISH_REASON_STOP);
  for (const bool is_streamed : {false, true}) {
    CAPTURE(is_streamed);
    ResponseOutput output(begun_response({{"id", "resp_0"}}), "a_");
    v1::ResponseEvents made;
    v1::ResponseEvents* const events = is_streamed ? &made : nullptr;
    output.begin(events);
    output.push(message, events);
    output.finish(1764000001, events);
    const ojson& response = output.response();
    CHECK(response["status"] == "completed");
    REQUIRE(response["output"].size() == 1);
    CHECK(output.pieces().size() == 1);
    CHECK(response["output"][0]["type"] == (is_streamed ? "function_call" : "message"));
    CHECK(response["output"][0]["status"] == (is_streamed ? "incomplete" : "completed"));
    if (!is_streamed) continue;
    // Its arguments end as far as they came.
    REQUIRE(made.events_size() > 4);
    CHECK(ojson::parse(made.events(4).body()) ==
          ojson::parse(R"({"type": "response.function_call_arguments.done", "sequence_number": 4,
              "item_id": "fc_a_0", "output_index": 0, "arguments": "{\"a\": "})"));
    CHECK(made.events(5).type() == "response.output_item.done");
  }
}

// The events of a response whose one call comes in these pieces of arguments.
v1::ResponseEvents events_of_call(const std::string& tool, const std::vector<std::string>& pieces,
                                  ResponseOutput& output) {
  v1::ChatResponse message;
  for (const std::string& piece : pieces) {
    v1::ToolCallDelta& call = *message.add_deltas()->mutable_call();
    if (&piece == &pieces.front()) {
      call.set_id("call_0");
      call.set_name(tool);
    }
    call.set_arguments(piece);
  }
  message.add_finished()->set_reason(v1::CHAT_FINISH_REASON_TOOL_CALLS);
  v1::ResponseEvents events;
  output.begin(&events);
  output.push(message, &events);
  output.finish(1764000001, &events);
  return events;
}

TEST_CASE("events: a custom tool's call has its text, also when it is repeated") {
  const ojson empty = begun_response(ojson::parse(R"({"id": "resp_0", "tools": [
      {"type": "custom", "name": "patch"}, {"type": "function", "name": "f"}]})"));
  ResponseOutput output(empty, "a_");
  const v1::ResponseEvents events =
      events_of_call("patch", {"{\"inp", "ut\": \"", "a\\", "nb", "c\"}"}, output);
  std::vector<ojson> shown;
  for (const v1::ResponseEvent& event : events.events()) {
    shown.push_back(ojson::parse(event.body()));
    shown.back().erase("sequence_number");
  }
  REQUIRE(shown.size() == 9);
  CHECK(shown[2] == ojson::parse(R"({"type": "response.output_item.added", "output_index": 0,
      "item": {"type": "custom_tool_call", "id": "ctc_a_0", "call_id": "call_0", "name": "patch",
               "input": "", "status": "in_progress"}})"));
  const auto delta = [](const char* text) {
    return ojson({{"type", "response.custom_tool_call_input.delta"},
                  {"item_id", "ctc_a_0"},
                  {"output_index", 0},
                  {"delta", text}});
  };
  CHECK(shown[3] == delta("a"));
  CHECK(shown[4] == delta("\nb"));
  CHECK(shown[5] == delta("c"));
  CHECK(shown[6] == ojson::parse(R"({"type": "response.custom_tool_call_input.done",
      "item_id": "ctc_a_0", "output_index": 0, "input": "a\nbc"})"));
  CHECK(shown[7]["item"] == ojson::parse(R"({"type": "custom_tool_call", "id": "ctc_a_0",
      "call_id": "call_0", "name": "patch", "input": "a\nbc", "status": "completed"})"));
  CHECK(shown[8]["type"] == "response.completed");
  const v1::ResponseEvents again = repeated(output.response(), output.pieces(), "a_", -1);
  REQUIRE(again.events_size() == events.events_size());
  for (int i = 0; i < again.events_size(); ++i) {
    CHECK(again.events(i).body() == events.events(i).body());
  }
  // A function of another name stays one, and a call that breaks off is not complete.
  ResponseOutput function(empty, "");
  events_of_call("f", {"{\"input\": \"a\"}"}, function);
  CHECK(function.response()["output"][0]["arguments"] == "{\"input\": \"a\"}");
  ResponseOutput broken(empty, "");
  const v1::ResponseEvents cut = events_of_call("patch", {"{\"input\": \"a"}, broken);
  CHECK(broken.response()["output"][0]["status"] == "incomplete");
  CHECK(broken.response()["output"][0]["input"] == "a");
  const v1::ResponseEvents cut_again = repeated(broken.response(), broken.pieces(), "", -1);
  REQUIRE(cut_again.events_size() == cut.events_size());
  for (int i = 0; i < cut.events_size(); ++i) {
    CHECK(cut_again.events(i).body() == cut.events(i).body());
  }
}

TEST_CASE("events: a summary that is asked for is the text of the reasoning") {
  v1::ChatResponse message;
  message.add_deltas()->set_reasoning("Hm");
  message.add_deltas()->set_reasoning(", yes");
  message.add_deltas()->set_content("Yes");
  ResponseOutput output(begun_response({{"id", "resp_0"}, {"reasoning", {{"summary", "auto"}}}}),
                        "");
  v1::ResponseEvents events;
  output.begin(&events);
  output.push(message, &events);
  output.finish(0, &events);
  std::string types, summary;
  for (const v1::ResponseEvent& event : events.events()) {
    const std::string type = event.type();
    if (type.find("reasoning") == std::string::npos) continue;
    types += type.substr(std::string("response.reasoning").size()) + " ";
    if (type == "response.reasoning_summary_text.delta") {
      summary += ojson::parse(event.body())["delta"];
    }
  }
  CHECK(types ==
        "_summary_part.added .delta _summary_text.delta .delta _summary_text.delta .done "
        "_summary_text.done _summary_part.done ");
  CHECK(summary == "Hm, yes");
  const ojson& item = output.response()["output"][0];
  CHECK(item["summary"] == ojson::parse(R"([{"type": "summary_text", "text": "Hm, yes"}])"));
  CHECK(item["content"][0]["text"] == "Hm, yes");
  const v1::ResponseEvents again = repeated(output.response(), output.pieces(), "", -1);
  REQUIRE(again.events_size() == events.events_size());
  for (int i = 0; i < again.events_size(); ++i) {
    CHECK(again.events(i).body() == events.events(i).body());
  }
  // One that was stored without it is repeated as it was.
  ojson older = output.response();
  older["output"][0]["summary"] = ojson::array();
  const v1::ResponseEvents without = repeated(older, output.pieces(), "", -1);
  CHECK(without.events_size() == events.events_size() - 5);
}

TEST_CASE("events: reasoning comes sealed, too, and the same when it is repeated") {
  v1::ChatResponse message;
  message.add_deltas()->set_reasoning("Hm");
  message.add_deltas()->set_content("Yes");
  ResponseOutput output(begun_response({{"id", "resp_0"}}), "");
  int sealed = 0;
  output.seal_reasoning(
      [&](const std::string& text) { return text + " sealed " + std::to_string(++sealed); });
  v1::ResponseEvents events;
  output.begin(&events);
  output.push(message, &events);
  output.finish(0, &events);
  CHECK(output.response()["output"][0]["encrypted_content"] == "Hm sealed 1");
  CHECK_FALSE(output.response()["output"][1].contains("encrypted_content"));
  const v1::ResponseEvents again = repeated(output.response(), output.pieces(), "", -1);
  REQUIRE(again.events_size() == events.events_size());
  for (int i = 0; i < again.events_size(); ++i) {
    CHECK(again.events(i).body() == events.events(i).body());
  }
}

TEST_CASE("events: log-probabilities come with their pieces and with the whole text") {
  v1::ChatResponse message;
  v1::ChatDelta& delta = *message.add_deltas();
  delta.set_content("Hi");
  v1::ContentToken& token = *delta.add_tokens();
  token.set_id(1);
  token.set_text("Hi");
  token.set_log2_prob(-1.0f);
  *token.add_top() = token;
  v1::ChatDelta& two = *message.add_deltas();
  two.set_content(" you");
  *two.add_tokens() = token;
  v1::ContentToken& half = *two.add_tokens();
  half.set_id(2);
  half.set_text("\xc3");
  message.add_deltas()->set_content("!");  // its tokens came before
  ResponseOutput output(begun_response({{"id", "resp_0"}}), "");
  v1::ResponseEvents events;
  output.begin(&events);
  output.push(message, &events);
  output.finish(0, &events);
  const ojson piece = ojson::parse(events.events(4).body());
  REQUIRE(piece["type"] == "response.output_text.delta");
  CHECK(piece["logprobs"][0]["token"] == "Hi");
  CHECK(piece["logprobs"][0]["logprob"].get<double>() == Approx(-0.693147));
  CHECK(piece["logprobs"][0]["bytes"] == ojson({72, 105}));
  CHECK(piece["logprobs"][0]["top_logprobs"].size() == 1);
  const ojson shown = ojson::parse(json_text(output.response()));
  const ojson& whole = shown["output"][0]["content"][0]["logprobs"];
  REQUIRE(whole.size() == 3);
  CHECK(whole[0] == piece["logprobs"][0]);
  // The same from what is stored of it.
  const ojson stored = ojson::parse(json_text({output.response(), output.pieces()}));
  const v1::ResponseEvents again = repeated(stored[0], stored[1], "", -1);
  REQUIRE(again.events_size() == events.events_size());
  for (int i = 0; i < again.events_size(); ++i) {
    CHECK(again.events(i).body() == events.events(i).body());
  }
}

}  // namespace
}  // namespace lintel::testing
