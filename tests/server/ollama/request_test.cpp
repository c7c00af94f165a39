// SPDX-License-Identifier: Apache-2.0
#include "server/ollama/request.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Json = nlohmann::ordered_json;
using Catch::Contains;

Json chat_body(const char* name = "", Json value = nullptr) {
  Json body = {{"model", "m"}, {"messages", Json::array({{{"role", "user"}, {"content", "a"}}})}};
  if (*name != '\0') body[name] = std::move(value);
  return body;
}
Json generate_body(const char* name = "", Json value = nullptr) {
  Json body = {{"model", "m"}, {"prompt", "a"}};
  if (*name != '\0') body[name] = std::move(value);
  return body;
}

OllamaRequest read_body(OllamaRoute route, const std::string& body) {
  OllamaRequest request;
  read_ollama_request(route, body, "", {}, request);
  return request;
}
OllamaRequest read_chat(const Json& body) { return read_body(OllamaRoute::kChat, body.dump()); }
OllamaRequest read_generate(const Json& body) {
  return read_body(OllamaRoute::kGenerate, body.dump());
}

// The error of a body, with the field in Ollama's names; empty: none.
std::string wrong_in(const OllamaRequest& request) {
  const std::string text = request.chat->status.error_message();
  const std::size_t colon = text.find(": ");
  if (colon == std::string::npos) return text;
  return ollama_member(text.substr(0, colon), OllamaRoute::kChat) + text.substr(colon);
}
std::string wrong_in_chat(const char* name, const Json& value) {
  return wrong_in(read_chat(chat_body(name, value)));
}
std::string wrong_in_generate(const char* name, const Json& value) {
  return wrong_in(read_generate(generate_body(name, value)));
}
std::string wrong_option(const char* name, const Json& value) {
  return wrong_in_chat("options", {{name, value}});
}
api::ChatParams with_options(const Json& options) {
  OllamaRequest request = read_chat(chat_body("options", options));
  CHECK(wrong_in(request).empty());
  return std::move(request.chat->params);
}

TEST_CASE("ollama request: a chat streams unless it says otherwise, and NAME:latest is NAME") {
  OllamaRequest request = read_chat(chat_body());
  CHECK(wrong_in(request).empty());
  CHECK(request.streams);
  CHECK_FALSE(request.is_empty);
  CHECK(request.model == "m");
  CHECK(request.chat->params.base.model == "m");
  CHECK(request.chat->params.messages[0]["content"] == "a");

  Json body = chat_body("stream", false);
  body["model"] = "m:latest";
  request = read_chat(body);
  CHECK_FALSE(request.streams);
  CHECK(request.model == "m:latest");
  CHECK(request.chat->params.base.model == "m");
}

TEST_CASE("ollama request: options become the sampling of a chat") {
  const api::ChatParams params = with_options({{"temperature", 0.5},
                                               {"top_k", 40.0},
                                               {"top_p", 0.9},
                                               {"min_p", 0.05},
                                               {"seed", 42},
                                               {"num_predict", 7},
                                               {"stop", {"x", "y"}},
                                               {"num_ctx", 8192},
                                               {"mirostat", 0},
                                               {"typical_p", 1.0}});
  const api::SamplingParams& sampling = params.base.sampling;
  CHECK(*sampling.temperature == 0.5F);
  CHECK(*sampling.top_k == 40);
  CHECK(*sampling.top_p == 0.9F);
  CHECK(*sampling.min_p == 0.05F);
  CHECK(*sampling.seed == 42);
  CHECK(*params.max_tokens == 7);
  CHECK(params.base.stop.strings == std::vector<std::string>{"x", "y"});
  CHECK_FALSE(sampling.repetition_penalty);
  CHECK(sampling.penalty_window == 0);
}

TEST_CASE("ollama request: options that ask for no limit or a random seed are left out") {
  for (const int count : {-1, -2}) CHECK_FALSE(with_options({{"num_predict", count}}).max_tokens);
  CHECK(*with_options({{"num_predict", 0}}).max_tokens == 0);
  CHECK(*with_options({{"num_predict", 1e12}}).max_tokens == 4294967295);
  CHECK_FALSE(with_options({{"seed", -1}}).base.sampling.seed);
  CHECK(*with_options({{"top_k", -1}}).base.sampling.top_k == 0);
}

