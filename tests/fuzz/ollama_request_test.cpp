// SPDX-License-Identifier: Apache-2.0
// Bodies of Ollama's API made at random, and mutations of valid ones: read or refused, within time
// and memory.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "server/ollama/request.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/mutations.h"
#include "tests/support/catch.h"

namespace lintel::fuzz {
namespace {

using ojson = nlohmann::ordered_json;

// A random value of any type, or one that a member of these names may have.
ojson random_ollama_value(std::mt19937_64& random, int depth) {
  static const char* const kNames[] = {
      "model",         "messages",       "role",      "content",      "tool_calls",  "function",
      "name",          "arguments",      "tool_name", "tool_call_id", "images",      "options",
      "format",        "think",          "stream",    "prompt",       "system",      "raw",
      "context",       "keep_alive",     "logprobs",  "top_logprobs", "tools",       "type",
      "parameters",    "temperature",    "top_k",     "seed",         "num_predict", "stop",
      "repeat_last_n", "repeat_penalty", "mirostat",  "id",           "index",       "properties",
      "tool_choice",   "no_such"};
  static const char* const kTexts[] = {"",     "user",     "assistant", "tool",     "System",
                                       "json", "high",     "0s",        "m:latest", "function",
                                       "f",    "\xc3\xa9", "required"};
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random() % 7) - 3;
    case 3:
      return static_cast<double>(random() % 1000) / 7 - 50;
    case 4:
      return random();  // 64 bits
    case 5:
      return kTexts[random() % std::size(kTexts)];
    case 6: {
      ojson list = ojson::array();
      for (std::uint64_t i = 0, count = random() % 5; i < count; ++i) {
        list.push_back(random_ollama_value(random, depth - 1));
      }
      return list;
    }
    default: {
      ojson object = ojson::object();
      for (std::uint64_t i = 0, count = random() % 6; i < count; ++i) {
        object[kNames[random() % std::size(kNames)]] = random_ollama_value(random, depth - 1);
      }
      return object;
    }
  }
}

const std::vector<std::string>& valid_bodies() {
  static const std::vector<std::string> bodies = {
      R"({"model":"m:latest","messages":[{"role":"user","content":"q","images":[]},)"
      R"({"role":"assistant","content":"","thinking":"t","tool_calls":[{"function":{"name":"f",)"
      R"("arguments":{"a":1}}}]},{"role":"tool","tool_name":"f","content":"r"}],"tools":[{"type":)"
      R"("function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],)"
      R"("options":{"temperature":0.5,"top_k":40,"stop":["x"],"num_predict":-1,"seed":1},)"
      R"("format":{"type":"object"},"think":"high","keep_alive":"5m","stream":false})",
      R"({"model":"m","prompt":"p","system":"s","raw":false,"context":[],"options":{"num_ctx":1},)"
      R"("logprobs":true,"top_logprobs":3,"format":"json","think":true,"suffix":""})"};
  return bodies;
}

// Reads a body, and returns whether it was accepted. Messages then have the form that templates
// take; a refusal names a member.
bool try_body(OllamaRoute route, const std::string& body) {
  OllamaRequest request;
  const JsonFailure failure = read_ollama_request(route, body, "ada", {}, request);
  const ChatRequest& chat = *request.chat;
  if (!chat.status.ok()) {
    CHECK_FALSE(chat.status.error_message().empty());
    return false;
  }
  REQUIRE(failure.kind == JsonFailure::Kind::kNone);
  CHECK(request.is_empty == chat.params.messages.is_null());
  for (const ojson& message : chat.params.messages) {
    REQUIRE(message["role"].is_string());
    REQUIRE_FALSE(message.contains("images"));
    if (!message.contains("tool_calls")) continue;
    for (const ojson& call : message["tool_calls"]) {
      REQUIRE(call["id"].is_string());
      REQUIRE(call["function"]["name"].is_string());
    }
  }
  return true;
}

TEST_CASE("bodies of Ollama's API at random are read or refused, within time and memory",
          "[threat-130]") {
  std::mt19937_64 random(54);
  int read = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    CAPTURE(round);
    const OllamaRoute route = round % 2 == 0 ? OllamaRoute::kChat : OllamaRoute::kGenerate;
    std::string body;
    if (round % 4 < 2) {
      body = mutate_text(valid_bodies()[static_cast<std::size_t>(round) % 2], random());
    } else {
      ojson made = ojson::parse(valid_bodies()[static_cast<std::size_t>(round) % 2]);
      const ojson more = random_ollama_value(random, 6);
      for (const auto& [name, value] : more.items()) {
        if (more.is_object()) made[name] = value;
      }
      if (more.is_array() && route == OllamaRoute::kChat) made["messages"] = more;
      body = made.dump();
    }
    const MemoryLimit limit(std::size_t{8} << 20);
    const auto parse = [route](const std::string& text) { return try_body(route, text); };
    ++(within_time(parse, body) ? read : refused);
  }
  CHECK(read >= 100);
  CHECK(refused >= 100);
}

TEST_CASE("bodies of Ollama's API with very many calls and results are read in linear time",
          "[threat-130]") {
  const auto list_of = [](std::size_t count, const std::string& item) {
    std::string list;
    for (std::size_t i = 0; i < count; ++i) list += (i > 0 ? "," : "") + item;
    return list;
  };
  const auto parse = [](const std::string& text) { return try_body(OllamaRoute::kChat, text); };
  const std::string calls = list_of(60'000, R"({"function":{"name":"f"}})");
  const std::string result = R"({"role":"tool","tool_name":"g","content":""})";
  const std::string head = R"({"model":"m","messages":[{"role":"assistant","tool_calls":[)";
  CHECK(within_time(parse, head + calls + "]}," + list_of(9'999, result) + "]}"));
  CHECK_FALSE(within_time(parse, head + calls + "]}," + list_of(10'000, result) + "]}"));
}

}  // namespace
}  // namespace lintel::fuzz
