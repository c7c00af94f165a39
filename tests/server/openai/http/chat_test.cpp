// SPDX-License-Identifier: Apache-2.0
// /v1/chat/completions.
#include "server/openai/http/chat.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lintel/v1/chat.grpc.pb.h"
#include "server/chat/chat_output.h"
#include "tests/server/chat/answer_cases.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using ojson = nlohmann::ordered_json;

ojson golden_chat(const std::string& path) {
  std::ifstream file(std::filesystem::path(LINTEL_TEST_DATA) / "golden/chat" / path);
  REQUIRE(file);
  return ojson::parse(file);
}

std::vector<std::string> data_of(const std::string& body) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = body.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    REQUIRE(body.substr(at, 6) == "data: ");
    all.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return all;
}

// Without what draws make: ids of calls, and with the placeholder of usage.
ojson comparable(ojson chunk) {
  if (chunk.contains("choices")) {
    for (ojson& choice : chunk["choices"]) {
      if (!choice["delta"].contains("tool_calls")) continue;
      for (ojson& call : choice["delta"]["tool_calls"]) {
        if (call.contains("id")) call["id"] = "id";
      }
    }
  }
  return chunk;
}

std::string text_of(JsonPieces pieces) {
  std::string text;
  while (!pieces.is_over()) text += pieces.next();
  return text;
}

TEST_CASE("goldens: an output as the chunks of a stream, and the same as a whole answer") {
  const ojson file = golden_chat("responses/streams.json");
  for (const ojson& item : file["cases"]) {
    CAPTURE(item["name"].get<std::string>());
    const std::vector<std::string> pieces = item["pieces"];
    const ChatOutput output = output_of_case(file, item);
    const AnswerHead head = {"chatcmpl-0", 1764000000, "m"};
    ChatJson stream(head, {.include_usage = true});
    ChatJson whole(head, {});
    ChatChoice choice(output, 0);
    std::string events;
    for (std::size_t i = 0; i <= pieces.size(); ++i) {
      v1::ChatResponse message;
      if (i < pieces.size()) {
        choice.push({.id = static_cast<std::int32_t>(i)}, message);
      } else {
        choice.finish(item["end"] == "stop", message);
        set_golden_usage(*message.mutable_usage());
      }
      events += stream.events(message);
      REQUIRE(whole.gather(message).ok());
    }
    const std::vector<std::string> got = data_of(events + stream.last_events());
    const ojson& expected = item["chat_chunks"];
    CHECK(got.back() == "[DONE]");
    REQUIRE(got.size() == expected.size() + 1);
    std::string content, reasoning;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(comparable(ojson::parse(got[i])).dump() == comparable(expected[i]).dump());
      for (const ojson& each : expected[i]["choices"]) {
        content += each["delta"].value("content", "");
        reasoning += each["delta"].value("reasoning_content", "");
      }
    }
    const ojson message = ojson::parse(text_of(whole.body()))["choices"][0]["message"];
    CHECK(message.value("reasoning_content", "") == reasoning);
    CHECK((message["content"].is_null() ? "" : message["content"].get<std::string>()) == content);
  }
}

// A model with World's tokens, and a template.
struct ChatServer : TestServer {
  explicit ChatServer(const TemporaryDirectory& files = TemporaryDirectory())
      : ChatServer(options_with(files)) {}
  explicit ChatServer(const ServerOptions& options)
      : TestServer(options, clock(), {{"m", text_model()}}) {}

  static const Clock& clock() {
    static const SteadyClock steady;
    return steady;
  }
  static ServerOptions options_with(const TemporaryDirectory& files, const std::string& more = "") {
    const auto path = files.path() / "chat.jinja";
    std::ofstream(path) << golden_chat("templates/chatml.json")["template"].get<std::string>()
                        << more;
    ServerOptions options = with_http();
    options.models.chat_templates = {{"m", path}};
    return options;
  }
  HttpReply chat(const ojson& body) {
    return post(server().http_port(), "/v1/chat/completions", body.dump());
  }
  ojson answered(const ojson& body) {
    const HttpReply reply = chat(body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  }
};

ojson question(const std::string& text, int max_tokens = 12) {
  return {{"model", "m"},
          {"messages", ojson::array({{{"role", "user"}, {"content", text}}})},
          {"max_tokens", max_tokens},
          {"seed", 7}};
}

TEST_CASE("chat: a stream has the pieces of the whole answer, and both have their usage") {
  ChatServer server;
  ojson body = question("Hello");
  const ojson whole = server.answered(body);
  CHECK(whole["object"] == "chat.completion");
  CHECK_THAT(whole["id"].get<std::string>(), Catch::StartsWith("chatcmpl-"));
  CHECK(whole["choices"][0]["finish_reason"] == "length");
  CHECK(whole["usage"]["completion_tokens"] == 12);
  CHECK(whole["usage"]["total_tokens"] == 12 + whole["usage"]["prompt_tokens"].get<int>());
  const std::string text = whole["choices"][0]["message"]["content"];
  REQUIRE_FALSE(text.empty());

  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = server.chat(body);
  REQUIRE(reply.status == 200);
  CHECK_THAT(reply.header("content-type"), Contains("text/event-stream"));
  const std::vector<std::string> events = data_of(reply.body);
  REQUIRE(events.size() > 3);
  CHECK(events.back() == "[DONE]");
  CHECK(ojson::parse(events.front())["choices"][0]["delta"] ==
        ojson({{"role", "assistant"}, {"content", ""}}));
  std::string joined;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    joined += ojson::parse(events[i])["choices"][0]["delta"].value("content", "");
  }
  CHECK(joined == text);
  const ojson usage = ojson::parse(events[events.size() - 2])["usage"];
  CHECK(usage["completion_tokens"] == 12);
  // The second request has the state that the first one kept.
  CHECK(usage["prompt_tokens_details"]["cached_tokens"].get<int>() > 0);
}