TEST_CASE("ollama request: penalties count the last repeat_last_n tokens, 64 by default") {
  const auto sampling_of = [](const Json& options) { return with_options(options).base.sampling; };
  CHECK(sampling_of({{"repeat_penalty", 1.1}}).penalty_window == 64);
  CHECK(*sampling_of({{"repeat_penalty", 1.1}}).repetition_penalty == 1.1F);
  CHECK(sampling_of({{"frequency_penalty", 1}, {"repeat_last_n", 5}}).penalty_window == 5);
  CHECK(sampling_of({{"presence_penalty", 1}, {"repeat_last_n", -1}}).penalty_window == 0);
  const api::SamplingParams off = sampling_of({{"repeat_penalty", 1.1}, {"repeat_last_n", 0}});
  CHECK(*off.repetition_penalty == 1);
  CHECK(*off.presence_penalty == 0);
  CHECK(*off.frequency_penalty == 0);
}

TEST_CASE("ollama request: an option that cannot be served is refused by its own name") {
  CHECK_THAT(wrong_option("top_k", 1.5), Contains("options.top_k: is not a whole number"));
  CHECK_THAT(wrong_option("top_k", 1e12), Contains("options.top_k: is not a whole number"));
  CHECK_THAT(wrong_option("num_predict", -3), Contains("options.num_predict: is -3"));
  CHECK_THAT(wrong_option("num_predict", 1e300), Contains("options.num_predict: is not a whole"));
  CHECK_THAT(wrong_option("repeat_last_n", -2), Contains("options.repeat_last_n: is -2"));
  CHECK_THAT(wrong_option("temperature", "x"), Contains("options.temperature: is not a number"));
  CHECK_THAT(wrong_option("repeat_penalty", "x"),
             Contains("options.repeat_penalty: is not a number"));
  CHECK_THAT(wrong_option("seed", 1.5), Contains("options.seed: is not a whole number"));
  CHECK_THAT(wrong_option("stop", 3), Contains("options.stop: is not a text"));
  CHECK_THAT(wrong_option("mirostat", 2), Contains("options.mirostat: is not served"));
  CHECK_THAT(wrong_option("typical_p", 0.5), Contains("options.typical_p: is not served"));
  CHECK_THAT(wrong_option("tfs_z", 0.5), Contains("options.tfs_z: is not served"));
  CHECK_THAT(wrong_in_chat("options", 3), Contains("options: is not an object"));
}

TEST_CASE("ollama request: members without a place here are refused by name unless empty") {
  const std::vector<std::pair<const char*, Json>> refused = {{"images", Json::array({"aGk="})},
                                                             {"context", Json::array({1, 2})},
                                                             {"template", "{{ .Prompt }}"},
                                                             {"suffix", "end"}};
  for (const auto& [name, value] : refused) {
    CHECK_THAT(wrong_in_generate(name, value), Contains(std::string(name) + ": is not"));
    CHECK(wrong_in_generate(name, value.is_string() ? Json("") : Json::array()).empty());
    CHECK(wrong_in_generate(name, nullptr).empty());
  }
  CHECK_THAT(wrong_in_chat("_debug_render_only", true), Contains("_debug_render_only: is not"));
  const Json message = {{"role", "user"}, {"content", "a"}, {"images", Json::array({"aGk="})}};
  CHECK_THAT(wrong_in_chat("messages", Json::array({message})),
             Contains("messages[0].images: is not served"));
}

TEST_CASE("ollama request: unknown members are left out by name, and slips refused") {
  Json body = chat_body("no_such", 1);
  body["options"] = {{"other", 2}, {"num_gpu", 1}};
  body["prompt"] = "of generate";
  body["keep_alive"] = "5m";
  body["truncate"] = true;
  const OllamaRequest request = read_chat(body);
  CHECK(wrong_in(request).empty());
  std::string header;
  CHECK(request.chat->ignored.report(/*refuses=*/false, header).ok());
  CHECK(header == "no_such, options.other, prompt");
  CHECK_THAT(wrong_in_chat("mesages", 1), Contains("mesages: is not a parameter of this server: "
                                                   "did you mean messages?"));
  CHECK_THAT(wrong_option("num predict", 1), Contains("options.num predict: is not a parameter of "
                                                      "this server: did you mean num_predict?"));
  // Members that are refused themselves, and those of the other route, are no hints.
  Json near = chat_body("content", "x");
  near["promtp"] = "x";
  near["options"] = {{"typicalp", 1}, {"mirostat_", 1}};
  CHECK(wrong_in(read_chat(near)).empty());
  CHECK(wrong_in_generate("sufix", "x").empty());
  CHECK_THAT(wrong_in_generate("promtp", "x"), Contains("did you mean prompt?"));
}

