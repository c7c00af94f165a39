// SPDX-License-Identifier: Apache-2.0
// Anthropic's routes over HTTP: answers and streams of models that say a given text, errors, tokens
// of requests, the list of models, what is read again.
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/attention_spec.h"
#include "server/anthropic/errors.h"
#include "server/rpc/status.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/scripted_model.h"
#include "tests/server/support/service_fixture.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;
using Catch::Matchers::Contains;

// Calls as in Hermes; thinks where it is asked to.
constexpr const char* kMessagesTemplate =
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

using Change = std::function<void(ServerOptions&)>;

// A server with one model, "m", that says `pieces`.
struct MessagesServer {
  explicit MessagesServer(
      const std::vector<std::string>& pieces, const Change& change = [](ServerOptions&) {},
      const std::string& model = "m", int context = 4096)
      : server(options_with(files, change, model), clock,
               {{model, scripted_model(pieces, context)}}) {}
  static ServerOptions options_with(const TemporaryDirectory& files, const Change& change,
                                    const std::string& model) {
    const auto path = files.path() / "chat.jinja";
    std::ofstream(path) << kMessagesTemplate;
    ServerOptions options = with_http();
    options.models.chat_templates = {{model, path}};
    change(options);
    return options;
  }
  int port() { return server.server().http_port(); }

