// SPDX-License-Identifier: Apache-2.0
// Ollama's API over HTTP, by models that say a given text.
#include "server/ollama/routes.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/ollama/protocol.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/scripted_model.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;
using Catch::Matchers::Contains;

// Calls are Hermes'; `beginning` is what an answer begins with.
std::string ollama_template(const std::string& beginning) {
  return R"({% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
)" + beginning +
         "{% endif %}";
}

constexpr const char* kThinks = "{% if enable_thinking is not false %}<think>\n{% endif %}";

// The models m, which says `pieces`, and base, which has no template.
struct OllamaServer : TestServer {
  explicit OllamaServer(const std::vector<std::string>& pieces, const std::string& beginning = "",
                        ServerOptions options = with_http(),
                        const TemporaryDirectory& files = TemporaryDirectory())
      : TestServer(with_template(std::move(options), ollama_template(beginning), files), clock(),
                   {{"base", text_model()}, {"m", scripted_model(pieces)}}) {}

  static const Clock& clock() {
    static const SteadyClock steady;
    return steady;
  }
  static ServerOptions with_template(ServerOptions options, const std::string& source,
                                     const TemporaryDirectory& files) {
    const auto path = files.path() / "chat.jinja";
    std::ofstream(path) << source;
    options.models.chat_templates = {{"m", path}};
    return options;
  }

