// SPDX-License-Identifier: Apache-2.0
#include "server/ollama/answer.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/ollama/models.h"
#include "tests/server/chat/answer_cases.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

// The objects of a stream, one in each line.
std::vector<ojson> lines_of(const std::string& text) {
  std::vector<ojson> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    lines.push_back(ojson::parse(text.substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

v1::ChatResponse content_message(const std::string& text) {
  v1::ChatResponse message;
  message.add_deltas()->set_content(text);
  return message;
}

v1::ChatResponse call_message(const std::string& id, const std::string& arguments) {
  v1::ChatResponse message;
  v1::ToolCallDelta& call = *message.add_deltas()->mutable_call();
  call.set_id(id);
  if (!id.empty()) call.set_name("f");
  call.set_arguments(arguments);
  return message;
}

v1::ChatResponse last_message(v1::ChatFinishReason reason) {
  v1::ChatResponse message;
  v1::ChatFinish& finish = *message.add_finished();
  finish.set_reason(reason);
  finish.mutable_timings()->mutable_prompt()->set_nanos(3000);
  finish.mutable_timings()->mutable_generation()->set_seconds(2);
  message.mutable_usage()->set_prompt_tokens(10);
  message.mutable_usage()->set_completion_tokens(20);
  return message;
}

TEST_CASE("ollama answer: goldens as lines, and the same as a whole answer") {
  std::ifstream stream(std::filesystem::path(LINTEL_TEST_DATA) /
                       "golden/chat/responses/streams.json");
  const ojson file = ojson::parse(stream);
  for (const ojson& item : file["cases"]) {
    CAPTURE(item["name"].get<std::string>());
    const std::vector<std::string> pieces = item["pieces"];
    const ChatOutput output = output_of_case(file, item);
    OllamaAnswer streamed(OllamaRoute::kChat, "m", false);
    OllamaAnswer gathered(OllamaRoute::kChat, "m", false);
    ChatChoice choice(output, 0);
    std::string text;
    for (std::size_t i = 0; i <= pieces.size(); ++i) {
      v1::ChatResponse message;
      if (i < pieces.size()) {
        choice.push({.id = static_cast<std::int32_t>(i)}, message);
      } else {
        choice.finish(item["end"] == "stop", message);
        set_golden_usage(*message.mutable_usage());
      }
      text += streamed.lines(message);
      REQUIRE(gathered.gather(message).ok());
    }
    const std::vector<ojson> lines = lines_of(text + streamed.last_line());
    std::string content, thinking;
    ojson calls = ojson::array();
    for (std::size_t i = 0; i < lines.size(); ++i) {
      CHECK(lines[i]["done"] == (i + 1 == lines.size()));
      const ojson& message = lines[i]["message"];
      content += message["content"];
      thinking += message.value("thinking", "");
      for (const ojson& call : message.value("tool_calls", ojson::array())) calls.push_back(call);
    }
    const ojson whole = ojson::parse(gathered.body().whole());
    CHECK(whole["message"]["content"] == content);
    CHECK(whole["message"].value("thinking", "") == thinking);
    CHECK(whole["message"].value("tool_calls", ojson::array()) == calls);
    CHECK(whole["done_reason"] == lines.back()["done_reason"]);
    // The output of OpenAI's stream is the same.
    std::string expected, reasoning;
    for (const ojson& chunk : item["chat_chunks"]) {
      for (const ojson& each : chunk["choices"]) {
        expected += each["delta"].value("content", "");
        reasoning += each["delta"].value("reasoning_content", "");
      }
    }
    CHECK(content == expected);
    CHECK(thinking == reasoning);
    for (const ojson& call : calls) CHECK(call["function"]["arguments"].is_object());
  }
}

TEST_CASE("ollama answer: the last line has the reason, the counts and durations in nanoseconds") {
  OllamaAnswer answer(OllamaRoute::kChat, "m:latest", false);
  std::string text = answer.lines(content_message("Hi"));
  text += answer.lines(last_message(v1::CHAT_FINISH_REASON_LENGTH));
  const std::vector<ojson> lines = lines_of(text + answer.last_line());
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["model"] == "m:latest");
  CHECK(lines[0]["message"] == ojson({{"role", "assistant"}, {"content", "Hi"}}));
  CHECK(lines[0]["done"] == false);
  CHECK_FALSE(lines[0].contains("done_reason"));
  const ojson& last = lines[1];
  CHECK(last["message"] == ojson({{"role", "assistant"}, {"content", ""}}));
  CHECK(last["done"] == true);
  CHECK(last["done_reason"] == "length");
  CHECK(last["prompt_eval_count"] == 10);
  CHECK(last["eval_count"] == 20);
  CHECK(last["prompt_eval_duration"] == 3000);
  CHECK(last["eval_duration"] == 2'000'000'000);
  CHECK(last["total_duration"].is_number_integer());
  CHECK(last["load_duration"] == 0);  // of a total that is shorter here than its parts
}

TEST_CASE("ollama answer: calls are whole objects, and one that broke off is left out") {
  OllamaAnswer answer(OllamaRoute::kChat, "", false);
  std::string text = answer.lines(call_message("a", "{\"x\":\n"));
  CHECK(text.empty());  // it is not whole yet
  text += answer.lines(call_message("", "12345678901234567890123}"));
  CHECK(text.empty());
  text += answer.lines(call_message("b", ""));
  text += answer.lines(call_message("c", "[1]"));
  text += answer.lines(call_message("d", "{\"x\": \"cut"));
  text += answer.lines(last_message(v1::CHAT_FINISH_REASON_TOOL_CALLS));
  CHECK(text.find("12345678901234567890123}") != std::string::npos);  // all its digits
  std::vector<ojson> calls;
  const std::vector<ojson> lines = lines_of(text + answer.last_line());
  for (const ojson& line : lines) {
    for (const ojson& call : line["message"].value("tool_calls", ojson::array())) {
      calls.push_back(call);
    }
  }
  REQUIRE(calls.size() == 3);
  CHECK(calls[0]["id"] == "a");
  CHECK(calls[0]["function"]["name"] == "f");
  CHECK(calls[1]["function"]["arguments"] == ojson::object());
  CHECK(calls[2]["function"]["arguments"] == ojson({{"arguments", ojson::array({1})}}));
  CHECK(lines.back()["done_reason"] == "stop");
}

TEST_CASE("ollama answer: /api/generate has a response, and bytes as whole characters") {
  OllamaAnswer answer(OllamaRoute::kGenerate, "m", /*logprobs=*/true);
  v1::GenerateResponse message;
  v1::Chunk& chunk = *message.add_chunks();
  for (const char* const bytes : {"a", "\xc3"}) {
    chunk.add_tokens(chunk.tokens_size());
    chunk.add_token_bytes(bytes);
    chunk.add_log2_probs(-1);
    v1::TopValues& top = *chunk.add_top();
    top.add_tokens(7);
    top.add_log2_probs(-0.5F);
    top.add_token_bytes("z");
  }
  std::string text = answer.lines(message);
  v1::GenerateResponse end;
  v1::Chunk& rest = *end.add_chunks();
  rest.add_tokens(9);
  rest.add_token_bytes("\xa9");
  v1::SampleFinish& finish = *end.add_finished();
  finish.set_reason(v1::FINISH_REASON_STOP_TOKEN);
  finish.set_prompt_tokens(3);
  finish.set_cached_tokens(4);
  finish.set_generated_tokens(3);
  text += answer.lines(end);
  const std::vector<ojson> lines = lines_of(text + answer.last_line());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["response"] == "a");
  CHECK(lines[1]["response"] == "\xc3\xa9");
  CHECK(lines[2]["response"] == "");
  CHECK(lines[2]["done_reason"] == "stop");
  CHECK(lines[2]["prompt_eval_count"] == 7);
  CHECK(lines[2]["eval_count"] == 3);
  const ojson& logprobs = lines[0]["logprobs"];
  REQUIRE(logprobs.size() == 2);
  CHECK(logprobs[0]["token"] == "a");
  CHECK(logprobs[0]["logprob"].get<double>() == Approx(-0.693147));
  CHECK(logprobs[0]["bytes"] == ojson::array({97}));
  CHECK(logprobs[0]["top_logprobs"][0]["token"] == "z");
}

TEST_CASE("ollama answer: a request without a model is answered with the name of the one") {
  OllamaAnswer answer(OllamaRoute::kChat, "", false);
  v1::ChatResponse message = content_message("Hi");
  message.set_model("served");
  CHECK(ojson::parse(answer.lines(message))["model"] == "served");
  const ojson loaded = ojson::parse(OllamaAnswer(OllamaRoute::kChat, "m", false).loaded("load"));
  CHECK(loaded["done_reason"] == "load");
  CHECK(loaded["message"]["content"] == "");
  CHECK(ojson::parse(answer.empty_line())["done"] == false);
}

TEST_CASE("ollama answer: times are UTC with nanoseconds") {
  using std::chrono::system_clock;
  const auto time = system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(
      std::chrono::seconds(1764478799) + std::chrono::nanoseconds(42)));
  CHECK(ollama_time(time) == "2025-11-30T04:59:59.000000042Z");
}

TEST_CASE("ollama models: each name once, with its details") {
  v1::ListModelsResponse list;
  v1::Model& old = *list.add_models();
  old.set_name("m");
  old.set_state(v1::MODEL_STATE_UNAVAILABLE);
  old.set_loads_on_request(true);
  v1::Model& model = *list.add_models();
  model.set_name("m");
  model.set_state(v1::MODEL_STATE_READY);
  model.set_config_json(R"({"model_type": "rwkv7", "hidden_size": 64, "num_hidden_layers": 2})");
  model.set_parameters(596'049'920);
  model.set_weight_type("bf16");
  model.set_weight_bytes(1234);
  model.set_fingerprint(std::string(64, 'a'));
  model.mutable_limits()->set_max_prompt_tokens(1000);
  v1::Model& other = *list.add_models();
  other.set_name("asleep");
  other.set_loads_on_request(true);
  list.add_models()->set_name("broken");
  const ojson tags = tags_json(list)["models"];
  REQUIRE(tags.size() == 2);
  CHECK(tags[0]["name"] == "asleep:latest");
  CHECK(tags[0]["digest"].get<std::string>().size() == 64);
  CHECK(tags[1]["name"] == "m:latest");
  CHECK(tags[1]["model"] == "m:latest");
  CHECK(tags[1]["digest"] == std::string(64, 'a'));
  CHECK(tags[1]["size"] == 1234);
  CHECK(tags[1]["details"] == ojson({{"parent_model", ""},
                                     {"format", "safetensors"},
                                     {"family", "rwkv7"},
                                     {"families", ojson::array({"rwkv7"})},
                                     {"parameter_size", "596.0M"},
                                     {"quantization_level", "BF16"},
                                     {"context_length", 1000}}));
  const ojson running = running_json(list)["models"];
  REQUIRE(running.size() == 1);
  CHECK(running[0]["context_length"] == 1000);
  CHECK(running[0]["expires_at"].get<std::string>() > tags[1]["modified_at"].get<std::string>());

  model.set_max_length(512);
  model.mutable_sampling_defaults()->set_temperature(0.6F);
  model.mutable_sampling_defaults()->set_top_k(20);
  const ojson shown = show_json(model, {.tools = true, .thinking = false});
  CHECK(shown["capabilities"] == ojson::array({"completion", "tools"}));
  CHECK(shown["model_info"]["general.architecture"] == "rwkv7");
  CHECK(shown["model_info"]["rwkv7.context_length"] == 512);
  CHECK(shown["model_info"]["rwkv7.embedding_length"] == 64);
  CHECK(shown["model_info"]["rwkv7.block_count"] == 2);
  CHECK(shown["parameters"] == "temperature 0.6\ntop_k 20");

  model.set_config_json(R"({"general.architecture": "qwen35", "qwen35.block_count": 4})");
  const ojson of_gguf = show_json(model, {})["model_info"];
  CHECK(of_gguf["general.architecture"] == "qwen35");
  CHECK(of_gguf["qwen35.block_count"] == 4);
}

TEST_CASE("show: a model that is not loaded has no numbers of zero") {
  v1::Model model;
  model.set_name("m");
  const ojson info = show_json(model, {})["model_info"];
  CHECK(info["general.basename"] == "m");
  for (const auto& [name, value] : info.items()) {
    CAPTURE(name);
    CHECK_FALSE(value.is_number());
  }
}

}  // namespace
}  // namespace lintel::testing