TEST_CASE(
    "chat: each turn of a conversation reads at most the turn before, with the same answers") {
  ChatServer server;
  const TemporaryDirectory files;
  ServerOptions without = ChatServer::options_with(files);
  without.prefixes.memory_bytes = 0;
  TestServer uncached(without, ChatServer::clock(), {{"m", text_model()}});
  ojson messages = ojson::array({{{"role", "system"}, {"content", "You are brief."}}});
  std::int64_t kept = 0, reads = 0;
  for (int turn = 0; turn < 50; ++turn) {
    CAPTURE(turn);
    messages.push_back({{"role", "user"}, {"content", "Question " + std::to_string(turn)}});
    ojson body = question("");
    body["messages"] = messages;
    body["seed"] = turn;
    const ojson answer = server.answered(body);
    const HttpReply twin = post(uncached.server().http_port(), "/v1/chat/completions", body.dump());
    REQUIRE(twin.status == 200);
    CHECK(ojson::parse(twin.body)["choices"] == answer["choices"]);
    CHECK(ojson::parse(twin.body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
    const std::int64_t prompt = answer["usage"]["prompt_tokens"];
    const std::int64_t cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    CHECK(cached >= kept);
    reads += prompt - cached;
    v1::RenderChatResponse rendered;
    v1::RenderChatRequest render;
    render.set_body(body.dump());
    grpc::ClientContext context;
    REQUIRE(v1::ChatService::NewStub(server.channel())->Render(&context, render, &rendered).ok());
    CHECK(rendered.ids_size() == prompt);
    kept = rendered.turn_boundary();
    CHECK(kept > cached);
    messages.push_back(answer["choices"][0]["message"]);
  }
  CHECK(reads < 50 * 100);  // linear: each reads its own turn and the answer before it
}

TEST_CASE("chat: an answer names the model, also where the request does not") {
  ChatServer server;
  ojson body = question("Hello");
  const bool is_named = GENERATE(false, true);
  if (!is_named) body.erase("model");
  CHECK(server.answered(body)["model"] == "m");
  body["stream"] = true;
  std::vector<std::string> chunks = data_of(server.chat(body).body);
  chunks.pop_back();  // [DONE]
  REQUIRE_FALSE(chunks.empty());
  for (const std::string& chunk : chunks) CHECK(ojson::parse(chunk)["model"] == "m");
}

// Options of a server whose template is a golden's.
ServerOptions options_of_template(const TemporaryDirectory& files, const std::string& name) {
  const auto path = files.path() / "golden.jinja";
  std::ofstream(path) << golden_chat("templates/" + name + ".json")["template"].get<std::string>();
  ServerOptions options = with_http();
  options.models.chat_templates = {{"m", path}};
  return options;
}

v1::RenderChatResponse rendered(TestServer& server, const ojson& body) {
  v1::RenderChatResponse response;
  v1::RenderChatRequest request;
  request.set_body(body.dump());
  grpc::ClientContext context;
  const grpc::Status status =
      v1::ChatService::NewStub(server.channel())->Render(&context, request, &response);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return response;
}

TEST_CASE("chat: a late system message becomes a user's in its place, and no turn is read twice") {
  const TemporaryDirectory files;
  ChatServer server(options_of_template(files, "qwen3_5_nothink"));
  ojson messages = ojson::array({{{"role", "system"}, {"content", "You are brief."}}});
  std::int64_t kept = 0;
  for (int turn = 0; turn < 8; ++turn) {
    CAPTURE(turn);
    const std::string number = std::to_string(turn);
    if (turn % 3 == 1) messages.push_back({{"role", "system"}, {"content", "Late " + number}});
    messages.push_back({{"role", "user"}, {"content", "Question " + number}});
    if (turn % 3 == 2) messages.push_back({{"role", "developer"}, {"content", "Late " + number}});
    ojson body = question("");
    body["messages"] = messages;
    const ojson answer = server.answered(body);
    CHECK(answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>() >= kept);
    const v1::RenderChatResponse prompt = rendered(server, body);
    if (turn % 3 != 0) {
      CHECK_THAT(prompt.text(), Contains("<|im_start|>user\nLate " + number + "<|im_end|>\n"));
    }
    CHECK(prompt.turn_boundary() > kept);
    kept = prompt.turn_boundary();
    messages.push_back(answer["choices"][0]["message"]);
  }
}

TEST_CASE("chat: --late-system merges a late system message into the first, or refuses it") {
  const TemporaryDirectory files;
  ServerOptions options = options_of_template(files, "qwen3_5_nothink");
  ojson body = question("");
  body["messages"] = ojson::array({{{"role", "system"}, {"content", "First."}},
                                   {{"role", "user"}, {"content", "Hello"}},
                                   {{"role", "assistant"}, {"content", "Hi"}},
                                   {{"role", "system"}, {"content", "Late."}},
                                   {{"role", "user"}, {"content", "Again"}}});
  options.late_system = LateSystem::kMerge;
  ChatServer merging(options);
  CHECK_THAT(rendered(merging, body).text(),
             Catch::StartsWith("<|im_start|>system\nFirst.\n\nLate.<|im_end|>\n"));
  CHECK(merging.chat(body).status == 200);
  options.late_system = LateSystem::kRefuse;
  ChatServer refusing(options);
  const HttpReply refused = refusing.chat(body);
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"]["code"] == "template_refused");
  CHECK_THAT(refused.body, Contains("System message must be at the beginning."));
}

TEST_CASE(
    "chat: an alias means its model in every API, and the answer has the name that was sent") {
  const TemporaryDirectory files;
  ServerOptions options = ChatServer::options_with(files);
  options.model_aliases = {{"claude-*", "m"}, {"gpt", "m"}};
  ChatServer server(options);
  const int port = server.server().http_port();
  const auto model_of = [&](const char* path, ojson body, const char* name) {
    body["model"] = name;
    const HttpReply reply = post(port, path, body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body).value("model", "");
  };
  for (const char* const name : {"m", "gpt", "claude-sonnet-4-5"}) {
    CHECK(model_of("/v1/chat/completions", question("Hello"), name) == name);
    CHECK(model_of("/v1/completions", {{"prompt", "Hello"}, {"max_tokens", 1}}, name) == name);
    CHECK(model_of("/v1/responses", {{"input", "Hello"}, {"max_output_tokens", 16}}, name) == name);
    model_of("/lintel.v1.ModelService/Tokenize", {{"text", "SGVsbG8="}}, name);
    const HttpReply inferred = post(port, "/v2/models/" + std::string(name) + "/generate",
                                    R"({"text_input": "Hello", "max_tokens": 1})");
    CHECK(inferred.status == 200);
    CHECK(ojson::parse(inferred.body)["model_name"] == "m");
    ojson message = question("Hello", 4);
    message["max_tokens"] = 4;
    CHECK(model_of("/v1/messages", message, name) == name);
  }
  const auto get = [&](const std::string& path) {
    return request(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  // A name is listed, a pattern is not.
  const ojson list = ojson::parse(get("/v1/models").body)["data"];
  REQUIRE(list.size() == 2);
  CHECK(list[0]["id"] == "gpt");
  CHECK(list[0]["lintel"]["alias_of"] == "m");
  CHECK(list[1]["id"] == "m");
  CHECK_FALSE(list[1]["lintel"].contains("alias_of"));
  const ojson claude = ojson::parse(get("/v1/models/claude-x").body);
  CHECK(claude["id"] == "claude-x");
  CHECK(claude["lintel"]["alias_of"] == "m");
  CHECK(get("/v2/models/claude-x/ready").status == 200);
  const HttpReply unknown = get("/v1/models/other/name");
  CHECK(unknown.status == 404);
  CHECK(ojson::parse(unknown.body)["error"]["code"] == "model_not_found");
  // Sessions: their model, or a name that means it.
  v1::CreateSessionRequest create;
  create.set_model("claude-x");
  v1::Session session;
  grpc::ClientContext creating, listing;
  REQUIRE(server.sessions->Create(&creating, create, &session).ok());
  CHECK(session.model() == "m");
  v1::GenerateRequest next = request_for("claude-y", {1}, 1);
  next.set_session_id(session.id());
  CHECK(generate(server, next).status.ok());
  v1::ListSessionsRequest of_alias;
  of_alias.set_model("gpt");
  v1::ListSessionsResponse sessions;
  REQUIRE(server.sessions->List(&listing, of_alias, &sessions).ok());
  CHECK(sessions.sessions_size() == 1);
}

TEST_CASE("chat: lintel.cache false neither uses nor keeps a state of the prompt") {
  ChatServer server;
  const auto cached = [&](const ojson& body) {
    const ojson usage = server.answered(body)["usage"];
    return usage["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  ojson body = question("Hello");
  ojson uncached = body;
  uncached["lintel"] = {{"cache", false}};
  CHECK(cached(uncached) == 0);
  CHECK(cached(body) == 0);  // nothing was kept
  CHECK(cached(body) > 0);
  CHECK(cached(uncached) == 0);
}

TEST_CASE("chat: stop texts end the content, choices draw with seeds of their own") {
  ChatServer server;
  const std::string text =
      server.answered(question("Hello", 40))["choices"][0]["message"]["content"];
  // A character that has not come before.
  std::size_t at = 1;
  const auto begins_character = [&](std::size_t i) { return (text[i] & 0xC0) != 0x80; };
  while (at < text.size() && (!begins_character(at) || text.find(text[at]) < at)) ++at;
  REQUIRE(at < text.size());
  std::size_t end = at + 1;
  while (end < text.size() && !begins_character(end)) ++end;
  ojson body = question("Hello", 40);
  body["stop"] = ojson::array({"no such text", text.substr(at, end - at)});
  const ojson stopped = server.answered(body);
  CHECK(stopped["choices"][0]["message"]["content"] == text.substr(0, at));
  CHECK(stopped["choices"][0]["finish_reason"] == "stop");
  CHECK(stopped["usage"]["completion_tokens"].get<int>() <= 40);
  CHECK(stopped["usage"]["prompt_tokens"].get<int>() > 0);

  body = question("Hello", 10);
  body["n"] = 3;
  const ojson several = server.answered(body);
  REQUIRE(several["choices"].size() == 3);
  for (int i = 0; i < 3; ++i) {
    ojson one = question("Hello", 10);
    one["seed"] = 7 + i;
    CHECK(server.answered(one)["choices"][0]["message"] == several["choices"][i]["message"]);
    CHECK(several["choices"][i]["index"] == i);
  }
  CHECK(several["usage"]["completion_tokens"] == 30);
}

TEST_CASE("chat: logprobs are of the content's tokens") {
  ChatServer server;
  ojson body = question("Hello", 10);
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  const ojson choice = server.answered(body)["choices"][0];
  const ojson& tokens = choice["logprobs"]["content"];
  REQUIRE_FALSE(tokens.empty());
  std::string bytes;
  for (const ojson& token : tokens) {
    CHECK(token["logprob"].get<double>() <= 0);
    CHECK(token["top_logprobs"].size() == 2);
    for (const ojson& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
  }
  std::string text;
  Utf8Stream utf8;
  utf8.push(bytes, text);
  utf8.finish(text);
  CHECK(choice["message"]["content"] == text);
}

TEST_CASE("chat: top_logprobs are as many as --max-top-log2-probs") {
  ChatServer server;
  ojson body = question("Hello", 3);
  body["logprobs"] = true;
  body["top_logprobs"] = 64;
  const ojson tokens = server.answered(body)["choices"][0]["logprobs"]["content"];
  REQUIRE_FALSE(tokens.empty());
  for (const ojson& token : tokens) CHECK(token["top_logprobs"].size() == 64);
  body["top_logprobs"] = 65;
  const HttpReply refused = server.chat(body);
  CHECK(refused.status == 400);
  const ojson error = ojson::parse(refused.body)["error"];
  CHECK(error["message"] == "top_logprobs: 65 is more than 64 (--max-top-log2-probs)");
  CHECK(error["param"] == "top_logprobs");
}

TEST_CASE("chat: reasoning is ended after thinking_token_budget, and the content follows") {
  const TemporaryDirectory files;
  ChatServer server(
      ChatServer::options_with(files, "{% if add_generation_prompt %}<think>\n{% endif %}"));
  ojson body = question("Hello", 40);
  body["logit_bias"] = {{std::to_string('a' + 1), 50}};  // it writes nothing else
  const ojson free = server.answered(body);
  CHECK(free["choices"][0]["message"]["reasoning_content"] == std::string(40, 'a'));
  CHECK(free["choices"][0]["message"]["content"] == "");
  CHECK(free["usage"]["completion_tokens_details"]["reasoning_tokens"] == 40);
  constexpr int kEndTokens = 10;  // of "\n</think>\n\n": a byte each, and one for the last two
  for (const int budget : {0, 1, 8}) {
    CAPTURE(budget);
    body["thinking_token_budget"] = budget;
    const ojson ended = server.answered(body);
    const ojson& message = ended["choices"][0]["message"];
    CHECK(message.value("reasoning_content", "") == std::string(budget, 'a'));
    CHECK(message["content"] == std::string(40 - budget - kEndTokens, 'a'));
    CHECK(ended["usage"]["completion_tokens"] == 40);
    // The line end before the tag counts, too.
    CHECK(ended["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + 1);
  }
}

// A model with Llama's tokens, which have an end, and a template that shows tools.
struct ToolServer : TestServer {
  explicit ToolServer(const std::string& source = golden_chat("templates/qwen2_5.json")["template"],
                      const TemporaryDirectory& files = TemporaryDirectory())
      : TestServer(options_with(source, files), ChatServer::clock(), {{"m", llama_text_model()}}) {}
  static ServerOptions options_with(const std::string& source, const TemporaryDirectory& files) {
    const auto path = files.path() / "chat.jinja";
    std::ofstream(path) << source;
    ServerOptions options = with_http();
    options.monitoring.metrics_listen = ListenAddress{"127.0.0.1", 0, ""};
    options.models.chat_templates = {{"m", path}};
    return options;
  }
  ojson answered(const ojson& body) {
    const HttpReply reply = post(server().http_port(), "/v1/chat/completions", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  }
};

TEST_CASE("chat: an answer under a schema is a document of it, for any draws") {
  ToolServer server;
  ojson body = question("Name a city.", 400);
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema",
                              {{"name", "city"},
                               {"strict", true},
                               {"schema",
                                {{"type", "object"},
                                 {"properties",
                                  {{"name", {{"type", "string"}, {"maxLength", 8}}},
                                   {"size", {{"type", "integer"}, {"minimum", 1}, {"maximum", 99}}},
                                   {"kind", {{"enum", {"old", "new"}}}}}},
                                 {"required", {"name", "size", "kind"}},
                                 {"additionalProperties", false}}}}}};
  for (int seed = 0; seed < 5; ++seed) {
    body["seed"] = seed;
    const ojson choice = server.answered(body)["choices"][0];
    CHECK(choice["finish_reason"] == "stop");
    const ojson city = ojson::parse(choice["message"]["content"].get<std::string>());
    CHECK(city.size() == 3);
    CHECK(city["name"].is_string());
    CHECK(city["size"].get<int>() >= 1);
    CHECK(city["size"].get<int>() <= 99);
    CHECK((city["kind"] == "old" || city["kind"] == "new"));
  }
  body["response_format"]["json_schema"]["schema"]["properties"]["name"]["contains"] =
      ojson::object();
  const HttpReply refused = post(server.server().http_port(), "/v1/chat/completions", body.dump());
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"]["code"] == "unsupported_schema");
  CHECK_THAT(ojson::parse(refused.body)["error"]["message"].get<std::string>(),
             Contains("/properties/name") && Contains("contains"));

  body = question("Yes or no?", 20);
  body["grammar"] = "root ::= \"yes\" | \"no\"";
  const std::string word = server.answered(body)["choices"][0]["message"]["content"];
  CHECK((word == "yes" || word == "no"));
}

TEST_CASE("chat: a forced call is one of the tools, with arguments of its schema") {
  ToolServer server;
  ojson body = question("Weather?", 400);
  for (const char* const name : {"get_weather", "get_time"}) {
    body["tools"].push_back(
        {{"type", "function"},
         {"function",
          {{"name", name},
           {"strict", true},
           {"parameters",
            {{"type", "object"},
             {"properties", {{"place", {{"type", "string"}, {"maxLength", 6}}}}},
             {"required", {"place"}},
             {"additionalProperties", false}}}}}});
  }
  body["parallel_tool_calls"] = false;
  body["tool_choice"] = "required";
  for (int seed = 0; seed < 4; ++seed) {
    body["seed"] = seed;
    const ojson choice = server.answered(body)["choices"][0];
    CHECK(choice["finish_reason"] == "tool_calls");
    const ojson& calls = choice["message"]["tool_calls"];
    REQUIRE(calls.size() == 1);
    const std::string name = calls[0]["function"]["name"];
    CHECK((name == "get_weather" || name == "get_time"));
    const ojson arguments = ojson::parse(calls[0]["function"]["arguments"].get<std::string>());
    CHECK(arguments["place"].is_string());
    CHECK(calls[0]["id"].get<std::string>().size() == 9);
  }
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "get_time"}}}};
  const ojson named = server.answered(body)["choices"][0]["message"];
  CHECK(named["tool_calls"][0]["function"]["name"] == "get_time");
  CHECK(named["content"].is_null());
  // The result goes back, and the conversation continues.
  body["messages"].push_back(named);
  body["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", named["tool_calls"][0]["id"]}, {"content", "noon"}});
  body["tool_choice"] = "none";
  body["max_tokens"] = 5;
  CHECK_FALSE(server.answered(body)["choices"][0]["message"].contains("tool_calls"));
}

TEST_CASE("chat: the next turn begins behind the answer where the template writes it as it came") {
  // Texts end with the model's own end, or with another one.
  const std::string end = GENERATE("<|end_of_text|>", "<end>");
  ToolServer server(
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' "
      "%}" +
      end +
      "{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
      "{% endif %}");
  ojson body = question("A digit?", 20);
  body["grammar"] = "root ::= [0-9]";
  std::int64_t behind = 0;
  for (int turn = 0; turn < 5; ++turn) {
    const ojson answer = server.answered(body);
    const ojson& usage = answer["usage"];
    REQUIRE(answer["choices"][0]["finish_reason"] == "stop");
    const bool is_own = end == "<|end_of_text|>";
    CHECK(usage["prompt_tokens_details"]["cached_tokens"] ==
          (is_own ? behind : std::max<std::int64_t>(behind - 3, 0)));
    // The prompt, the digit and the end.
    behind = usage["prompt_tokens"].get<std::int64_t>() + 2;
    body["messages"].push_back(answer["choices"][0]["message"]);
    body["messages"].push_back({{"role", "user"}, {"content", "Another?"}});
    // States that the next turn cannot begin with are dropped behind the answer.
    REQUIRE(eventually([&] {
      return values(server.server()).at("lintel_chat_states{at=\"end\"}") ==
             (is_own ? std::min(turn + 1, 2) : 0);
    }));
  }
  const auto now = values(server.server());
  CHECK(now.at("lintel_chat_history_reread_total") == 0);
  CHECK(now.at("lintel_chat_states{at=\"turn\"}") <= 3);
  CHECK(now.at("lintel_chat_states{at=\"call\"}") == 0);
}

TEST_CASE("chat: an answer ends where it would have more than 128 calls") {
  ToolServer server;
  constexpr const char* kCalls =
      R"(root ::= "a" ("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"){%COUNT%} "b")";
  ojson body = question("Weather?", 8192);
  body["tools"] = ojson::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  // The answer could begin with a call, as tools are given.
  const std::vector<std::int32_t> a =
      llama_text_model()->tokenizer()->encode("a", {.add_special = false});
  body["logit_bias"] = {{std::to_string(a.front()), 100}};
  const auto answered = [&](int count) {
    std::string grammar = kCalls;
    body["grammar"] = grammar.replace(grammar.find("%COUNT%"), 7, std::to_string(count));
    return server.answered(body)["choices"][0];
  };
  const ojson most = answered(128);
  CHECK(most["finish_reason"] == "tool_calls");
  CHECK(most["message"]["tool_calls"].size() == 128);
  CHECK(most["message"]["content"] == "ab");
  const ojson more = answered(130);
  CHECK(more["finish_reason"] == "length");
  CHECK(more["message"]["tool_calls"] == most["message"]["tool_calls"]);
  CHECK(more["message"]["content"] == "a");
}

TEST_CASE("chat: an answer that the end of the server cuts off is an error, not a short answer") {
  ToolServer server;
  ojson body = question("Hello", 30'000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  body["stream"] = true;
  HttpClient client(server.server().http_port());
  client.send(post_text("/v1/chat/completions", body.dump(), "application/json"));
  std::string seen = client.read_raw(2000);
  std::thread stopping([&] { server.server().stop(); });
  for (std::string more; !(more = client.read_raw(1 << 16)).empty();) seen += more;
  stopping.join();
  CHECK_THAT(seen, Contains("\"error\""));
  CHECK_THAT(seen, !Contains("\"length\""));
}

TEST_CASE("chat: an idle server reads the answer ahead, with the answers of one that does not") {
  const TemporaryDirectory files;
  // Old answers are written in another form, or without what the generation prompt began.
  const std::string answer_begins = GENERATE("", "<think></think>");
  const std::string source =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content | upper }}\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>" +
      answer_begins + "{% endif %}";
  ServerOptions options = ToolServer::options_with(source, files);
  TestServer plain(options, ChatServer::clock(), {{"m", llama_text_model()}});
  options.prefixes.reads_ahead = true;
  TestServer ahead(options, ChatServer::clock(), {{"m", llama_text_model()}});
  const auto answered = [](TestServer& server, const ojson& body) {
    const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  };
  const auto cached = [](const ojson& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<std::int64_t>();
  };
  ojson body = question("A long answer, please.", 40);
  std::int64_t prompt = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const ojson answer = answered(ahead, body);
    const ojson twin = answered(plain, body);
    CHECK(answer["choices"] == twin["choices"]);
    if (turn > 0) {
      CHECK(cached(twin) <= prompt);
      CHECK(cached(answer) > prompt + 5);
    }
    prompt = answer["usage"]["prompt_tokens"];
    // The answer and the reading of it are two requests.
    REQUIRE(eventually([&] {
      const auto ended = ahead.scheduler("m").stats().ended;
      return ended[static_cast<std::size_t>(RequestOutcome::kDone)] ==
             2 * static_cast<std::uint64_t>(turn + 1);
    }));
    CHECK(comes_to(ahead, "lintel_chat_states{at=\"turn\"}", std::min(turn + 2, 3)));
    body["messages"].push_back(answer["choices"][0]["message"]);
    body["messages"].push_back({{"role", "user"}, {"content", "Another?"}});
  }
  const auto now = values(ahead.server());
  const auto then = values(plain.server());
  for (const char* const how : {"cached", "read"}) {
    const std::string name = std::string("lintel_chat_prompt_tokens_total{how=\"") + how + "\"}";
    CHECK((how == std::string("cached") ? now.at(name) > then.at(name)
                                        : now.at(name) < then.at(name)));
  }
}