  HttpReply send(const ojson& body, const std::string& headers = "",
                 const std::string& path = "/v1/messages?beta=true") {
    return post(port(), path, body.dump(), "application/json",
                "anthropic-version: 2023-06-01\r\n" + headers);
  }
  ojson answered(const ojson& body) {
    const HttpReply reply = send(body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  }
  HttpReply get(const std::string& path, const std::string& headers = "") {
    return request(port(), "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  }

  const TemporaryDirectory files;
  SteadyClock clock;
  TestServer server;
};

ojson said_by_user(const ojson& content) { return {{"role", "user"}, {"content", content}}; }
ojson question_of(const ojson& content, int max_tokens = 40) {
  return {{"model", "m"},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"messages", ojson::array({said_by_user(content)})}};
}
ojson with_tool(ojson body) {
  body["tools"] = ojson::array(
      {{{"name", "get_weather"},
        {"input_schema", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}});
  return body;
}

// The message that a stream's events make, as a client puts it together.
ojson message_of_events(const std::string& text) {
  ojson message;
  for (std::size_t at = 0; (at = text.find("data: ", at)) != std::string::npos; ++at) {
    const ojson event = ojson::parse(text.substr(at + 6, text.find("\n\n", at) - at - 6));
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      REQUIRE(event["index"] == message["content"].size());
      message["content"].push_back(event["content_block"]);
      if (event["content_block"]["type"] == "tool_use") message["content"].back()["input"] = "";
    }
    if (type == "content_block_delta") {
      ojson& block = message["content"].at(event["index"].get<std::size_t>());
      for (const auto& [name, value] : event["delta"].items()) {
        if (name == "type") continue;
        ojson& member = block[name == "partial_json" ? "input" : name];
        member = member.get<std::string>() + value.get<std::string>();
      }
    }
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  for (ojson& block : message["content"]) {
    if (block["type"] == "tool_use")
      block["input"] = ojson::parse(block["input"].get<std::string>());
  }
  return message;
}

const std::vector<std::string> kThoughtAndCall = {
    "Let me ",       "see.",        "</think>",
    "\n\nI look.\n", "<tool_call>", "\n{\"name\": \"get_weather\", \"arguments\": {\"city\": ",
    "\"Oslo\"}}\n",  "</tool_call>"};

TEST_CASE("a message has thinking, text and a call, whole and as a stream") {
  MessagesServer server(kThoughtAndCall);
  ojson body = with_tool(question_of("Weather?", 60));
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  const HttpReply reply = server.send(body);
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const ojson message = ojson::parse(reply.body);
  CHECK(message["id"] == "msg_" + reply.header("request-id"));
  CHECK(reply.header("request-id") == reply.header("x-request-id"));
  CHECK(message["type"] == "message");
  CHECK(message["role"] == "assistant");
  CHECK(message["model"] == "m");
  CHECK(message["stop_reason"] == "tool_use");
  CHECK(message["stop_sequence"].is_null());
  REQUIRE(message["content"].size() == 3);
  CHECK(message["content"][0]["thinking"] == "Let me see.");
  CHECK(message["content"][1] == ojson{{"type", "text"}, {"text", "I look."}});
  CHECK(message["content"][2]["name"] == "get_weather");
  CHECK(message["content"][2]["input"] == ojson{{"city", "Oslo"}});
  CHECK(message["usage"]["cache_creation_input_tokens"] == 0);
  CHECK(message["usage"]["output_tokens"] > 5);

  body["stream"] = true;
  const HttpReply streamed = server.send(body);
  REQUIRE(streamed.status == 200);
  CHECK_THAT(streamed.header("content-type"), Contains("text/event-stream"));
  CHECK(streamed.header("request-id") == streamed.header("x-request-id"));
  const ojson same = message_of_events(streamed.body);
  for (const char* const name : {"stop_reason", "stop_sequence", "role", "model", "type"}) {
    CHECK(same[name] == message[name]);
  }
  REQUIRE(same["content"].size() == 3);
  CHECK(same["content"][0]["thinking"] == "Let me see.");
  CHECK(same["content"][1] == message["content"][1]);
  CHECK(same["content"][2]["input"] == message["content"][2]["input"]);
  CHECK(same["usage"]["output_tokens"] == message["usage"]["output_tokens"]);
}

TEST_CASE("thinking that a client sends back with its signature is in the prompt, another's not") {
  MessagesServer server(kThoughtAndCall);
  ojson body = with_tool(question_of("Weather?", 60));
  body["thinking"] = {{"type", "adaptive"}, {"display", "omitted"}};
  const ojson message = server.answered(body);
  CHECK(message["content"][0]["thinking"] == "");
  const auto tokens_with = [&](const ojson& signature) {
    ojson next = body;
    next["messages"].push_back({{"role", "assistant"}, {"content", message["content"]}});
    next["messages"][1]["content"][0]["signature"] = signature;
    next["messages"].push_back(
        said_by_user(ojson::array({{{"type", "tool_result"},
                                    {"tool_use_id", message["content"][2]["id"]},
                                    {"content", "sunny"}}})));
    const HttpReply counted = server.send(next, "", "/v1/messages/count_tokens");
    INFO(counted.body);
    REQUIRE(counted.status == 200);
    return ojson::parse(counted.body)["input_tokens"].get<std::int64_t>();
  };
  // "<think>\n", the two pieces as bytes, "\n</think>\n\n"
  CHECK(tokens_with(message["content"][0]["signature"]) > tokens_with("unknown") + 4);
}

TEST_CASE("the tokens of a message request are those of its prompt") {
  MessagesServer server({"Hello"});
  ojson body = question_of("Hi there");
  const std::int64_t prompt = server.answered(body)["usage"]["input_tokens"];
  const HttpReply counted = server.send(body, "", "/v1/messages/count_tokens?beta=true");
  CHECK(counted.status == 200);
  CHECK(counted.header("request-id") == counted.header("x-request-id"));
  CHECK(ojson::parse(counted.body) == ojson{{"input_tokens", prompt}});
  body.erase("max_tokens");
  CHECK(server.send(body, "", "/v1/messages/count_tokens").body == counted.body);
  // More tools, and longer names, than a chat completion may have.
  for (int i = 0; i < 300; ++i) {
    body["tools"].push_back({{"name", std::string(100, 'n') + std::to_string(i)},
                             {"input_schema", {{"type", "object"}}}});
  }
  const HttpReply many = server.send(body, "", "/v1/messages/count_tokens");
  INFO(many.body);
  CHECK(many.status == 200);
}

TEST_CASE("a stop sequence ends a message and is named") {
  MessagesServer server({"one ", "two ", "END", " three"});
  ojson body = question_of("Count");
  body["stop_sequences"] = {"END"};
  const ojson message = server.answered(body);
  CHECK(message["stop_reason"] == "stop_sequence");
  CHECK(message["stop_sequence"] == "END");
  CHECK(message["content"][0]["text"] == "one two ");
  body.erase("stop_sequences");
  CHECK(server.answered(body)["stop_reason"] == "end_turn");
  body["max_tokens"] = 2;
  CHECK(server.answered(body)["stop_reason"] == "max_tokens");
}

TEST_CASE("max_tokens beyond the context is shortened") {
  // A cycle has no end.
  MessagesServer server({"a", "b", "\n"});
  ojson body = question_of("Go", 1'000'000);
  body["messages"][0]["content"] = std::string(3900, 'x');
  const ojson message = server.answered(body);
  CHECK(message["stop_reason"] == "model_context_window_exceeded");
  const ojson& usage = message["usage"];
  // The last token is drawn and never read.
  CHECK(usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>() == 4097);
}

TEST_CASE("max_tokens beyond the memory for states is shortened") {
  const TemporaryDirectory directory;
  write_llama_text_model(directory.path());
  const std::shared_ptr<const Transformer> model = Transformer::load(
      directory.path(), {.attention = parse_attention_spec("softmax")});  // a state that grows
  const TemporaryDirectory files;
  const SteadyClock clock;
  TestServer server(
      MessagesServer::options_with(
          files, [](ServerOptions& options) { options.sessions.session_memory_bytes = 2 << 20; },
          "m"),
      clock, {{"m", model}});
  ojson body = question_of("Go", 100'000);
  body["seed"] = 7;
  const int port = server.server().http_port();
  CHECK(post(port, "/v1/chat/completions", body.dump()).status == 400);
  const HttpReply reply = post(port, "/v1/messages", body.dump());
  INFO(reply.body);
  CHECK(reply.status == 200);
}

// The number that follows `words` in a text.
std::int64_t number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  REQUIRE(at != std::string::npos);
  return std::stoll(text.substr(at + words.size()));
}

TEST_CASE(
    "messages: the tokens of an answer are refused beyond what fits, and by default end there") {
  const TemporaryDirectory directory;
  write_llama_text_model(directory.path());
  const std::shared_ptr<const Transformer> model = Transformer::load(
      directory.path(), {.attention = parse_attention_spec("softmax")});  // a state that grows
  const TemporaryDirectory files;
  const SteadyClock clock;
  const std::size_t memory = SessionManager::admitted_bytes(*model, 4096) / 2;
  TestServer server(
      MessagesServer::options_with(
          files, [&](ServerOptions& options) { options.sessions.session_memory_bytes = memory; },
          "m"),
      clock, {{"m", model}});
  const int port = server.server().http_port();
  ojson body = question_of("Go", 4000);
  body["ignore_eos"] = true;
  const HttpReply refused = post(port, "/v1/chat/completions", body.dump());
  CHECK(refused.status == 400);
  const ojson error = ojson::parse(refused.body)["error"];
  CHECK(error["code"] == "context_length_exceeded");
  const std::string text = error["message"];
  CHECK_THAT(text, Contains("--session-memory") && Contains("--kv-type") && Contains("max_tokens"));
  const std::int64_t prompt = number_after(text, "bytes for ") - 4000;
  const std::int64_t fit = number_after(text, "enough for ");
  CHECK(fit < 4000);
  body["max_tokens"] = fit - prompt;
  CHECK(post(port, "/v1/chat/completions", body.dump()).status == 200);
  // Without a limit of its own the answer is as long as the memory allows.
  body.erase("max_tokens");
  const ojson answer = ojson::parse(post(port, "/v1/chat/completions", body.dump()).body);
  CHECK(answer["choices"][0]["finish_reason"] == "length");
  // Tokens that wait for the client are admitted, too: a few more or less with the number asked
  // for.
  const std::int64_t total = answer["usage"]["total_tokens"];
  CHECK(total > fit - 200);
  CHECK(total < 4000);
}

TEST_CASE("a member that is wrong is refused with the numbers that were sent") {
  MessagesServer server({"a"});
  ojson body = question_of("Go", 5);
  body["min_tokens"] = 9;
  const HttpReply reply = server.send(body);
  CHECK(reply.status == 400);
  CHECK_THAT(reply.body, Contains("min_tokens: 9 is more than") && Contains(", 5\""));
}

TEST_CASE("a conversation longer than the context is refused in Anthropic's words") {
  MessagesServer server({"a"});
  const HttpReply reply = server.send(question_of(std::string(5000, 'x')));
  CHECK(reply.status == 400);
  const ojson error = ojson::parse(reply.body);
  CHECK(error["error"]["type"] == "invalid_request_error");
  CHECK_THAT(error["error"]["message"].get<std::string>(),
             Contains("prompt is too long: 5") && Contains(" tokens > 4096 maximum"));
}

TEST_CASE("a last message of the assistant begins the answer") {
  MessagesServer server({"Hello", " you", "."});
  ojson body = question_of("Greet");
  const auto prompt_of = [&] {
    const HttpReply counted = server.send(body, "", "/v1/messages/count_tokens");
    return ojson::parse(counted.body)["input_tokens"].get<int>();
  };
  const int prompt = prompt_of();
  // After a line feed the model begins again.
  body["messages"].push_back({{"role", "assistant"}, {"content", "Well:\n"}});
  CHECK(server.answered(body)["content"][0]["text"] == "Hello you.");
  CHECK(prompt_of() == prompt + 6);
}

TEST_CASE("a conversation over messages reads each turn once") {
  MessagesServer server({"Well", ", yes"});
  ojson body = question_of(std::string(600, 'a'));
  std::int64_t before = 0;  // tokens of the prompt of the turn before
  for (int turn = 0; turn < 5; ++turn) {
    CAPTURE(turn);
    const ojson message = server.answered(body);
    const ojson& usage = message["usage"];
    const std::int64_t read = usage["input_tokens"], cached = usage["cache_read_input_tokens"];
    if (turn > 0) {
      // All of the prompt before but what asked for an answer.
      CHECK(cached >= before - 16);
      CHECK(read < 100);
    }
    before = read + cached;
    body["messages"].push_back({{"role", "assistant"}, {"content", message["content"]}});
    body["messages"].push_back(said_by_user("And then " + std::to_string(turn) + "?"));
  }
}

TEST_CASE("message_start of a stream counts cached tokens as the end of the stream does") {
  MessagesServer server({"Well", ", yes"});
  ojson body = question_of(std::string(600, 'a'));
  const ojson message = server.answered(body);
  body["messages"].push_back({{"role", "assistant"}, {"content", message["content"]}});
  body["messages"].push_back(said_by_user("And then?"));
  body["stream"] = true;
  const HttpReply streamed = server.send(body);
  REQUIRE(streamed.status == 200);
  const std::size_t start = streamed.body.find("data: ") + 6;
  const ojson first = ojson::parse(
      streamed.body.substr(start, streamed.body.find("\n\n", start) - start))["message"]["usage"];
  const ojson last = message_of_events(streamed.body)["usage"];
  CHECK(last["cache_read_input_tokens"].get<int>() > 500);
  for (const char* const name : {"input_tokens", "cache_read_input_tokens"}) {
    CHECK(first[name] == last[name]);
  }
}

// A recorded value, whose texts are "$filler N" in the place of N characters.
ojson with_texts(const ojson& value) {
  constexpr std::string_view kMark = "$filler ";
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    const std::size_t at = text.find(kMark);
    if (at == std::string::npos) return value;
    std::string filled = text.substr(0, at);
    const std::size_t size = at + std::stoul(text.substr(at + kMark.size()));
    while (filled.size() < size) filled += "filler that stands for a text, ";
    return filled.substr(0, size);
  }
  ojson filled = value;
  if (value.is_structured()) {
    for (ojson& member : filled) member = with_texts(member);
  }
  return filled;
}

TEST_CASE("recorded requests of Claude Code are answered from cached prefixes") {
  std::ifstream file(std::filesystem::path(LINTEL_TEST_DATA) / "golden/anthropic/claude_code.json");
  const ojson recorded = ojson::parse(file);
  REQUIRE(recorded.size() == 2);
  MessagesServer server(
      {"<tool_call>", "\n{\"name\": \"Write\", \"arguments\": {\"file_path\": ",
       "\"/tmp/hello.txt\"", ", \"content\": ", "\"Hello\"}}\n", "</tool_call>"},
      [](ServerOptions&) {}, "qwen35", 262'144);
  std::vector<ojson> messages;
  for (const ojson& one : recorded) {
    std::string headers;
    for (const auto& [name, value] : one["headers"].items()) {
      headers += name + ": " + value.get<std::string>() + "\r\n";
    }
    const HttpReply reply = post(server.port(), one["url"], with_texts(one["body"]).dump(),
                                 "application/json", headers);
    INFO(reply.head << reply.body);
    REQUIRE(reply.status == 200);
    CHECK(reply.header("lintel-ignored") == "tools.defer_loading, context_management");
    messages.push_back(message_of_events(reply.body));
    CHECK(messages.back()["stop_reason"] == "tool_use");
    CHECK(messages.back()["content"].back()["input"] ==
          ojson{{"file_path", "/tmp/hello.txt"}, {"content", "Hello"}});
  }
  const ojson& first = messages[0]["usage"];
  const std::int64_t prompt = first["input_tokens"];
  CHECK(prompt > 30'000);
  CHECK(messages[1]["usage"]["cache_read_input_tokens"].get<double>() >=
        0.95 * static_cast<double>(prompt));
}

TEST_CASE("errors of messages have Anthropic's form, type and status") {
  const TokenFile tokens;
  MessagesServer server({"a"}, [&](ServerOptions& options) {
    options.security.auth_tokens = tokens.path;
    options.connections.max_message_bytes = 64 << 10;
  });
  const auto error_of = [](const HttpReply& reply) {
    INFO(reply.body);
    const ojson error = ojson::parse(reply.body);
    CHECK(error["type"] == "error");
    CHECK(error["request_id"] == reply.header("request-id"));
    CHECK(reply.header("request-id") == reply.header("x-request-id"));
    return std::to_string(reply.status) + " " + error["error"]["type"].get<std::string>();
  };
  const ojson body = question_of("Hi");
  const std::string key = "x-api-key: token-alice\r\n";
  CHECK(error_of(server.send(body)) == "401 authentication_error");
  CHECK(error_of(server.send(body, "x-api-key: wrong\r\n")) == "401 authentication_error");
  CHECK(error_of(server.send(body, "x-api-key: token-carol\r\n")) == "403 permission_error");
  CHECK(server.send(body, key).status == 200);
  // `authorization` wins.
  CHECK(error_of(server.send(body, key + "authorization: Bearer wrong\r\n")) ==
        "401 authentication_error");
  ojson other = body;
  other["model"] = "other";
  CHECK(error_of(server.send(other, key)) == "404 not_found_error");
  ojson unknown = body;
  unknown["speed"] = "fast";
  CHECK(server.send(unknown, key).header("lintel-ignored") == "speed");
  CHECK(error_of(server.send(body, key, "/v1/messages/batches")) == "404 not_found_error");
  CHECK(error_of(server.send(question_of(std::string(70 << 10, 'x')), key)) ==
        "413 request_too_large");
  CHECK(error_of(post(server.port(), "/v1/messages", "{", "application/json", key)) ==
        "400 invalid_request_error");
  CHECK(error_of(server.get("/v1/messages", key)) == "405 invalid_request_error");
  ojson wrong = body;
  wrong["stop_sequences"] = {std::string(300, 'x')};
  const HttpReply named = server.send(wrong, key);
  CHECK(error_of(named) == "400 invalid_request_error");
  CHECK_THAT(named.body, Contains("stop_sequences"));
}

TEST_CASE("a tool that cannot be compiled is named, also after server tools") {
  MessagesServer server({"a"});
  ojson body = question_of("Hi");
  body["tools"] = ojson::parse(R"([{"type": "web_search_20250305", "name": "web_search"},
      {"name": "weather", "strict": true, "input_schema": {"type": "object",
       "properties": {"city": {"type": "string", "contains": {}}}}}])");
  const HttpReply reply = server.send(body);
  CHECK(reply.status == 400);
  CHECK(ojson::parse(reply.body)["error"]["message"] ==
        "tools: weather#/properties/city: contains is not served");
}

TEST_CASE("a server that ends answers 529 with overloaded_error") {
  MessagesServer server({"a"});
  const lintel::HttpAnswer answer = messages_protocol().refuse({}, 503, shutting_down());
  CHECK(answer.status == 529);
  CHECK_THAT(answer.body, Contains("\"type\":\"overloaded_error\""));
}

TEST_CASE("a stream of messages that waits has pings, and one that fails an error event") {
  MessagesServer server({"a", "b", "\n"}, [](ServerOptions& options) {
    options.models.scheduling.workers = 0;
    options.http.heartbeat_ms = std::chrono::milliseconds(10);
  });
  ojson body = question_of("Go", 1000);
  body["stream"] = true;
  HttpClient client(server.port());
  client.send(post_text("/v1/messages", body.dump(), "application/json"));
  const std::string ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
  std::string seen;
  while (seen.find(ping) == seen.rfind(ping)) seen += client.read_raw(1);
  CHECK(seen.find("message_start") == std::string::npos);
  for (int i = 0; i < 20; ++i) server.server.scheduler("m").run_one_step();
  while (seen.find("content_block_delta") == std::string::npos) seen += client.read_raw(1);
  CHECK(seen.find("event: message_start") < seen.find("event: content_block_start"));
  server.server.scheduler("m").stop();
  const std::string error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"";
  seen.clear();
  for (std::string more = "?"; !more.empty() && seen.find(error) == std::string::npos;) {
    more = client.read_raw(1);
    seen += more;
  }
  CHECK_THAT(seen, Contains(error));
}

TEST_CASE("the list of models has Anthropic's form where its clients ask") {
  MessagesServer server({"a"});
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  const HttpReply reply = server.get("/v1/models?limit=10", version);
  CHECK(reply.status == 200);
  const ojson page = ojson::parse(reply.body);
  CHECK(page["has_more"] == false);
  CHECK(page["first_id"] == "m");
  CHECK(page["last_id"] == "m");
  REQUIRE(page["data"].size() == 1);
  CHECK(page["data"][0]["type"] == "model");
  CHECK(page["data"][0]["id"] == "m");
  CHECK(page["data"][0]["display_name"] == "m");
  CHECK(page["data"][0]["created_at"].get<std::string>().size() == 20);
  CHECK(page["data"][0]["max_input_tokens"] == 4096);
  const ojson rest = ojson::parse(server.get("/v1/models?after_id=m", version).body);
  CHECK(rest["data"] == ojson::array());
  CHECK(rest["last_id"].is_null());
  CHECK(server.get("/v1/models?limit=0", version).status == 400);
  CHECK(ojson::parse(server.get("/v1/models/m", version).body)["type"] == "model");
  const HttpReply unknown = server.get("/v1/models/x", version);
  CHECK(unknown.status == 404);
  CHECK(ojson::parse(unknown.body)["error"]["type"] == "not_found_error");
  // Every list has one date, that of the program's start.
  const std::int64_t started = ojson::parse(server.get("/v1/models").body)["data"][0]["created"];
  const std::time_t time = started;
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  char date[32] = {};
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  CHECK(page["data"][0]["created_at"] == std::string(date) + "Z");
  const ojson tags = ojson::parse(server.get("/api/tags").body);
  CHECK(tags["models"][0]["modified_at"] == std::string(date) + ".000000000Z");
  // OpenAI's clients do not have the header.
  CHECK(ojson::parse(server.get("/v1/models").body)["object"] == "list");
  CHECK(ojson::parse(server.get("/v1/models/m").body)["object"] == "model");
  CHECK(request(server.port(), "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .status == 200);
}

TEST_CASE("several models are listed in pages, in either direction") {
  const ojson everything = [] {
    ServerOptions options = with_http();
    SteadyClock clock;
    TestServer server(options, clock, tiny_models({"bytes", "image", "tokens"}));
    const auto page = [&](const std::string& query) {
      return ojson::parse(
          request(server.server().http_port(), "GET /v1/models" + query +
                                                   " HTTP/1.1\r\nHost: localhost\r\n"
                                                   "anthropic-version: 2023-06-01\r\n\r\n")
              .body);
    };
    const auto ids = [](const ojson& of_page) {
      std::string all = of_page["has_more"] == true ? "more " : "";
      for (const ojson& model : of_page["data"]) all += model["id"].get<std::string>() + " ";
      return all;
    };
    CHECK(ids(page("?limit=2")) == "more bytes image ");
    CHECK(ids(page("?limit=2&after_id=image")) == "tokens ");
    CHECK(ids(page("?limit=1&before_id=tokens")) == "more image ");
    CHECK(ids(page("?after_id=bytes&before_id=tokens")) == "image ");
    return page("");
  }();
  CHECK(everything["data"].size() == 3);
}

TEST_CASE("models are listed with the header x-api-key as token") {
  const TokenFile tokens;
  MessagesServer server(
      {"a"}, [&](ServerOptions& options) { options.security.auth_tokens = tokens.path; });
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  CHECK(server.get("/v1/models", version + "x-api-key: token-alice\r\n").status == 200);
  const HttpReply refused = server.get("/v1/models", version);
  CHECK(refused.status == 401);
  CHECK(ojson::parse(refused.body)["error"]["type"] == "authentication_error");
  CHECK(ojson::parse(server.get("/v1/models").body)["error"]["code"] == "invalid_api_key");
}

TEST_CASE("every route of messages asks for a token", "[threat-103]") {
  const TokenFile tokens;
  MessagesServer server(
      {"a"}, [&](ServerOptions& options) { options.security.auth_tokens = tokens.path; });
  for (const char* const path :
       {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages?beta=true"}) {
    CHECK(server.send(question_of("Hi"), "", path).status == 401);
  }
  for (const char* const path : {"/v1/models", "/v1/models/m"}) {
    CHECK(server.get(path, "anthropic-version: 2023-06-01\r\n").status == 401);
  }
}

}  // namespace
}  // namespace lintel::testing