TEST_CASE("ollama request: an empty one asks for its model, with keep_alive 0 for its end") {
  const auto read_empty = [](const Json& keep_alive) {
    Json body = {{"model", "m"}, {"messages", Json::array()}, {"keep_alive", keep_alive}};
    const OllamaRequest request = read_chat(body);
    CHECK(wrong_in(request).empty());
    CHECK(request.is_empty);
    return request.keep_alive;
  };
  CHECK(read_empty("5m"));
  CHECK(read_empty(-1));
  CHECK(read_empty(nullptr));
  CHECK_FALSE(read_empty(0));
  CHECK_FALSE(read_empty("0"));
  CHECK_FALSE(read_empty("0s"));
  CHECK(read_generate({{"model", "m"}}).is_empty);
  CHECK(read_generate({{"model", "m"}, {"prompt", ""}}).is_empty);
  CHECK(read_chat({{"model", "m"}}).is_empty);
  CHECK_THAT(wrong_in_chat("keep_alive", Json::array()), Contains("keep_alive: is not"));
}

TEST_CASE("ollama request: format is JSON or a schema") {
  using Format = api::ChatParams::Format;
  const auto format_of = [](const Json& value) {
    OllamaRequest request = read_chat(chat_body("format", value));
    CHECK(wrong_in(request).empty());
    return std::move(request.chat->params);
  };
  CHECK(format_of("json").format == Format::kJsonObject);
  CHECK(format_of("").format == Format::kText);
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}};
  const api::ChatParams params = format_of(schema);
  CHECK(params.format == Format::kJsonSchema);
  CHECK(Json::parse(params.format_text) == schema);
  CHECK_THAT(wrong_in_chat("format", "xml"), Contains("format: is not \"json\" or a schema"));
  CHECK_THAT(wrong_in_chat("format", 3), Contains("format: is not"));
}

TEST_CASE("ollama request: think is on, off or an effort") {
  const auto think = [](const Json& value) {
    OllamaRequest request = read_chat(chat_body("think", value));
    CHECK(wrong_in(request).empty());
    return std::move(request.chat->params);
  };
  CHECK(think(true).kwargs == Json({{"enable_thinking", true}, {"thinking", true}}));
  CHECK(think(true).reasoning_effort.empty());
  CHECK(think(false).reasoning_effort == "none");
  CHECK(think("high").reasoning_effort == "high");
  CHECK(think("max").reasoning_effort == "max");
  CHECK_THAT(wrong_in_chat("think", "hard"), Contains("think: is not true, false, low"));
}

TEST_CASE("ollama request: calls of the history get ids, by which their results name them") {
  const auto call = [](const char* name) {
    return Json{{"function", {{"index", 0}, {"name", name}, {"arguments", {{"a", 1}}}}}};
  };
  const auto result = [](const char* member, const char* name) {
    return Json{{"role", "tool"}, {"content", "r"}, {member, name}};
  };
  Json given = call("f");
  given["id"] = "given";
  const Json messages = Json::array(
      {{{"role", "User"}, {"content", "q"}, {"images", Json::array()}},
       {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call("f"), call("g"), call("f")}}},
       result("tool_name", "g"),
       result("tool_name", "f"),
       {{"role", "tool"}, {"content", "r"}},
       {{"role", "assistant"}, {"tool_calls", {given}}},
       result("tool_call_id", "given")});
  OllamaRequest request = read_chat(chat_body("messages", messages));
  REQUIRE(wrong_in(request).empty());
  const Json& read = request.chat->params.messages;
  CHECK(read[0] == Json({{"role", "user"}, {"content", "q"}}));
  CHECK(read[1]["tool_calls"][0] ==
        Json({{"id", "call00000"},
              {"type", "function"},
              {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}));
  CHECK(read[2]["tool_call_id"] == "call00001");
  CHECK(read[2]["name"] == "g");
  CHECK_FALSE(read[2].contains("tool_name"));
  CHECK(read[3]["tool_call_id"] == "call00000");
  CHECK(read[4]["tool_call_id"] == "call00002");
  CHECK(read[5]["tool_calls"][0]["id"] == "given");
  CHECK(read[6]["tool_call_id"] == "given");
  CHECK(request.chat->params.add_generation_prompt);
}

TEST_CASE("ollama request: a last message of the assistant is continued") {
  const auto continues = [](const Json& last) {
    const Json question = {{"role", "user"}, {"content", "q"}};
    return read_chat(chat_body("messages", Json::array({question, last})))
        .chat->params.continue_final_message;
  };
  CHECK(continues({{"role", "assistant"}, {"content", "The "}}));
  CHECK_FALSE(continues({{"role", "assistant"}, {"content", ""}}));
  CHECK_FALSE(continues({{"role", "user"}, {"content", "The "}}));
}