  int port() { return server().http_port(); }
  HttpReply ask(const std::string& method, const std::string& path,
                const std::string& headers = "") {
    return request(port(),
                   method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  }
  // The answer as one object; that of a stream is put together and has to be the same.
  ojson answered(const std::string& path, ojson body) {
    body["stream"] = false;
    const HttpReply reply = post(port(), path, body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    CHECK_THAT(reply.header("content-type"), Contains("application/json"));
    ojson whole = ojson::parse(reply.body);
    body.erase("stream");
    const HttpReply streamed = post(port(), path, body.dump());
    REQUIRE(streamed.status == 200);
    CHECK_THAT(streamed.header("content-type"), Contains("application/x-ndjson"));
    ojson joined;
    for (std::size_t at = 0; at < streamed.body.size();) {
      const std::size_t end = streamed.body.find('\n', at);
      REQUIRE(end != std::string::npos);
      add_line(ojson::parse(streamed.body.substr(at, end - at)), joined);
      at = end + 1;
      CHECK(joined["done"] == (at == streamed.body.size()));
    }
    CHECK(comparable(joined) == comparable(whole));
    return whole;
  }

 private:
  static void append(const ojson& from, const char* member, ojson& to) {
    if (!from.contains(member)) return;
    if (!to.contains(member)) {
      to[member] = from[member];
    } else if (from[member].is_string()) {
      to[member] = to[member].get<std::string>() + from[member].get<std::string>();
    } else {
      for (const ojson& item : from[member]) to[member].push_back(item);
    }
  }
  static void add_line(const ojson& line, ojson& joined) {
    if (joined.is_null()) {
      joined = line;
      return;
    }
    for (const char* const member : {"response", "thinking", "logprobs"}) {
      append(line, member, joined);
    }
    if (line.contains("message")) {
      for (const char* const member : {"content", "thinking", "tool_calls"}) {
        append(line["message"], member, joined["message"]);
      }
    }
    for (const auto& [name, value] : line.items()) {
      if (value.is_number() || value.is_boolean() || name == "done_reason") joined[name] = value;
    }
  }
  // Without times and what is drawn.
  static nlohmann::json comparable(const ojson& answer) {
    nlohmann::json json = answer;
    for (const char* const member : {"created_at", "total_duration", "load_duration",
                                     "prompt_eval_duration", "eval_duration"}) {
      json.erase(member);
    }
    if (!json.contains("message")) return json;
    for (nlohmann::json& call : json["message"]["tool_calls"]) call.erase("id");
    return json;
  }
};

ojson ask_for(const std::string& text = "hi") {
  return {{"model", "m"},
          {"messages", ojson::array({{{"role", "user"}, {"content", text}}})},
          {"options", {{"temperature", 0}, {"num_predict", 40}, {"seed", 7}}}};
}
ojson complete(const std::string& prompt, const std::string& model = "m") {
  return {{"model", model},
          {"prompt", prompt},
          {"options", {{"temperature", 0}, {"num_predict", 12}, {"seed", 7}}}};
}

ojson weather_tool() {
  return {{"type", "function"},
          {"function",
           {{"name", "weather"},
            {"description", "The weather of a city."},
            {"parameters",
             {{"type", "object"},
              {"properties", {{"city", {{"type", "string"}}}}},
              {"required", {"city"}}}}}}};
}

TEST_CASE("ollama: a chat's lines are its whole answer, with reason, counts and durations") {
  OllamaServer server({"Good", " morning", "."});
  ojson body = ask_for();
  body["model"] = "m:latest";
  const ojson answer = server.answered("/api/chat", body);
  CHECK(answer["model"] == "m:latest");
  CHECK(answer["message"] == ojson({{"role", "assistant"}, {"content", "Good morning."}}));
  CHECK(answer["done"] == true);
  CHECK(answer["done_reason"] == "stop");
  CHECK(answer["prompt_eval_count"].get<int>() > 5);
  CHECK(answer["eval_count"].get<int>() >= 3);
  CHECK(answer["total_duration"].get<std::int64_t>() >=
        answer["eval_duration"].get<std::int64_t>());
  body["options"]["num_predict"] = 2;
  const ojson cut = server.answered("/api/chat", body);
  CHECK(cut["message"]["content"] == "Good morning");
  CHECK(cut["done_reason"] == "length");
  CHECK(cut["eval_count"] == 2);
  body["options"] = {{"temperature", 0}, {"stop", {"ing"}}};
  CHECK(server.answered("/api/chat", body)["message"]["content"] == "Good morn");
}

TEST_CASE("ollama: calls of tools have objects as arguments, and their results are read") {
  OllamaServer server({"<tool_call>",
                       "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n",
                       "</tool_call>"});
  ojson body = ask_for();
  body["tools"] = ojson::array({weather_tool()});
  const ojson answer = server.answered("/api/chat", body);
  const ojson& calls = answer["message"]["tool_calls"];
  REQUIRE(calls.size() == 1);
  CHECK(calls[0]["function"]["name"] == "weather");
  CHECK(calls[0]["function"]["arguments"] == ojson({{"city", "Rome"}}));
  CHECK(answer["message"]["content"] == "");
  CHECK(answer["done_reason"] == "stop");

  body["messages"].push_back(answer["message"]);
  body["messages"].push_back({{"role", "tool"}, {"tool_name", "weather"}, {"content", "Rain."}});
  const ojson next = server.answered("/api/chat", body);
  CHECK(next["prompt_eval_count"].get<int>() > answer["prompt_eval_count"].get<int>());
}

TEST_CASE("ollama: thinking is a member of its own, and think false turns it off") {
  OllamaServer server({"Let", " me", " see", "</think>", "Good", " day"}, kThinks);
  ojson body = ask_for();
  const ojson answer = server.answered("/api/chat", body);
  CHECK(answer["message"]["thinking"] == "Let me see");
  CHECK(answer["message"]["content"] == "Good day");
  body["think"] = true;
  CHECK(server.answered("/api/chat", body)["message"] == answer["message"]);
  body["think"] = false;
  CHECK_FALSE(server.answered("/api/chat", body)["message"].contains("thinking"));
  const ojson generated = server.answered("/api/generate", complete("hi"));
  CHECK(generated["thinking"] == "Let me see");
  CHECK(generated["response"] == "Good day");
}

TEST_CASE("ollama: format makes documents of a schema") {
  OllamaServer server({"{\"age\":", " 7", "}"});
  ojson body = ask_for();
  body["format"] = {{"type", "object"},
                    {"properties", {{"age", {{"type", "integer"}, {"maximum", 9}}}}},
                    {"required", {"age"}},
                    {"additionalProperties", false}};
  const ojson answer = server.answered("/api/chat", body);
  const std::string text = answer["message"]["content"];
  INFO(text);
  CHECK(ojson::parse(text)["age"] == 7);
  body["format"] = "xml";
  const HttpReply refused = post(server.port(), "/api/chat", body.dump());
  CHECK(refused.status == 400);
  CHECK(ojson::parse(refused.body)["error"] == "format: is not \"json\" or a schema");
}

TEST_CASE("ollama: generate uses the template, raw none, and a model without one as raw") {
  OllamaServer server({"Good", " day"});
  const ojson answer = server.answered("/api/generate", complete("hi"));
  CHECK(answer["response"] == "Good day");
  CHECK(answer["done_reason"] == "stop");
  ojson raw = complete("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  raw["raw"] = true;
  const ojson same = server.answered("/api/generate", raw);
  CHECK(same["response"] == answer["response"]);
  CHECK(same["prompt_eval_count"] == answer["prompt_eval_count"]);
  ojson with_system = complete("hi");
  with_system["system"] = "Be brief.";
  CHECK(server.answered("/api/generate", with_system)["prompt_eval_count"].get<int>() >
        answer["prompt_eval_count"].get<int>());

  ojson base = complete("The ", "base");
  const ojson text = server.answered("/api/generate", base);
  base["raw"] = true;
  CHECK(server.answered("/api/generate", base)["response"] == text["response"]);
  const std::string expected = text["response"];
  const HttpReply completed = post(server.port(), "/v1/completions",
                                   R"({"model": "base", "prompt": "The ", "temperature": 0,
                                       "seed": 7, "max_tokens": 12})");
  CHECK(ojson::parse(completed.body)["choices"][0]["text"] == expected);
  CHECK(ojson::parse(completed.body)["usage"]["completion_tokens"] == text["eval_count"]);
  for (const char* const member : {"system", "format"}) {
    ojson refused = complete("The ", "base");
    refused[member] = "json";
    const HttpReply reply = post(server.port(), "/api/generate", refused.dump());
    CHECK(reply.status == 400);
    CHECK_THAT(reply.body, Contains(std::string(member) + ": is not served: model 'base'"));
  }
}

TEST_CASE("ollama: a long prompt of generate is rendered in its caller's turn") {
  OllamaServer server({"Good", " day"});
  const std::string prompt(40'000, 'x');
  ojson body = complete(prompt);
  body["stream"] = false;
  const HttpReply reply = post(server.port(), "/api/generate", body.dump());
  // Beyond the context: its call says so, and as the call of a chat.
  CHECK(reply.status == 400);
  CHECK_THAT(ojson::parse(reply.body)["error"].get<std::string>(),
             Contains("tokens, the model takes fewer than"));
}

TEST_CASE("ollama: logprobs come with their alternatives") {
  OllamaServer server({"Good", " day"});
  ojson body = ask_for();
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  for (const bool is_chat : {true, false}) {
    CAPTURE(is_chat);
    ojson asked = is_chat ? body : complete("The ", "base");
    asked["logprobs"] = true;
    asked["top_logprobs"] = 2;
    const ojson answer = server.answered(is_chat ? "/api/chat" : "/api/generate", asked);
    REQUIRE(answer["logprobs"].size() >= 2);
    for (const ojson& token : answer["logprobs"]) {
      CHECK(token["logprob"].get<double>() <= 0);
      CHECK(token["top_logprobs"].size() == 2);
    }
    asked["top_logprobs"] = 65;
    const HttpReply refused =
        post(server.port(), is_chat ? "/api/chat" : "/api/generate", asked.dump());
    CHECK(refused.status == 400);
    CHECK(ojson::parse(refused.body)["error"] ==
          "top_logprobs: 65 is more than 64 (--max-top-log2-probs)");
  }
}

TEST_CASE("ollama: an empty request loads a model, or does nothing with keep_alive 0") {
  OllamaServer server({"Good", " day"});
  for (const char* const path : {"/api/chat", "/api/generate"}) {
    CAPTURE(path);
    const HttpReply loaded = post(server.port(), path, R"({"model": "m"})");
    CHECK(loaded.status == 200);
    CHECK(ojson::parse(loaded.body)["done_reason"] == "load");
    CHECK(ojson::parse(loaded.body)["done"] == true);
    const HttpReply unloaded = post(server.port(), path, R"({"model": "m", "keep_alive": 0})");
    CHECK(ojson::parse(unloaded.body)["done_reason"] == "unload");
    const HttpReply unknown = post(server.port(), path, R"({"model": "nope"})");
    CHECK(unknown.status == 404);
    CHECK_THAT(unknown.body, Contains("not found"));
  }
}

TEST_CASE("ollama: tags, ps, show and version describe the models") {
  OllamaServer server({"Good", " day"}, kThinks);
  const auto get = [&](const std::string& path) {
    const HttpReply reply = server.ask("GET", path);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    const HttpReply head = server.ask("HEAD", path, "connection: close\r\n");
    CHECK_THAT(head.head, Contains("200"));
    return ojson::parse(reply.body);
  };
  const ojson tags = get("/api/tags");
  REQUIRE(tags["models"].size() == 2);
  CHECK(tags["models"][0]["name"] == "base:latest");
  CHECK(tags["models"][1]["model"] == "m:latest");
  CHECK(tags["models"][1]["details"]["family"] == "qwen3_5_text");
  CHECK(get("/api/ps")["models"].size() == 2);
  CHECK(get("/api/version") == ojson({{"version", std::string(kOllamaVersion)}}));

  const auto show = [&](const std::string& body) {
    const HttpReply reply = post(server.port(), "/api/show", body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  };
  const ojson shown = show(R"({"model": "m:latest"})");
  CHECK(shown["capabilities"] == ojson::array({"completion", "tools", "thinking"}));
  CHECK(shown["model_info"]["general.architecture"] == "qwen3_5_text");
  CHECK(shown["model_info"]["qwen3_5_text.context_length"] == 4096);
  CHECK(show(R"({"name": "base"})")["capabilities"] == ojson::array({"completion"}));
  CHECK(post(server.port(), "/api/show", R"({"model": "nope"})").status == 404);
  CHECK_THAT(post(server.port(), "/api/show", R"({"model": 3})").body,
             Contains("model: is not a text"));
  OllamaServer plain({"Good", " day"});
  const HttpReply reply = post(plain.port(), "/api/show", R"({"model": "m"})");
  CHECK(ojson::parse(reply.body)["capabilities"] == ojson::array({"completion", "tools"}));
}

TEST_CASE("ollama: an alias is listed with its model, and chats and shows as it") {
  ServerOptions options = with_http();
  options.model_aliases = {{"llama3:8b", "m"}, {"gpt", "m"}, {"claude-*", "m"}};
  OllamaServer server({"Good", " day"}, "", options);
  const ojson tags = ojson::parse(server.ask("GET", "/api/tags").body)["models"];
  std::vector<std::string> names;
  for (const ojson& model : tags) names.push_back(model["name"].get<std::string>());
  // A pattern is not listed.
  CHECK(names == std::vector<std::string>{"base:latest", "gpt:latest", "llama3:8b", "m:latest"});
  REQUIRE(tags.size() == 4);
  CHECK(tags[0]["details"]["parent_model"] == "");
  CHECK(tags[1]["details"]["parent_model"] == "m:latest");
  CHECK(tags[2]["digest"] == tags[3]["digest"]);
  CHECK(ojson::parse(server.ask("GET", "/api/ps").body)["models"].size() == 2);  // in memory
  for (const char* const name :
       {"gpt", "gpt:latest", "llama3:8b", "llama3:8b:latest", "claude-any"}) {
    CAPTURE(name);
    ojson body = ask_for();
    body["model"] = name;
    const ojson answer = server.answered("/api/chat", body);
    CHECK(answer["model"] == name);
    CHECK(answer["message"]["content"] == "Good day");
    CHECK(server.answered("/api/generate", complete("hi", name))["response"] == "Good day");
    const HttpReply shown = post(server.port(), "/api/show", ojson({{"model", name}}).dump());
    CHECK(shown.status == 200);
    CHECK(ojson::parse(shown.body)["model_info"]["general.basename"] == "m");
  }
}

TEST_CASE("ollama: routes that are not served say why") {
  OllamaServer server({"Good", " day"});
  for (const char* const path : {"/api/embed", "/api/embeddings"}) {
    const HttpReply reply = post(server.port(), path, R"({"model": "m", "input": "a"})");
    CHECK(reply.status == 404);
    CHECK_THAT(ojson::parse(reply.body)["error"].get<std::string>(),
               Contains("embeddings are not served"));
  }
  const HttpReply pull = post(server.port(), "/api/pull", R"({"model": "m"})");
  CHECK(pull.status == 501);
  CHECK_THAT(ojson::parse(pull.body)["error"].get<std::string>(), Contains("lintel pull"));
  for (const char* const path : {"/api/push", "/api/create", "/api/copy"}) {
    CHECK(post(server.port(), path, "{}").status == 501);
  }
  CHECK(server.ask("DELETE", "/api/delete").status == 501);
  const HttpReply unknown = server.ask("GET", "/api/no_such");
  CHECK(unknown.status == 404);
  CHECK(ojson::parse(unknown.body)["error"].is_string());
}

TEST_CASE("ollama: errors name the member, and members without effect are in a header") {
  OllamaServer server({"Good", " day"});
  const auto refused = [&](const char* option, const ojson& value) {
    ojson body = ask_for();
    body["options"][option] = value;
    const HttpReply reply = post(server.port(), "/api/chat", body.dump());
    CHECK(reply.status == 400);
    return ojson::parse(reply.body)["error"].get<std::string>();
  };
  CHECK_THAT(refused("top_p", 2), Contains("options.top_p: "));
  CHECK_THAT(refused("repeat_penalty", -1), Contains("options.repeat_penalty: "));
  CHECK_THAT(refused("repeat_last_n", 1'000'000), Contains("options.repeat_last_n: "));
  CHECK_THAT(refused("stop", ojson::array({std::string(300, 'x')})), Contains("options.stop[0]: "));
  CHECK(post(server.port(), "/api/chat", "{").status == 400);
  ojson base = ask_for();
  base["model"] = "base";
  CHECK_THAT(post(server.port(), "/api/chat", base.dump()).body, Contains("no chat template"));

  ojson body = ask_for();
  body["no_such"] = 1;
  const HttpReply reply = post(server.port(), "/api/chat", body.dump());
  CHECK(reply.status == 200);
  CHECK(reply.header("lintel-ignored") == "no_such");
}

TEST_CASE("ollama: a prompt that is too long is named as generate has it") {
  OllamaServer server({"Good", " day"});
  ojson body = complete(std::string(9000, 'x'), "m");
  for (const bool streams : {false, true}) {
    body["stream"] = streams;
    const HttpReply reply = post(server.port(), "/api/generate", body.dump());
    CHECK(reply.status == 400);
    CHECK_THAT(ojson::parse(reply.body)["error"].get<std::string>(),
               Catch::StartsWith("prompt: have "));
  }
}

TEST_CASE("ollama: members without effect are refused where the server refuses unknown ones") {
  ServerOptions options = with_http();
  options.refuses_unknown_members = true;
  OllamaServer server({"Good", " day"}, "", options);
  ojson empty = {{"model", "m"}};
  for (ojson body : {ask_for(), complete("hi"), complete("The ", "base"), empty}) {
    const char* const path = body.contains("messages") ? "/api/chat" : "/api/generate";
    CAPTURE(path, body.dump());
    CHECK(post(server.port(), path, body.dump()).status == 200);
    body["no_such"] = 1;
    const HttpReply reply = post(server.port(), path, body.dump());
    CHECK(reply.status == 400);
    CHECK(ojson::parse(reply.body)["error"] == "no_such: is not a parameter of this server");
    CHECK(reply.header("lintel-ignored").empty());
  }
  ojson option = ask_for();
  option["options"]["no_such"] = 1;
  CHECK(ojson::parse(post(server.port(), "/api/chat", option.dump()).body)["error"] ==
        "options.no_such: is not a parameter of this server");
}

TEST_CASE("ollama: a stream that waits has lines without content, and then its answer") {
  for (const bool is_chat : {true, false}) {
    CAPTURE(is_chat);
    ServerOptions options = with_http();
    options.models.scheduling.workers = 0;  // the model runs when the test says so
    options.http.heartbeat_ms = std::chrono::milliseconds(10);
    OllamaServer server({"Good", " day"}, "", options);
    HttpClient client(server.port());
    client.send(is_chat ? post_text("/api/chat", ask_for().dump(), "application/json")
                        : post_text("/api/generate", complete("hi").dump(), "application/json"));
    // The next line of the answer, after those of the head and of the sizes of chunks.
    const auto read_line = [&] {
      std::string line;
      do {
        line.clear();
        while (!line.ends_with('\n')) {
          const std::string more = client.read_raw(1);
          REQUIRE_FALSE(more.empty());
          line += more;
        }
      } while (!line.starts_with('{'));
      return ojson::parse(line);
    };
    const auto text_of = [&](const ojson& line) -> std::string {
      return is_chat ? line["message"]["content"] : line["response"];
    };
    for (int i = 0; i < 2; ++i) {
      const ojson line = read_line();
      CHECK(line["model"] == "m");
      CHECK(line["done"] == false);
      CHECK(text_of(line).empty());
    }
    std::string text;
    ojson line;
    do {
      run_until_idle(server.server().scheduler("m"));
      line = read_line();
      text += text_of(line);
    } while (line["done"] == false);
    CHECK(text == "Good day");
    CHECK(line["done_reason"] == "stop");
  }
}

TEST_CASE("ollama: each route needs a token where tokens are set", "[threat-130]") {
  const TokenFile tokens;
  ServerOptions options = with_http();
  options.security.auth_tokens = tokens.path;
  OllamaServer server({"Good", " day"}, "", options);
  const std::vector<std::pair<std::string, std::string>> routes = {
      {"POST", "/api/chat"},     {"POST", "/api/generate"},   {"POST", "/api/show"},
      {"POST", "/api/embed"},    {"POST", "/api/embeddings"}, {"POST", "/api/pull"},
      {"POST", "/api/push"},     {"POST", "/api/create"},     {"POST", "/api/copy"},
      {"DELETE", "/api/delete"}, {"GET", "/api/tags"},        {"GET", "/api/ps"},
      {"GET", "/api/version"}};
  for (const auto& [method, path] : routes) {
    CAPTURE(path);
    const HttpReply reply = server.ask(method, path);
    CHECK(reply.status == 401);
    CHECK(ojson::parse(reply.body)["error"].is_string());
    CHECK(server.ask(method, path, "authorization: Bearer wrong\r\n").status == 401);
  }
  CHECK(server.ask("GET", "/api/tags", "authorization: Bearer token-alice\r\n").status == 200);
  const std::string body = ask_for().dump();
  const auto chat_as = [&](const std::string& name) {
    return post(server.port(), "/api/chat", body, "application/json",
                "authorization: Bearer token-" + name + "\r\n")
        .status;
  };
  CHECK(chat_as("bob") == 200);
  CHECK(chat_as("carol") == 403);  // may score alone
}

}  // namespace
}  // namespace lintel::testing
