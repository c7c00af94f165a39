// SPDX-License-Identifier: Apache-2.0
// llama.cpp's and vLLM's routes of prompts: /tokenize, /detokenize, /apply-template, /props and
// /v1/chat/completions/input_tokens.
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "lintel/v1/chat.grpc.pb.h"
#include "lintel/v1/model.grpc.pb.h"
#include "tests/server/support/http_client.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using ojson = nlohmann::ordered_json;

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools[0].function.name }}\n{% endif %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}";

// "chat", with Llama 3's tokenizer and a template, and "tokens", which has neither.
class PromptServer {
 public:
  PromptServer() {
    write_llama_text_model(files_.path() / "chat");
    write_random_model(files_.path() / "more/tokens", tiny_config(TinyModel::kTokens), /*seed=*/5);
    std::ofstream(files_.path() / "chat/generation_config.json") << R"({"temperature": 0.5})";
    std::ofstream(files_.path() / "chat.jinja") << kTemplate;
    ServerOptions options = with_http();
    options.models.directories = {{"chat", files_.path() / "chat"}};
    options.models.on_request = files_.path() / "more";
    options.models.chat_templates = {{"chat", files_.path() / "chat.jinja"}};
    options.model_aliases = {{"gone-*", "nope"}};
    server_ = std::make_unique<TestServer>(options, clock_, GivenModels());
  }
  HttpReply sent(const std::string& path, const ojson& body) {
    return post(server_->server().http_port(), path, body.dump());
  }
  ojson answered(const std::string& path, const ojson& body) {
    const HttpReply reply = sent(path, body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  }
  HttpReply get(const std::string& path) {
    return request(server_->server().http_port(),
                   "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  // An error's message, whose status is 400.
  std::string refusal(const std::string& path, const ojson& body) {
    const HttpReply reply = sent(path, body);
    INFO(reply.body);
    CHECK(reply.status == 400);
    return ojson::parse(reply.body)["error"]["message"];
  }
  std::vector<std::int32_t> ids(const std::string& text, bool add_special) {
    v1::TokenizeRequest wanted;
    wanted.set_model("chat");
    wanted.set_text(text);
    wanted.set_add_special(add_special);
    wanted.set_parse_special(true);
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    REQUIRE(server_->models->Tokenize(&context, wanted, &response).ok());
    return {response.ids().begin(), response.ids().end()};
  }
  TestServer& server() { return *server_; }

 private:
  const TemporaryDirectory files_;
  const SteadyClock clock_;
  std::unique_ptr<TestServer> server_;
};

const ojson kConversation = ojson::array({{{"role", "user"}, {"content", "Hello"}}});

}  // namespace

TEST_CASE("tokenize: llama.cpp's body has ids, or ids with their pieces") {
  PromptServer server;
  const std::string text = "Hello <|end_of_text|> \xC3\xA9\xF0\x9F\x8E\x89";
  ojson body = {{"model", "chat"}, {"content", text}};
  CHECK(server.answered("/tokenize", body) == ojson({{"tokens", server.ids(text, false)}}));
  body["add_special"] = true;
  const std::vector<std::int32_t> ids = server.ids(text, true);
  CHECK(ids.front() == kLlamaBegin);
  CHECK(server.answered("/tokenize", body)["tokens"] == ojson(ids));
  body["with_pieces"] = true;
  const ojson tokens = server.answered("/tokenize", body)["tokens"];
  REQUIRE(tokens.size() == ids.size());
  std::string joined;
  int lists = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(tokens[i]["id"] == ids[i]);
    const ojson& piece = tokens[i]["piece"];
    if (piece.is_string()) {
      joined += piece.get<std::string>();
      continue;
    }
    ++lists;  // a part of a character
    for (const ojson& byte : piece) joined += static_cast<char>(byte.get<int>());
  }
  CHECK(joined == "<|begin_of_text|>" + text);
  CHECK(lists > 0);
  body["parse_special"] = false;
  CHECK(server.answered("/tokenize", body)["tokens"].size() > ids.size());
  body["truncate"] = 4;
  CHECK(server.sent("/tokenize", body).header("lintel-ignored") == "truncate");
}

TEST_CASE(
    "tokenize: vLLM's body has a text or a conversation, and the answer the context's length") {
  PromptServer server;
  const std::string text = "Hello";
  const std::vector<std::int32_t> ids = server.ids(text, true);
  ojson answer = server.answered("/tokenize", {{"model", "chat"}, {"prompt", text}});
  CHECK(answer["count"] == ids.size());
  CHECK(answer["tokens"] == ojson(ids));
  CHECK(answer["token_strs"].is_null());
  const ojson model = ojson::parse(post(server.server().server().http_port(),
                                        "/lintel.v1.ModelService/Get", R"({"name": "chat"})")
                                       .body);
  const auto length = std::stoll(model.value("maxLength", "0"));
  CHECK(answer["max_model_len"] == (length > 0 ? ojson(length) : ojson()));
  answer = server.answered("/tokenize", {{"model", "chat"},
                                         {"prompt", text},
                                         {"add_special_tokens", false},
                                         {"return_token_strs", true}});
  CHECK(answer["tokens"] == ojson(server.ids(text, false)));
  std::string joined;
  for (const ojson& piece : answer["token_strs"]) joined += piece.get<std::string>();
  CHECK(joined == text);

  ojson chat = {{"model", "chat"}, {"messages", kConversation}, {"return_token_strs", true}};
  answer = server.answered("/tokenize", chat);
  joined.clear();
  for (const ojson& piece : answer["token_strs"]) joined += piece.get<std::string>();
  CHECK(joined == "[user] Hello\n[assistant] ");
  CHECK(answer["count"] == answer["tokens"].size());
  chat["add_generation_prompt"] = false;
  chat.erase("return_token_strs");
  const ojson shorter = server.answered("/tokenize", chat);
  CHECK(shorter["count"] < answer["count"]);
  CHECK(shorter["token_strs"].is_null());
}

TEST_CASE("detokenize: both servers' names have the text, with special tokens spelt out") {
  PromptServer server;
  const std::string text = "Hello <|end_of_text|> \xC3\xA9";
  const ojson answer =
      server.answered("/detokenize", {{"model", "chat"}, {"tokens", server.ids(text, true)}});
  CHECK(answer["content"] == "<|begin_of_text|>" + text);
  CHECK(answer["prompt"] == answer["content"]);
  CHECK(server.answered("/detokenize",
                        {{"model", "chat"}, {"tokens", ojson::array()}})["content"] == "");
}

TEST_CASE("apply-template and input_tokens: the body of a chat completion as its prompt") {
  PromptServer server;
  ojson body = {
      {"model", "chat"}, {"messages", kConversation}, {"temperature", 0}, {"stream", true}};
  CHECK(server.answered("/apply-template", body) ==
        ojson({{"prompt", "[user] Hello\n[assistant] "}}));
  const ojson counted = server.answered("/v1/chat/completions/input_tokens", body);
  CHECK(counted["object"] == "response.input_tokens");
  ojson tokenized = {{"model", "chat"}, {"messages", kConversation}};
  CHECK(counted["input_tokens"] == server.answered("/tokenize", tokenized)["count"]);
  body["stream"] = false;
  body["max_tokens"] = 1;
  CHECK(server.answered("/v1/chat/completions", body)["usage"]["prompt_tokens"] ==
        counted["input_tokens"]);
  body["tools"] =
      ojson::array({{{"type", "function"},
                     {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}});
  CHECK_THAT(server.answered("/apply-template", body)["prompt"].get<std::string>(),
             Contains("tools: f"));
}

TEST_CASE("props: context, template and model, under llama.cpp's names") {
  PromptServer server;
  const ojson props = ojson::parse(server.get("/props?model=chat").body);
  CHECK(props["chat_template"] == kTemplate);
  CHECK(props["model_alias"] == "chat");
  CHECK(props["default_generation_settings"]["n_ctx"].is_number());
  CHECK(props["default_generation_settings"]["params"] == ojson({{"temperature", 0.5}}));
  CHECK(props["total_slots"] > 0);
  CHECK(props["modalities"] == ojson({{"vision", false}, {"audio", false}}));
  CHECK_THAT(props["build_info"].get<std::string>(), Catch::StartsWith("lintel-"));
  CHECK(props["is_sleeping"] == false);
  // A model that is not in memory is loaded, but for llama.cpp's autoload=false.
  CHECK(ojson::parse(server.get("/props?autoload=false&model=tokens").body)["is_sleeping"] == true);
  CHECK(ojson::parse(server.get("/v1/models/tokens").body)["lintel"]["state"] == "unloaded");
  CHECK(ojson::parse(server.get("/props?model=tokens").body)["is_sleeping"] == false);
  const HttpReply unknown = server.get("/props?model=nosuch");
  CHECK(unknown.status == 404);
  CHECK(ojson::parse(unknown.body)["error"]["code"] == "model_not_found");
}

TEST_CASE("prompt routes: an alias whose model is missing is named with it") {
  PromptServer server;
  for (const char* const path : {"/tokenize", "/v1/completions"}) {
    CAPTURE(path);
    const HttpReply reply =
        server.sent(path, {{"model", "gone-1"}, {"prompt", "a"}, {"max_tokens", 1}});
    CHECK(reply.status == 404);
    CHECK_THAT(ojson::parse(reply.body)["error"]["message"].get<std::string>(),
               Catch::StartsWith("'gone-1' means nope (--model-alias): no model is named nope"));
  }
}

TEST_CASE("prompt routes: another method is refused in OpenAI's form") {
  PromptServer server;
  for (const char* const path : {"/tokenize", "/detokenize", "/apply-template"}) {
    CAPTURE(path);
    const HttpReply reply = server.get(path);
    CHECK(reply.status == 405);
    CHECK(reply.header("allow") == "POST");
    CHECK(ojson::parse(reply.body)["error"]["type"] == "invalid_request_error");
  }
  const HttpReply reply = server.sent("/props", ojson::object());
  CHECK(reply.status == 405);
  CHECK(ojson::parse(reply.body)["error"]["message"] == "/props takes GET");
}

TEST_CASE("prompt routes: invalid bodies are refused with the name of the member", "[threat-102]") {
  PromptServer server;
  CHECK_THAT(server.refusal("/tokenize", {{"model", "chat"}}),
             Contains("one of content, prompt and messages is required"));
  CHECK_THAT(server.refusal("/tokenize", {{"content", "a"}, {"prompt", "b"}}),
             Contains("one of content, prompt and messages"));
  CHECK_THAT(server.refusal("/tokenize", {{"model", "chat"}, {"content", 1}}),
             Contains("content: is not a text"));
  const ojson beyond = {{"model", "chat"}, {"tokens", ojson::array({1, 99'999})}};
  CHECK_THAT(server.refusal("/detokenize", beyond), Catch::StartsWith("tokens[1]: "));
  CHECK(ojson::parse(server.sent("/detokenize", beyond).body)["error"]["param"] == "tokens");
  CHECK_THAT(server.refusal("/tokenize", {{"content", "a"}, {"with_pieces", 1}}),
             Contains("with_pieces: is not true or false"));
  CHECK_THAT(server.refusal("/tokenize", {{"model", "chat"}, {"messages", 1}}),
             Contains("messages: is not a list"));
  CHECK_THAT(server.refusal("/detokenize", {{"model", "chat"}}), Contains("tokens: is missing"));
  CHECK_THAT(server.refusal("/detokenize", {{"model", "chat"}, {"tokens", {1, -1}}}),
             Contains("tokens: is not a list of token ids"));
  CHECK_THAT(server.refusal("/detokenize", {{"model", "chat"}, {"tokens", {1'000'000}}}),
             Contains("1000000"));
  CHECK_THAT(server.refusal("/apply-template", {{"model", "chat"}}),
             Contains("messages: is missing"));
  CHECK_THAT(server.refusal("/v1/chat/completions/input_tokens", {{"messages", ojson::array()}}),
             Contains("messages: is not a list of at least one message"));
  const int port = server.server().server().http_port();
  for (const char* const path :
       {"/tokenize", "/detokenize", "/apply-template", "/v1/chat/completions/input_tokens"}) {
    const HttpReply reply = post(port, path, "{");
    CHECK(reply.status == 400);
    CHECK_THAT(reply.body, Contains("JSON"));
  }
  // An answer of pieces is larger than its text by far.
  std::string text;
  for (int i = 0; i < 100'001; ++i) text += "a ";
  const ojson long_body = {{"model", "chat"}, {"content", text}, {"with_pieces", true}};
  CHECK_THAT(server.refusal("/tokenize", long_body), Contains("at most 100000 tokens"));
  // A model without a tokenizer.
  CHECK_THAT(server.refusal("/tokenize", {{"model", "tokens"}, {"content", "a"}}),
             Contains("has no tokenizer"));
}

TEST_CASE("prompt routes: members of any type are answered or refused, with JSON") {
  PromptServer server;
  HttpClient client(server.server().server().http_port());
  std::mt19937 draw(Catch::rngSeed());
  const std::vector<ojson> values = {nullptr,
                                     true,
                                     false,
                                     -1,
                                     7,
                                     1e300,
                                     "",
                                     "chat",
                                     "Hello \xC3\xA9",
                                     ojson::array(),
                                     ojson::array({1, 2, 300}),
                                     ojson::object(),
                                     kConversation,
                                     ojson::array({kConversation}),
                                     ojson::array({{{"role", "user"}}}),
                                     ojson({{"role", 1}}),
                                     std::string(5000, 'x')};
  const std::vector<std::string> names = {"content",
                                          "prompt",
                                          "messages",
                                          "tokens",
                                          "with_pieces",
                                          "add_special",
                                          "parse_special",
                                          "return_token_strs",
                                          "add_special_tokens",
                                          "add_generation_prompt",
                                          "tools",
                                          "other"};
  const auto any = [&](const auto& list) { return list[draw() % list.size()]; };
  for (int i = 0; i < 400; ++i) {
    ojson body = {{"model", draw() % 8 == 0 ? any(values) : ojson("chat")}};
    for (unsigned k = draw() % 4; k > 0; --k) body[any(names)] = any(values);
    const std::string path = any(std::vector<std::string>{
        "/tokenize", "/detokenize", "/apply-template", "/v1/chat/completions/input_tokens"});
    std::string text = body.dump();
    if (draw() % 8 == 0) text[draw() % text.size()] = static_cast<char>(draw());
    INFO(path << " " << text);
    client.send(post_text(path, text, "application/json"));
    const HttpReply reply = client.read();
    const bool is_known = reply.status == 200 || reply.status == 400 || reply.status == 404;
    if (!is_known || !ojson::accept(reply.body)) FAIL(reply.head << reply.body);
  }
}

}  // namespace lintel::testing