TEST_CASE("chat: a state before the generation prompt is kept where a call came, else dropped") {
  // Its generation prompt is no beginning of what an answer becomes.
  ToolServer server(
      "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
      "{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>"
      "{% endfor %}\n{% endfor %}{% if messages[-1].role == 'user' %}. {% endif %}"
      "{% if add_generation_prompt %}<|assistant|><think></think>{% endif %}");
  ojson body = question("Weather?", 300);
  body["tools"] = ojson::array({{{"type", "function"},
                                 {"function",
                                  {{"name", "f"},
                                   {"parameters",
                                    {{"type", "object"},
                                     {"properties", ojson::object()},
                                     {"additionalProperties", false}}}}}}});
  body["parallel_tool_calls"] = false;
  const auto calls = [&](double expected) {
    return eventually(
        [&] { return values(server.server()).at("lintel_chat_states{at=\"call\"}") == expected; });
  };
  body["tool_choice"] = "required";
  CHECK(server.answered(body)["choices"][0]["finish_reason"] == "tool_calls");
  CHECK(calls(1));
  body["tool_choice"] = "auto";
  body["messages"][0]["content"] = "Nothing.";
  body["max_tokens"] = 1;
  CHECK(server.answered(body)["choices"][0]["finish_reason"] == "length");
  CHECK(calls(1));
}

