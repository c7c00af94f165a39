// SPDX-License-Identifier: Apache-2.0
// Pieces of an answer as a message of Anthropic's API, and as its events.
#include "server/anthropic/message_output.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

MessageOutput::Options output_options(bool shows_thinking = true,
                                      RequestMemory::Charge charge = {}) {
  return {.id = "msg_1",
          .model = "",
          .stop_sequences = {"END"},
          .shows_thinking = shows_thinking,
          .seal = [](const std::string& text) { return "sealed " + text; },
          .charge = std::move(charge)};
}

v1::ChatResponse reasoning_piece(const std::string& text) {
  v1::ChatResponse message;
  message.add_deltas()->set_reasoning(text);
  return message;
}
v1::ChatResponse content_piece(const std::string& text) {
  v1::ChatResponse message;
  message.add_deltas()->set_content(text);
  return message;
}
v1::ChatResponse call_piece(const std::string& id, const std::string& arguments) {
  v1::ChatResponse message;
  v1::ToolCallDelta& call = *message.add_deltas()->mutable_call();
  call.set_id(id);
  if (!id.empty()) call.set_name("f");
  call.set_arguments(arguments);
  return message;
}
v1::ChatResponse ending(v1::ChatFinishReason reason) {
  v1::ChatResponse message;
  message.add_finished()->set_reason(reason);
  v1::ChatUsage& usage = *message.mutable_usage();
  usage.set_prompt_tokens(10);
  usage.set_cached_tokens(4);
  usage.set_completion_tokens(7);
  usage.set_reasoning_tokens(2);
  return message;
}

std::vector<v1::ChatResponse> whole_answer() {
  v1::ChatResponse first = reasoning_piece("Let me ");
  first.set_model("m");
  first.set_prompt_tokens(10);
  first.set_cached_tokens(4);
  return {first,
          reasoning_piece("see."),
          content_piece("I "),
          content_piece("call."),
          call_piece("c1", "{\"a\""),
          call_piece("", ": 1}"),
          call_piece("c2", "{}"),
          content_piece("Then"),
          ending(v1::CHAT_FINISH_REASON_TOOL_CALLS)};
}

std::string events_of(const std::vector<v1::ChatResponse>& messages, bool shows_thinking = true) {
  MessageOutput output(output_options(shows_thinking));
  std::string text;
  for (const v1::ChatResponse& message : messages) text += output.events(message);
  return text + output.last_events();
}
ojson body_of_answer(const std::vector<v1::ChatResponse>& messages, bool shows_thinking = true) {
  MessageOutput output(output_options(shows_thinking));
  for (const v1::ChatResponse& message : messages) REQUIRE(output.gather(message).ok());
  return ojson::parse(output.body().whole());
}

// The data of each event, whose name is the data's type.
std::vector<ojson> parsed_events(const std::string& text) {
  std::vector<ojson> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find("\n\n", at);
    const std::string event = text.substr(at, end - at);
    const std::size_t line = event.find('\n');
    events.push_back(ojson::parse(event.substr(line + 7)));
    CHECK(event.substr(0, line) == "event: " + events.back()["type"].get<std::string>());
    at = end + 2;
  }
  return events;
}

TEST_CASE("events of an answer come in Anthropic's order, each block with its index") {
  CHECK(events_of(whole_answer()) ==
        R"(event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":0,"output_tokens_details":{"thinking_tokens":0}}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Let me "}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"see."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sealed Let me see."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"I "}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"call."}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"c1","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":": 1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"c2","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: content_block_start
data: {"type":"content_block_start","index":4,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":4,"delta":{"type":"text_delta","text":"Then"}}

event: content_block_stop
data: {"type":"content_block_stop","index":4}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":7,"output_tokens_details":{"thinking_tokens":2}}}

event: message_stop
data: {"type":"message_stop"}

)");
}

TEST_CASE("a whole message has the blocks of its stream") {
  const ojson body = body_of_answer(whole_answer());
  CHECK(body.dump() ==
        R"({"id":"msg_1","type":"message","role":"assistant","model":"m","content":[)"
        R"({"type":"thinking","thinking":"Let me see.","signature":"sealed Let me see."},)"
        R"({"type":"text","text":"I call."},)"
        R"({"type":"tool_use","id":"c1","name":"f","input":{"a":1}},)"
        R"({"type":"tool_use","id":"c2","name":"f","input":{}},)"
        R"({"type":"text","text":"Then"}],"stop_reason":"tool_use","stop_sequence":null,)"
        R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,)"
        R"("output_tokens":7,"output_tokens_details":{"thinking_tokens":2}}})");
}