TEST_CASE("ollama request: a prompt becomes a conversation, with the system's text first") {
  OllamaRequest request = read_generate(generate_body("system", "Be brief."));
  REQUIRE(wrong_in(request).empty());
  CHECK(request.has_system);
  CHECK(request.chat->params.messages ==
        Json::array({{{"role", "system"}, {"content", "Be brief."}},
                     {{"role", "user"}, {"content", "a"}}}));
  CHECK(read_generate(generate_body("raw", true)).raw);
  Json raw = generate_body("raw", true);
  raw["system"] = "Be brief.";
  CHECK_THAT(wrong_in(read_generate(raw)), Contains("system: goes with raw false"));
  raw = generate_body("raw", true);
  raw["format"] = "json";
  CHECK_THAT(wrong_in(read_generate(raw)), Contains("format: goes with raw false"));
}

TEST_CASE("ollama request: logprobs have their alternatives, which go with them") {
  Json body = chat_body("logprobs", true);
  body["top_logprobs"] = 3;
  const OllamaRequest request = read_chat(body);
  CHECK(request.chat->params.logprobs);
  CHECK(request.chat->params.top_logprobs == 3);
  CHECK(wrong_in_chat("top_logprobs", 3).empty());  // no logprobs: no effect, as in Ollama
  body["top_logprobs"] = 64;
  CHECK(read_chat(body).chat->params.top_logprobs == 64);
  body["top_logprobs"] = -1;
  CHECK_THAT(wrong_in(read_chat(body)), Contains("top_logprobs: is not a whole number"));
}

TEST_CASE("ollama request: a body of a wrong form is refused by its member") {
  CHECK_THAT(wrong_in_chat("messages", 3), Contains("messages: is not a list"));
  CHECK_THAT(wrong_in_chat("messages", {3}), Contains("messages[0]: is not an object"));
  CHECK_THAT(wrong_in_chat("messages", {{{"content", "a"}}}), Contains("messages[0].role: is not"));
  CHECK_THAT(
      wrong_in_chat("messages", {{{"role", "assistant"}, {"tool_calls", {{{"function", 3}}}}}}),
      Contains("messages[0].tool_calls[0].function.name: is not a text"));
  CHECK_THAT(wrong_in_chat("tools", 3), Contains("tools: is not a list of tools"));
  CHECK_THAT(wrong_in_chat("model", 3), Contains("model: is not a text"));
  CHECK_THAT(wrong_in_chat("stream", 3), Contains("stream: is not true or false"));
  CHECK_THAT(wrong_in_generate("prompt", 3), Contains("prompt: is not a text"));
  CHECK_THAT(wrong_in(read_body(OllamaRoute::kChat, "[]")), Contains("is not an object"));
  CHECK_THAT(wrong_in(read_body(OllamaRoute::kChat, "{")), Contains("is not JSON"));
}

TEST_CASE("ollama request: fields of lintel.v1 have the names of Ollama's members") {
  CHECK(ollama_member("sampling.repetition_penalty", OllamaRoute::kChat) ==
        "options.repeat_penalty");
  CHECK(ollama_member("sampling.penalty_window", OllamaRoute::kChat) == "options.repeat_last_n");
  CHECK(ollama_member("max_new_tokens", OllamaRoute::kChat) == "options.num_predict");
  CHECK(ollama_member("stop.strings[2]", OllamaRoute::kChat) == "options.stop[2]");
  CHECK(ollama_member("response_format", OllamaRoute::kChat) == "format");
  CHECK(ollama_member("response_format.json_schema.schema/properties/a", OllamaRoute::kChat) ==
        "format/properties/a");
  CHECK(ollama_member("response_format.schema", OllamaRoute::kChat) == "format");
  CHECK(ollama_member("messages[3].content", OllamaRoute::kChat) == "messages[3].content");
  CHECK(ollama_member("messages[3].content", OllamaRoute::kGenerate) == "prompt");
  CHECK(ollama_member("top_log2_probs", OllamaRoute::kChat) == "top_logprobs");
  CHECK(ollama_member("prompt.text", OllamaRoute::kChat) == "prompt");
  CHECK(ollama_member("sampling.top_p", OllamaRoute::kChat) == "options.top_p");
  CHECK(ollama_member("stopped", OllamaRoute::kChat) == "stopped");
}

}  // namespace
}  // namespace lintel::testing