TEST_CASE("chat: keywords of a schema that are left out are named in a header") {
  ToolServer server;
  ojson body = question("Name a city.", 8);
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "city"},
        {"schema",
         {{"type", "object"},
          {"properties", {{"a", {{"type", "array"}, {"uniqueItems", true}}}}}}}}}};
  for (const bool streams : {false, true}) {
    body["stream"] = streams;
    const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
    CHECK(reply.status == 200);
    CHECK(reply.header("lintel-schema-relaxed") == "#/properties/a uniqueItems");
  }
  // The first of very many are named.
  ojson& properties = body["response_format"]["json_schema"]["schema"]["properties"];
  for (int i = 0; i < 200; ++i)
    properties[std::string(50, 'p') + std::to_string(i)] = {{"uniqueItems", true}};
  const HttpReply many = post(server.server().http_port(), "/v1/chat/completions", body.dump());
  CHECK(many.status == 200);
  CHECK(many.header("lintel-schema-relaxed").size() < 2100);
  CHECK_THAT(std::string(many.header("lintel-schema-relaxed")), Catch::EndsWith(", ..."));
  // None without any.
  const HttpReply plain =
      post(server.server().http_port(), "/v1/chat/completions", question("a", 2).dump());
  CHECK(plain.header("lintel-schema-relaxed").empty());
}

TEST_CASE("chat: an answer without a limit of its own ends after --chat-max-tokens") {
  const TemporaryDirectory files;
  ServerOptions options = ChatServer::options_with(files);
  options.models.limits.chat_max_tokens = 6;
  ChatServer server(options);
  ojson body = question("Hello", 9);
  CHECK(server.answered(body)["usage"]["completion_tokens"] == 9);
  body.erase("max_tokens");
  const ojson answer = server.answered(body);
  CHECK(answer["usage"]["completion_tokens"] == 6);
  CHECK(answer["choices"][0]["finish_reason"] == "length");
}