TEST_CASE("thinking that is not shown has its signature alone") {
  const ojson body = body_of_answer(whole_answer(), /*shows_thinking=*/false);
  CHECK(body["content"][0] ==
        ojson{{"type", "thinking"}, {"thinking", ""}, {"signature", "sealed Let me see."}});
  const std::string events = events_of(whole_answer(), /*shows_thinking=*/false);
  CHECK(events.find("thinking_delta") == std::string::npos);
  CHECK(events.find("sealed Let me see.") != std::string::npos);
}

TEST_CASE("thinking that there is no memory for has an empty signature in a stream") {
  RequestMemory memory({.bytes = 16});
  MessageOutput output(output_options(true, RequestMemory::Charge(&memory, "ada")));
  std::string text = output.events(reasoning_piece("Let me "));
  text += output.events(reasoning_piece("see at length."));
  text += output.events(content_piece("a"));
  CHECK(memory.stats().bytes == 0);
  const std::vector<ojson> events = parsed_events(text);
  REQUIRE(events.size() >= 5);
  CHECK(events[3]["delta"]["thinking"] == "see at length.");
  CHECK(events[4]["delta"] == ojson{{"type", "signature_delta"}, {"signature", ""}});
}

TEST_CASE("the reason of a message's end") {
  const auto reason_of = [](const v1::ChatResponse& end) {
    const ojson body = body_of_answer({content_piece("a"), end});
    const ojson last = parsed_events(events_of({content_piece("a"), end})).end()[-2];
    CHECK(last["delta"]["stop_reason"] == body["stop_reason"]);
    CHECK(last["delta"]["stop_sequence"] == body["stop_sequence"]);
    return std::pair<std::string, ojson>(body["stop_reason"], body["stop_sequence"]);
  };
  using Reason = std::pair<std::string, ojson>;
  CHECK(reason_of(ending(v1::CHAT_FINISH_REASON_STOP)) == Reason{"end_turn", nullptr});
  CHECK(reason_of(ending(v1::CHAT_FINISH_REASON_LENGTH)) == Reason{"max_tokens", nullptr});
  v1::ChatResponse end = ending(v1::CHAT_FINISH_REASON_STOP);
  end.mutable_finished(0)->set_stop_string("END");
  CHECK(reason_of(end) == Reason{"stop_sequence", "END"});
  end.mutable_finished(0)->set_stop_string("the model's own");
  CHECK(reason_of(end) == Reason{"end_turn", nullptr});
  end = ending(v1::CHAT_FINISH_REASON_LENGTH);
  end.mutable_finished(0)->set_at_context_end(true);
  CHECK(reason_of(end) == Reason{"model_context_window_exceeded", nullptr});
}

TEST_CASE("a call that broke off is shown by a stream and left out of a whole message") {
  const std::vector<v1::ChatResponse> messages = {content_piece("a"), call_piece("c1", "{\"a\": "),
                                                  ending(v1::CHAT_FINISH_REASON_LENGTH)};
  CHECK(body_of_answer(messages)["content"] == ojson::array({{{"type", "text"}, {"text", "a"}}}));
  const std::string events = events_of(messages);
  CHECK(events.find(R"("partial_json":"{\"a\": ")") != std::string::npos);
  CHECK(events.find(R"("stop_reason":"max_tokens")") != std::string::npos);
}

TEST_CASE("an answer without any output is a message without blocks") {
  const v1::ChatResponse end = ending(v1::CHAT_FINISH_REASON_STOP);
  CHECK(body_of_answer({end})["content"] == ojson::array());
  const std::vector<ojson> events = parsed_events(events_of({end}));
  REQUIRE(events.size() == 3);
  CHECK(events[0]["type"] == "message_start");
  CHECK(events[1]["type"] == "message_delta");
  CHECK(events[2]["type"] == "message_stop");
}

}  // namespace
}  // namespace lintel::testing