TEST_CASE("chat: reasoning has the member's name that the server was given") {
  const TemporaryDirectory files;
  ServerOptions options =
      ChatServer::options_with(files, "{% if add_generation_prompt %}<think>\n{% endif %}");
  std::string thought;
  for (const auto field : {ChatReasoningField::kReasoningContent, ChatReasoningField::kReasoning,
                           ChatReasoningField::kBoth}) {
    CAPTURE(static_cast<int>(field));
    options.http.chat_reasoning_field = field;
    ChatServer server(options);
    ojson body = question("Hello");
    ojson message = server.answered(body)["choices"][0]["message"];
    CHECK(message.contains("reasoning_content") == (field != ChatReasoningField::kReasoning));
    CHECK(message.contains("reasoning") == (field != ChatReasoningField::kReasoningContent));
    for (const char* const name : {"reasoning_content", "reasoning"}) {
      if (!message.contains(name)) continue;
      if (thought.empty()) thought = message[name];
      CHECK(message[name] == thought);
    }
    body["stream"] = true;
    const ojson delta = ojson::parse(data_of(server.chat(body).body).at(1))["choices"][0]["delta"];
    CHECK(delta.contains("reasoning_content") == message.contains("reasoning_content"));
    CHECK(delta.contains("reasoning") == message.contains("reasoning"));
  }
}

TEST_CASE(
    "chat: sampling defaults of a checkpoint are listed, and apply where a request has none") {
  const TemporaryDirectory files;
  write_text_model(files.path() / "m");
  std::ofstream(files.path() / "m" / "generation_config.json")
      << R"({"temperature": 0.0, "top_k": 20, "repetition_penalty": 1.05, "do_sample": true})";
  ServerOptions options = ChatServer::options_with(files);
  options.models.directories = {{"m", files.path() / "m"}};
  TestServer server(options, ChatServer::clock(), {});
  const int port = server.server().http_port();
  for (const char* const path : {"/v1/models", "/v1/models/m"}) {
    const HttpReply reply =
        request(port, "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ojson model = ojson::parse(reply.body);
    if (model.contains("data")) model = ojson(model["data"][0]);
    CHECK(model["lintel"]["defaults"] ==
          ojson({{"temperature", 0.0}, {"top_k", 20}, {"repetition_penalty", 1.05}}));
  }
  ojson body = question("Hello");
  const auto text = [&](int seed) {
    body["seed"] = seed;
    const HttpReply reply = post(port, "/v1/chat/completions", body.dump());
    return ojson::parse(reply.body)["choices"][0]["message"]["content"].get<std::string>();
  };
  CHECK(text(1) == text(2));  // the most likely tokens
  body["temperature"] = 1.0;
  CHECK(text(1) != text(2));
}

// The answers of a model directory "m" whose generation_config.json is `config`.
class RecommendedServer {
 public:
  explicit RecommendedServer(const std::string& config) {
    write_text_model(files_.path() / "m");
    std::ofstream(files_.path() / "m" / "generation_config.json") << config;
    ServerOptions options = ChatServer::options_with(files_);
    options.models.directories = {{"m", files_.path() / "m"}};
    server_.emplace(options, ChatServer::clock(), GivenModels());
  }
  ojson choice(const ojson& body) {
    const HttpReply reply =
        post(server_->server().http_port(), "/v1/chat/completions", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body)["choices"][0];
  }
  std::string text(const ojson& body) { return choice(body)["message"]["content"]; }

 private:
  const TemporaryDirectory files_;
  std::optional<TestServer> server_;
};

TEST_CASE("chat: stop_strings of generation_config.json end an answer, with those of the request") {
  const ojson body = question("Hello", 60);
  const std::string text = RecommendedServer("{}").text(body);
  // ASCII characters that have not come before: where an answer is to end, and one further on.
  std::vector<std::size_t> ends;
  for (std::size_t i = 1; i < text.size() && ends.size() < 2; ++i) {
    if (text[i] > ' ' && text[i] < 127 && text.find(text[i]) == i) ends.push_back(i);
  }
  REQUIRE(ends.size() == 2);
  const std::string first(1, text[ends[0]]), second(1, text[ends[1]]);
  for (const ojson& stops : {ojson(second), ojson{"no such text", second}}) {
    RecommendedServer server(ojson{{"stop_strings", stops}}.dump());
    const ojson choice = server.choice(body);
    CHECK(choice["message"]["content"] == text.substr(0, ends[1]));
    CHECK(choice["finish_reason"] == "stop");
    ojson more = body;
    more["stop"] = first;
    CHECK(server.text(more) == text.substr(0, ends[0]));
    more["stop"] = "no such text";  // adds to them
    CHECK(server.text(more) == text.substr(0, ends[1]));
  }
  // None of them is a text that can end an answer.
  const std::string none = ojson{{"stop_strings", {"", 3, std::string(257, 'a'), nullptr}}}.dump();
  CHECK(RecommendedServer(none).text(body) == text);
  CHECK(RecommendedServer(R"({"stop_strings": {"a": "b"}})").text(body) == text);
}

TEST_CASE("chat: stop_strings of a checkpoint cut no document") {
  const TemporaryDirectory files;
  write_llama_text_model(files.path() / "m");
  std::ofstream(files.path() / "m" / "generation_config.json") << R"({"stop_strings": ["e"]})";
  ServerOptions options =
      ToolServer::options_with(golden_chat("templates/qwen2_5.json")["template"], files);
  options.models.directories = {{"m", files.path() / "m"}};
  TestServer server(options, ChatServer::clock(), GivenModels());
  ojson body = question("Yes or no?", 20);
  body["grammar"] = "root ::= \"yes\"";
  const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  CHECK(ojson::parse(reply.body)["choices"][0]["message"]["content"] == "yes");
}

TEST_CASE("chat: a request without a model means the only one that chats") {
  const TemporaryDirectory files;
  ServerOptions options = ChatServer::options_with(files);
  const GivenModels models = {{"a", text_model()}, {"m", text_model()}, {"z", text_model()}};
  ojson body = question("Hello");
  body.erase("model");
  const ojson input = {{"input", "Hello"}, {"max_output_tokens", 16}};
  SECTION("one has a template") {
    TestServer server(options, ChatServer::clock(), models);
    const int port = server.server().http_port();
    const HttpReply chat = post(port, "/v1/chat/completions", body.dump());
    INFO(chat.body);
    REQUIRE(chat.status == 200);
    CHECK(ojson::parse(chat.body)["model"] == "m");
    const HttpReply response = post(port, "/v1/responses", input.dump());
    INFO(response.body);
    REQUIRE(response.status == 200);
    CHECK(ojson::parse(response.body)["model"] == "m");
    const auto chats = v1::ChatService::NewStub(server.channel());
    v1::RenderChatRequest render;
    render.set_body(body.dump());
    v1::RenderChatResponse rendered;
    grpc::ClientContext context;
    REQUIRE(chats->Render(&context, render, &rendered).ok());
    CHECK(rendered.model() == "m");
  }
  SECTION("two have one") {
    options.models.chat_templates.push_back(options.models.chat_templates.front());
    options.models.chat_templates.back().model = "z";
    TestServer server(options, ChatServer::clock(), models);
    for (const auto& [path, asked] :
         {std::pair{"/v1/chat/completions", body}, std::pair{"/v1/responses", input}}) {
      const HttpReply reply = post(server.server().http_port(), path, asked.dump());
      CHECK(reply.status == 400);
      const ojson error = ojson::parse(reply.body)["error"];
      CHECK(error["param"] == "model");
      CHECK(error["message"] == "model: several models chat, name one: m, z");
    }
  }
  SECTION("none has one") {
    options.models.chat_templates.clear();
    TestServer server(options, ChatServer::clock(), models);
    const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
    CHECK(reply.status == 400);
    const ojson error = ojson::parse(reply.body)["error"];
    CHECK(error["code"] == "no_chat_template");
    CHECK(error["message"] ==
          "model: none of the models has a chat template (--chat-template): a, m, z");
  }
}

TEST_CASE("chat: a system message that the template leaves out is named in a header") {
  const TemporaryDirectory files;
  const ServerOptions shows = ChatServer::options_with(files);
  const ojson plain = question("Hello");
  ojson with_system = plain;
  with_system["messages"].insert(with_system["messages"].begin(),
                                 ojson{{"role", "system"}, {"content", "Be brief."}});
  const ojson with_instructions = {
      {"model", "m"}, {"input", "Hello"}, {"instructions", "Be brief."}, {"max_output_tokens", 16}};
  const auto left_out = [](TestServer& server, const char* path, const ojson& body) {
    const HttpReply reply = post(server.server().http_port(), path, body.dump());
    INFO(reply.body);
    CHECK(reply.status == 200);
    return std::string(reply.header("lintel-chat-left-out"));
  };
  ChatServer showing(shows);
  CHECK(left_out(showing, "/v1/chat/completions", with_system).empty());
  const auto path = files.path() / "short.jinja";
  std::ofstream(path) << "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
  ServerOptions leaves = shows;
  leaves.models.chat_templates = {{"m", path}};
  ChatServer leaving(leaves);
  for (const bool streams : {false, true}) {
    with_system["stream"] = streams;
    CHECK(left_out(leaving, "/v1/chat/completions", with_system) == "system");
  }
  CHECK(left_out(leaving, "/v1/responses", with_instructions) == "system");
  CHECK(left_out(leaving, "/v1/chat/completions", plain).empty());
  // Results of tools, by a template that has no place for them.
  ojson with_result = plain;
  with_result["messages"].push_back({{"role", "tool"}, {"tool_call_id", "a"}, {"content", "1"}});
  CHECK(left_out(showing, "/v1/chat/completions", with_result).empty());
  ServerOptions drops = shows;
  const auto world = files.path() / "world.jinja";
  std::ofstream(world) << "rwkv-world";
  drops.models.chat_templates = {{"m", world}};
  ChatServer dropping(drops);
  CHECK(left_out(dropping, "/v1/chat/completions", with_result) == "tool");
}

TEST_CASE("chat: text-rwkv7-small reads a scene and answers with one speech") {
  ServerOptions options = with_http();
  options.models.directories = {
      {"m", std::filesystem::path(LINTEL_TEST_DATA) / "../weights/text-rwkv7-small"}};
  TestServer server(options, ChatServer::clock(), GivenModels());
  ojson body = question("  What news, my lord?\n");
  body.erase("max_tokens");
  body["messages"].insert(body["messages"].begin(),
                          ojson{{"role", "system"}, {"content", "Be brief."}});
  body["messages"].push_back({{"role", "assistant"}, {"content", "None, sir."}});
  body["messages"].push_back({{"role", "user"}, {"content", "None?"}});
  const auto chats = v1::ChatService::NewStub(server.channel());
  v1::RenderChatRequest render;
  render.set_body(body.dump());
  v1::RenderChatResponse rendered;
  grpc::ClientContext context;
  REQUIRE(chats->Render(&context, render, &rendered).ok());
  CHECK(rendered.text() ==
        "ROMEO:\nWhat news, my lord?\n\nJULIET:\nNone, sir.\n\nROMEO:\nNone?\n\nJULIET:\n");
  CHECK(rendered.turn_boundary() == rendered.ids_size() - 1);
  for (int seed = 0; seed < 5; ++seed) {
    body["seed"] = seed;
    const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
    REQUIRE(reply.status == 200);
    CHECK(reply.header("lintel-chat-left-out") == "system");
    const ojson choice = ojson::parse(reply.body)["choices"][0];
    CHECK(choice["finish_reason"] == "stop");
    CHECK_THAT(choice["message"]["content"].get<std::string>(), !Contains("\n\n"));
  }
}

// The messages of an answer over gRPC.
std::vector<v1::ChatResponse> completed(TestServer& server, const ojson& body) {
  v1::ChatRequest request;
  request.set_body(body.dump());
  grpc::ClientContext context;
  const auto reader = v1::ChatService::NewStub(server.channel())->Complete(&context, request);
  std::vector<v1::ChatResponse> messages;
  for (v1::ChatResponse message; reader->Read(&message);) messages.push_back(message);
  REQUIRE(reader->Finish().ok());
  REQUIRE_FALSE(messages.empty());
  return messages;
}

double seconds_of(const google::protobuf::Duration& wire) {
  return static_cast<double>(wire.seconds()) + 1e-9 * wire.nanos();
}

TEST_CASE("chat: ChatFinish over gRPC has the stop text, a full context and timings") {
  ChatServer server;
  ojson body = question("Hello", 40);
  const std::string text = server.answered(body)["choices"][0]["message"]["content"];
  const auto finish_of = [&](TestServer& asked) {
    const std::vector<v1::ChatResponse> messages = completed(asked, body);
    CHECK(messages.front().prompt_tokens() == messages.back().usage().prompt_tokens());
    CHECK(messages.front().prompt_tokens() > 0);
    for (std::size_t i = 1; i < messages.size(); ++i) CHECK(messages[i].prompt_tokens() == 0);
    std::vector<v1::ChatFinish> finished;
    for (const v1::ChatResponse& message : messages) {
      finished.insert(finished.end(), message.finished().begin(), message.finished().end());
    }
    REQUIRE(finished.size() == 1);
    const v1::ChatFinish& finish = finished[0];
    CHECK(seconds_of(finish.timings().prompt()) > 0);
    CHECK(seconds_of(finish.timings().generation()) > 0);
    CHECK(seconds_of(finish.timings().per_token()) > 0);
    return finished[0];
  };
  const v1::ChatFinish length = finish_of(server);
  CHECK(length.reason() == v1::CHAT_FINISH_REASON_LENGTH);
  CHECK(length.stop_string().empty());
  CHECK_FALSE(length.at_context_end());

  // A stop text ends the answer before its sample's end.
  std::size_t at = text.size() / 3;
  while (at < text.size() && ((text[at] & 0x80) != 0 || text.find(text[at]) < at)) ++at;
  REQUIRE(at < text.size());
  const std::string stop = text.substr(at, 1);
  body["stop"] = ojson::array({"no such text", stop});
  const v1::ChatFinish stopped = finish_of(server);
  CHECK(stopped.reason() == v1::CHAT_FINISH_REASON_STOP);
  CHECK(stopped.stop_string() == stop);

  // A model with a context that the answer fills.
  const TemporaryDirectory files, directory;
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.vocab_size = 300;
  config.max_length = 200;
  write_random_model(directory.path(), config, /*seed=*/3);
  const std::string vocabulary = "rwkv_vocab_v20230424.txt";
  std::filesystem::copy_file(
      std::filesystem::path(LINTEL_TEST_DATA) / "golden/tokenizers/world" / vocabulary,
      directory.path() / vocabulary);
  TestServer bounded(ChatServer::options_with(files), ChatServer::clock(),
                     {{"m", Transformer::load(directory.path(), {})}});
  body.erase("stop");
  body.erase("max_tokens");
  body["ignore_eos"] = true;
  const v1::ChatFinish full = finish_of(bounded);
  CHECK(full.reason() == v1::CHAT_FINISH_REASON_LENGTH);
  CHECK(full.at_context_end());
}

TEST_CASE("chat: members that are not known are ignored and named, or refused") {
  ojson body = question("Hello", 2);
  body["logit_scale"] = 2;
  body["stream_options"] = {{"chunks", 1}};
  const TemporaryDirectory files;
  ServerOptions options = ChatServer::options_with(files);
  options.http.cors_origins = {"https://page.example"};
  const ojson completion = {{"model", "m"}, {"prompt", "a"}, {"max_tokens", 2}, {"no_such", 1}};
  const ojson response = {
      {"model", "m"}, {"input", "a"}, {"max_output_tokens", 16}, {"no_such", 1}};
  const std::vector<std::pair<const char*, ojson>> others = {{"/v1/completions", completion},
                                                             {"/v1/responses", response}};
  SECTION("ignored") {
    ChatServer server(options);
    const int port = server.server().http_port();
    for (const bool streams : {false, true}) {
      body["stream"] = streams;
      const HttpReply reply = server.chat(body);
      INFO(reply.body);
      CHECK(reply.status == 200);
      CHECK(reply.header("lintel-ignored") == "logit_scale, stream_options.chunks");
    }
    CHECK(server.chat(question("Hello", 2)).header("lintel-ignored").empty());
    for (const auto& [path, asked] : others) {
      const HttpReply reply = post(port, path, asked.dump());
      CHECK(reply.status == 200);
      CHECK(reply.header("lintel-ignored") == "no_such");
    }
    const HttpReply page = post(port, "/v1/chat/completions", body.dump(), "application/json",
                                "origin: https://page.example\r\n");
    CHECK_THAT(std::string(page.header("access-control-expose-headers")),
               Contains("lintel-ignored"));
    const HttpReply slip = post(port, "/v1/completions", R"({"prompt": "a", "max_token": 1})");
    CHECK(slip.status == 400);
    CHECK(ojson::parse(slip.body)["error"]["param"] == "max_token");
    CHECK_THAT(slip.body, Contains("did you mean max_tokens?"));
    v1::ChatRequest request;
    request.set_body(body.dump());
    grpc::ClientContext context;
    const auto reader = v1::ChatService::NewStub(server.channel())->Complete(&context, request);
    for (v1::ChatResponse message; reader->Read(&message);) {
    }
    REQUIRE(reader->Finish().ok());
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find("lintel-ignored");
    REQUIRE(found != metadata.end());
    CHECK(found->second == "logit_scale, stream_options.chunks");
  }
  SECTION("refused") {
    options.refuses_unknown_members = true;
    ChatServer server(options);
    const HttpReply reply = server.chat(body);
    CHECK(reply.status == 400);
    const ojson error = ojson::parse(reply.body)["error"];
    CHECK(error["param"] == "logit_scale");
    CHECK(error["message"] == "logit_scale: is not a parameter of this server");
    for (const auto& [path, asked] : others) {
      const HttpReply refused = post(server.server().http_port(), path, asked.dump());
      CHECK(refused.status == 400);
      CHECK(ojson::parse(refused.body)["error"]["param"] == "no_such");
    }
    CHECK(server.chat(question("Hello", 2)).status == 200);
  }
}

TEST_CASE("chat: max_tokens -1, top_k -1 and an empty stop ask for nothing") {
  const TemporaryDirectory files;
  ServerOptions options = ChatServer::options_with(files);
  options.models.limits.chat_max_tokens = 30;
  ChatServer server(options);
  ojson body = question("Hello", 12);
  const ojson plain = server.answered(body)["choices"];
  body["top_k"] = -1;
  body["stop"] = "";
  CHECK(server.answered(body)["choices"] == plain);
  body["max_tokens"] = -1;
  ojson without = question("Hello");
  without.erase("max_tokens");
  CHECK(server.answered(body)["choices"] == server.answered(without)["choices"]);
}

TEST_CASE(
    "chat: ids of tokens, usage in each event, timings and a fingerprint, as others have them") {
  ChatServer server;
  ojson body = question("Hello", 12);
  body["return_token_ids"] = true;
  body["timings_per_token"] = true;
  const ojson whole = server.answered(body);
  CHECK(whole["system_fingerprint"] == text_model()->fingerprint());
  const std::size_t prompt = whole["usage"]["prompt_tokens"];
  CHECK(whole["prompt_token_ids"].size() == prompt);
  const ojson ids = whole["choices"][0]["token_ids"];
  CHECK(ids.size() == 12);
  const ojson& timings = whole["timings"];
  CHECK(timings["predicted_n"] == 12);
  CHECK(timings["prompt_n"].get<std::size_t>() + timings["cache_n"].get<std::size_t>() == prompt);
  for (const char* const name :
       {"prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_ms",
        "predicted_per_token_ms", "predicted_per_second"}) {
    CAPTURE(name);
    CHECK(timings[name].get<double>() > 0);
  }

  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  std::vector<std::string> events = data_of(server.chat(body).body);
  CHECK(events.back() == "[DONE]");
  events.pop_back();
  ojson streamed = ojson::array(), prompt_ids;
  for (const std::string& event : events) {
    const ojson chunk = ojson::parse(event);
    CHECK(chunk["system_fingerprint"] == text_model()->fingerprint());
    if (chunk.contains("prompt_token_ids")) {
      CHECK(prompt_ids.is_null());
      prompt_ids = chunk["prompt_token_ids"];
    }
    CHECK(chunk["usage"]["prompt_tokens"] == prompt);
    if (chunk["choices"].empty()) {
      CHECK(chunk["timings"]["predicted_n"] == 12);
      continue;
    }
    for (const ojson& id : chunk["choices"][0].value("token_ids", ojson::array())) {
      streamed.push_back(id);
    }
    CHECK(chunk["usage"]["completion_tokens"] == streamed.size());
  }
  CHECK(prompt_ids == whole["prompt_token_ids"]);
  CHECK(streamed == ids);

  // Unasked, an answer has none of it.
  const ojson plain = server.answered(question("Hello", 2));
  for (const char* const name : {"prompt_token_ids", "timings"}) CHECK_FALSE(plain.contains(name));
  CHECK_FALSE(plain["choices"][0].contains("token_ids"));
}

TEST_CASE("chat: logit_bias takes tokens by their texts") {
  ChatServer server;
  ojson body = question("Hello", 12);
  body["logit_bias"] = ojson::array({ojson::array({"a", 100})});
  CHECK(server.answered(body)["choices"][0]["message"]["content"] == std::string(12, 'a'));
  body["logit_bias"] = {{"b", 100}, {std::to_string('a' + 1), 1}};
  CHECK(server.answered(body)["choices"][0]["message"]["content"] == std::string(12, 'b'));
  body["logit_bias"] = ojson::array(
      {ojson::array({"b", 100}), ojson::array({"a", 100.5}), ojson::array({"a", false})});
  CHECK(server.answered(body)["choices"][0]["message"]["content"] == std::string(12, 'b'));
}

TEST_CASE("chat: stops of other servers: tokens, a least number, the stop kept, no end") {
  ToolServer server;
  ojson body = question("Hello", 40);
  const std::string letter = "a";
  const std::int32_t a = llama_text_model()->tokenizer()->encode(letter, {.add_special = false})[0];
  const auto with_bias = [&](ojson more) {
    ojson asked = body;
    if (!more.is_null()) asked.update(more);
    const ojson answer = server.answered(asked);
    return std::pair(answer["choices"][0]["message"]["content"].get<std::string>(),
                     answer["choices"][0]["finish_reason"].get<std::string>());
  };
  const std::string end = std::to_string(kLlamaEnd);
  // The end token is what the model says, unless it is kept from it.
  body["logit_bias"] = {{end, 200}, {std::to_string(a), 100}};
  CHECK(with_bias({}) == std::pair(std::string(), std::string("stop")));
  CHECK(with_bias({{"min_tokens", 7}}) == std::pair(std::string(7, 'a'), std::string("stop")));
  CHECK(with_bias({{"ignore_eos", true}}) == std::pair(std::string(), std::string("length")));
  const std::string spelt =
      with_bias({{"ignore_eos", true}, {"skip_special_tokens", false}, {"max_tokens", 2}}).first;
  CHECK(spelt == "<|end_of_text|><|end_of_text|>");
  body["logit_bias"] = {{std::to_string(a), 200}};
  CHECK(with_bias({{"stop_token_ids", ojson::array({a})}}) ==
        std::pair(std::string(), std::string("stop")));
  CHECK(with_bias({{"stop_token_ids", ojson::array({a})}, {"include_stop_str_in_output", true}}) ==
        std::pair(letter, std::string("stop")));
  CHECK(with_bias({{"stop", "aaa"}}) == std::pair(std::string(), std::string("stop")));
  CHECK(with_bias({{"stop", "aaa"}, {"include_stop_str_in_output", true}}) ==
        std::pair(std::string("aaa"), std::string("stop")));
  CHECK(with_bias({{"stop", "aaa"}, {"min_tokens", 10}}) ==
        std::pair(std::string(8, 'a'), std::string("stop")));
  const HttpReply refused = post(server.server().http_port(), "/v1/chat/completions", [&] {
    ojson asked = body;
    asked["min_tokens"] = 41;
    return asked.dump();
  }());
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"]["message"] ==
        "min_tokens: 41 is more than the most tokens of the answer, 40");
}

TEST_CASE("chat: structured_outputs and tokens of a grammar bind the text") {
  ToolServer server;
  const auto content = [&](const char* name, const ojson& value) {
    ojson body = question("Yes or no?", 60);
    body[name] = value;
    return server.answered(body)["choices"][0]["message"]["content"].get<std::string>();
  };
  const std::string chosen = content("structured_outputs", {{"choice", {"a \"b\"", "c\\"}}});
  CHECK((chosen == "a \"b\"" || chosen == "c\\"));
  const std::string matched = content("guided_regex", "[a-c]{3}|x{5}y");
  CHECK((matched == "xxxxxy" ||
         (matched.size() == 3 && matched.find_first_not_of("abc") == std::string::npos)));
  CHECK(ojson::parse(content("guided_json", {{"const", "x"}})) == "x");
  const std::int32_t a = llama_text_model()->tokenizer()->encode("a", {.add_special = false})[0];
  CHECK(content("guided_grammar", "root ::= <[" + std::to_string(a) + "]>{3}") == "aaa");
  ojson body = question("a", 4);
  body["grammar"] = "root ::= <[" + std::to_string(kLlamaEnd) + "]>";
  const HttpReply special = post(server.server().http_port(), "/v1/chat/completions", body.dump());
  CHECK(special.status == 400);
  CHECK_THAT(special.body, Contains("token " + std::to_string(kLlamaEnd) + " is special"));
  body["grammar"] = nullptr;
  body["guided_regex"] = "a)|(b";
  const HttpReply broken = post(server.server().http_port(), "/v1/chat/completions", body.dump());
  CHECK(broken.status == 400);
  CHECK(ojson::parse(broken.body)["error"]["code"] == "unsupported_schema");
  CHECK(ojson::parse(broken.body)["error"]["message"] ==
        "guided_regex: pattern a)|(b is not served");
}

TEST_CASE("chat: an error of a format names the member that was sent") {
  ToolServer server;
  const auto error_of = [&](const char* name, const ojson& value) {
    ojson body = question("a", 4);
    body[name] = value;
    const HttpReply reply = post(server.server().http_port(), "/v1/chat/completions", body.dump());
    CHECK(reply.status == 400);
    const ojson error = ojson::parse(reply.body)["error"];
    CHECK(error["code"] == "unsupported_schema");
    CHECK(error["param"] == name);
    return error["message"].get<std::string>();
  };
  const ojson schema = {{"properties", {{"a", {{"allOf", 3}}}}}};
  CHECK_THAT(error_of("guided_json", schema), Catch::StartsWith("guided_json"));
  CHECK(error_of("guided_json", {{"type", "zork"}}) == "guided_json: #: type is not valid");
  CHECK(error_of("guided_grammar", "root ::= root \"a\" | \"b\"") ==
        "guided_grammar: left recursion of rule root is not served");
  CHECK_THAT(error_of("structured_outputs", {{"json", schema}}),
             Catch::StartsWith("structured_outputs.json"));
  CHECK_THAT(error_of("structured_outputs", {{"regex", "("}}),
             Catch::StartsWith("structured_outputs.regex: pattern ("));
  const std::string unnamed = "root ::= other";
  const std::string special = "root ::= <[" + std::to_string(kLlamaEnd) + "]>";
  for (const std::string& grammar : {unnamed, special}) {
    CHECK_THAT(error_of("grammar", grammar), Catch::StartsWith("grammar: "));
    CHECK_THAT(error_of("guided_grammar", grammar), Catch::StartsWith("guided_grammar: "));
    CHECK_THAT(error_of("structured_outputs", {{"grammar", grammar}}),
               Catch::StartsWith("structured_outputs.grammar: "));
  }
}

TEST_CASE("chat: return_token_ids gives those of the prompt and of every delta") {
  ChatServer server;
  ojson body = question("Hello", 12);
  body["n"] = 2;
  const std::vector<v1::ChatResponse> plain = completed(server, body);
  for (const v1::ChatResponse& message : plain) {
    CHECK(message.prompt_ids_size() == 0);
    for (const v1::ChatDelta& delta : message.deltas()) CHECK(delta.token_ids_size() == 0);
  }
  body["return_token_ids"] = true;
  const std::vector<v1::ChatResponse> messages = completed(server, body);
  v1::RenderChatRequest render;
  render.set_body(body.dump());
  v1::RenderChatResponse rendered;
  grpc::ClientContext context;
  REQUIRE(v1::ChatService::NewStub(server.channel())->Render(&context, render, &rendered).ok());
  CHECK(std::ranges::equal(messages.front().prompt_ids(), rendered.ids()));
  for (std::uint32_t choice = 0; choice < 2; ++choice) {
    std::string text, content;
    int ids = 0;
    for (const v1::ChatResponse& message : messages) {
      for (const v1::ChatDelta& delta : message.deltas()) {
        if (delta.choice() != choice) continue;
        ids += delta.token_ids_size();
        for (const std::int32_t id : delta.token_ids()) {
          text += text_model()->tokenizer()->bytes_of(id);
        }
        content += delta.content();
      }
    }
    CHECK(ids == 12);
    std::string repaired;
    Utf8Stream utf8;
    utf8.push(text, repaired);
    utf8.finish(repaired);
    CHECK(repaired == content);
  }
}

TEST_CASE("chat: what cannot be served is an error of OpenAI's shape, with its code") {
  ChatServer server;
  const auto error_of = [&](const ojson& body) {
    const HttpReply reply = server.chat(body);
    CHECK(reply.status == 400);
    return ojson::parse(reply.body)["error"];
  };
  ojson body = question("a");
  body["tools"] = ojson::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  CHECK(error_of(body)["code"] == "tools_not_supported");
  CHECK(error_of(body)["param"] == "tools");
  body = question("a");
  body["functions"] = ojson::array();
  CHECK(error_of(body)["param"] == "functions");
  body = question("a");
  body["temperature"] = -1;
  CHECK(error_of(body)["param"] == "temperature");
  body = question("a");
  // The limits of completions apply, to number and length (--max-stop-strings).
  body["stop"] = std::vector<std::string>(16, std::string(256, 'a'));
  CHECK(server.chat(body).status == 200);
  body["stop"] = std::vector<std::string>(17, "a");
  CHECK(error_of(body)["param"] == "stop");
  CHECK(error_of(body)["message"] == "stop: 17 stop strings are more than 16");
  body["stop"] = {"a", std::string(257, 'a')};
  CHECK(error_of(body)["param"] == "stop");
  CHECK(error_of(body)["message"] == "stop[1]: 257 bytes are more than 256");
  body["stop"] = ojson::array({""});  // ends nothing
  CHECK(server.chat(body).status == 200);
  body = question("a");
  body["messages"][0]["content"] = ojson::array({{{"type", "image_url"}}});
  CHECK_THAT(error_of(body)["message"].get<std::string>(), Contains("image_url"));
  CHECK(server.chat({{"model", "none"}, {"messages", question("a")["messages"]}}).status == 404);
  const HttpReply none = post(server.server().http_port(), "/v1/chat/completions", "nonsense");
  CHECK(none.status == 400);

  TestServer plain({"bytes"}, with_http());
  body = question("a");
  body["model"] = "bytes";
  const HttpReply refused = post(plain.server().http_port(), "/v1/chat/completions", body.dump());
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"]["code"] == "no_chat_template");
}

}  // namespace
}  // namespace lintel::testing
