// SPDX-License-Identifier: Apache-2.0
// /v1/completions and /v1/models.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numbers>
#include <regex>

#include "model/core/utf8.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

struct OpenAiServer : TestServer {
  OpenAiServer() : TestServer({"image", "bytes", "tokens"}, with_http()) {}
  HttpReply complete(const json& body) {
    return post(server().http_port(), "/v1/completions", body.dump());
  }
  json completed(const json& body) {
    const HttpReply reply = complete(body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    CHECK(reply.header("content-type") == "application/json");
    return json::parse(reply.body);
  }
};

json completion_of(const std::string& prompt, int max_tokens) {
  return {{"model", "bytes"}, {"prompt", prompt}, {"max_tokens", max_tokens}, {"seed", 7}};
}

std::string spelled(const std::vector<std::int32_t>& tokens) {
  std::string bytes, text;
  for (const std::int32_t token : tokens) bytes.push_back(static_cast<char>(token));
  Utf8Stream utf8;
  utf8.push(bytes, text);
  utf8.finish(text);
  return text;
}

v1::GenerateRequest text_request(const std::string& prompt, unsigned max_new_tokens) {
  v1::GenerateRequest request = request_for("bytes", {}, max_new_tokens);
  request.mutable_prompt()->set_text(prompt);
  return request;
}

// The events of a stream, without "data: ".
std::vector<std::string> events(const std::string& body) {
  std::vector<std::string> all;
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    REQUIRE(body.substr(at, 6) == "data: ");
    all.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return all;
}

}  // namespace

TEST_CASE("a completion is the text of Generate, with its usage") {
  OpenAiServer server;
  const Generated generated = generate(server, text_request("Hello", 30));
  const json got = server.completed(completion_of("Hello", 30));
  CHECK(got["object"] == "text_completion");
  CHECK(got["model"] == "bytes");
  CHECK_THAT(got["id"].get<std::string>(), Catch::StartsWith("cmpl-"));
  REQUIRE(got["choices"].size() == 1);
  CHECK(got["choices"][0]["text"] == spelled(generated.only().tokens));
  CHECK(got["choices"][0]["index"] == 0);
  CHECK(got["choices"][0]["logprobs"].is_null());
  CHECK(got["choices"][0]["finish_reason"] == "length");
  CHECK(got["usage"]["prompt_tokens"] == 5);
  CHECK(got["usage"]["completion_tokens"] == 30);
  CHECK(got["usage"]["total_tokens"] == 35);
  CHECK(got["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
  // OpenAI's own default.
  json body = completion_of("Hello", 0);
  body.erase("max_tokens");
  CHECK(server.completed(body)["usage"]["completion_tokens"] == 16);
}

TEST_CASE("texts, ids and lists of ids are prompts, each with n choices of their own seeds") {
  OpenAiServer server;
  json body = completion_of("", 9);
  body["prompt"] = {"one", "another"};
  body["n"] = 2;
  const json texts = server.completed(body);
  REQUIRE(texts["choices"].size() == 4);
  for (int i = 0; i < 4; ++i) {
    v1::GenerateRequest request = text_request(i < 2 ? "one" : "another", 9);
    request.mutable_sampling()->set_seed(7 + static_cast<unsigned>(i));
    CHECK(texts["choices"][i]["index"] == i);
    CHECK(texts["choices"][i]["text"] == spelled(generate(server, request).only().tokens));
  }
  CHECK(texts["usage"]["prompt_tokens"] == 10);  // each prompt is read once
  CHECK(texts["usage"]["completion_tokens"] == 36);
  json as_ids = completion_of("", 9);
  as_ids["prompt"] = {111, 110, 101};
  const json ids = server.completed(as_ids);
  CHECK(ids["choices"][0]["text"] == texts["choices"][0]["text"]);
  as_ids["prompt"] = {{111, 110, 101}, {111, 110, 101}};
  CHECK(server.completed(as_ids)["choices"].size() == 2);
  // A model of tokens has no text: ids, as they are.
  const json tokens = server.completed(
      {{"model", "tokens"}, {"prompt", {1, 2, 3}}, {"max_tokens", 4}, {"seed", 7}});
  const Generated generated = generate(server, request_for("tokens", {1, 2, 3}, 4));
  std::string expected;
  for (const int id : generated.only().tokens) {
    expected += (expected.empty() ? "" : " ") + std::to_string(id);
  }
  CHECK(tokens["choices"][0]["text"] == expected);
}

TEST_CASE("every parameter of sampling reaches the sampler") {
  OpenAiServer server;
  const json plain = completion_of("Hello", 40);
  const std::string drawn = server.completed(plain)["choices"][0]["text"];
  for (const auto& [name, value] : std::map<std::string, json>{{"temperature", 0.3},
                                                               {"top_p", 0.2},
                                                               {"seed", -8},
                                                               {"frequency_penalty", 2.0},
                                                               {"presence_penalty", 2.0},
                                                               {"logit_bias", {{"97", 100}}},
                                                               {"top_k", 2},
                                                               {"min_p", 0.9},
                                                               {"repetition_penalty", 5.0}}) {
    CAPTURE(name);
    json body = plain;
    body[name] = value;
    CHECK(server.completed(body)["choices"][0]["text"] != drawn);
    body[name] = nullptr;
    if (name != "seed") CHECK(server.completed(body)["choices"][0]["text"] == drawn);
  }
  json biased = plain;
  biased["logit_bias"] = {{"97", 100}};
  CHECK(server.completed(biased)["choices"][0]["text"] == std::string(40, 'a'));
}

TEST_CASE("completions of a model with a tokenizer are text, with the tokens' names and places") {
  GivenModels models = tiny_models({"bytes"});
  models["world"] = text_model();
  const SteadyClock clock;
  TestServer server(with_http(), clock, models);
  const auto post_body = [&](const json& body) {
    return post(server.server().http_port(), "/v1/completions", body.dump());
  };
  const std::string prompt = "Hello, w\u00f6rld! ";
  json body = {
      {"model", "world"}, {"prompt", prompt}, {"max_tokens", 40}, {"seed", 7}, {"logprobs", 2}};
  const HttpReply reply = post_body(body);
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const json got = json::parse(reply.body);

  const Tokenizer& tokenizer = *text_model()->tokenizer();
  const std::vector<std::int32_t> ids = tokenizer.encode(prompt);
  v1::GenerateRequest request = request_for("world", {}, 40);
  request.mutable_prompt()->set_text(prompt);
  const Generated generated = generate(server, request);
  std::string bytes, text;
  for (const std::int32_t id : generated.only().tokens) bytes += tokenizer.bytes_of(id);
  Utf8Stream utf8;
  utf8.push(bytes, text);
  utf8.finish(text);
  const json& choice = got["choices"][0];
  CHECK(choice["text"] == text);
  CHECK(got["usage"]["prompt_tokens"] == ids.size());
  CHECK(got["usage"]["completion_tokens"] == 40);
  CHECK(choice["logprobs"]["tokens"].size() == 40);
  CHECK(choice["logprobs"]["top_logprobs"][0].size() >= 2);
  // Offsets count the characters of the prompt, and never go back.
  std::size_t before = 14;
  for (const json& offset : choice["logprobs"]["text_offset"]) {
    CHECK(offset.get<std::size_t>() >= before);
    before = offset.get<std::size_t>();
  }
  for (std::size_t i = 0; i < 40; ++i) {
    const std::string_view token = tokenizer.bytes_of(generated.only().tokens[i]);
    const bool is_ascii = std::ranges::all_of(token, [](char c) { return c > 0; });
    if (!is_ascii || token.empty()) continue;
    CHECK(choice["logprobs"]["tokens"][i] == std::string(token));
  }

  // The prompt's tokens have probabilities, too.
  json echoed = body;
  echoed["echo"] = true;
  const json with_prompt = json::parse(post_body(echoed).body)["choices"][0];
  CHECK(with_prompt["text"] == prompt + text);
  REQUIRE(with_prompt["logprobs"]["tokens"].size() == ids.size() + 40);
  CHECK(with_prompt["logprobs"]["tokens"][0] == std::string(tokenizer.bytes_of(ids[0])));
  CHECK(with_prompt["logprobs"]["token_logprobs"][0].is_null());
  CHECK(with_prompt["logprobs"]["token_logprobs"][1].is_number());

  body["stream"] = true;
  body.erase("logprobs");
  const auto stream = [&] {
    std::string streamed, reason;
    for (const std::string& event : events(post_body(body).body)) {
      if (event == "[DONE]") continue;
      const json part = json::parse(event)["choices"][0];
      streamed += part["text"].get<std::string>();
      if (part["finish_reason"].is_string()) reason = part["finish_reason"];
    }
    return std::pair(streamed, reason);
  };
  CHECK(stream() == std::pair(text, std::string("length")));

  // Up to a stop string, which may begin inside of a token.
  for (const std::int32_t token : {264, 265, 284, 285}) {
    body["logit_bias"][std::to_string(token)] = 100;
  }
  const std::string whole = stream().first;
  const std::string stop = whole.substr(whole.find_first_of("-h", 20) + 1, 5);
  body["stop"] = stop;
  CHECK(stream() == std::pair(whole.substr(0, whole.find(stop)), std::string("stop")));
}

TEST_CASE("a stop string ends a choice without being in it, alone or in a list") {
  OpenAiServer server;
  json body = completion_of("Hello", 40);
  body["logit_bias"] = {{"97", 20}, {"98", 20}};  // of a and b
  const std::string whole = server.completed(body)["choices"][0]["text"];
  const std::string stop = whole.substr(11, 4);
  for (const json& given : {json(stop), json({"zzz", stop})}) {
    body["stop"] = given;
    const json got = server.completed(body);
    CHECK(got["choices"][0]["text"] == whole.substr(0, whole.find(stop)));
    CHECK(got["choices"][0]["finish_reason"] == "stop");
  }
}

TEST_CASE("logprobs are natural logarithms, with the best tokens, their names and their places") {
  OpenAiServer server;
  v1::GenerateRequest request = text_request("Hey\xc3\xa9", 12);
  request.set_log2_probs(true);
  request.set_top_log2_probs(3);
  request.set_echo_prompt(true);
  const Sample sample = generate(server, request).only();
  json body = completion_of("Hey\xc3\xa9", 12);
  body["logprobs"] = 3;
  body["echo"] = true;
  const json choice = server.completed(body)["choices"][0];
  CHECK(choice["text"] == spelled(sample.tokens));
  const json& logprobs = choice["logprobs"];
  REQUIRE(logprobs["tokens"].size() == 17);
  REQUIRE(logprobs["token_logprobs"].size() == 17);
  REQUIRE(logprobs["top_logprobs"].size() == 17);
  REQUIRE(logprobs["text_offset"].size() == 17);
  CHECK(logprobs["tokens"][0] == "H");
  CHECK(logprobs["tokens"][3] == "bytes:\\xc3");
  CHECK(logprobs["tokens"][4] == "bytes:\\xa9");
  CHECK(logprobs["token_logprobs"][0].is_null());  // nothing comes before it
  CHECK(logprobs["top_logprobs"][0].is_null());
  // The bytes of a character are where it begins.
  for (int i = 0; i < 5; ++i) CHECK(logprobs["text_offset"][i] == std::min(i, 3));
  CHECK(logprobs["text_offset"][5] == 4);
  for (std::size_t i = 1; i < 17; ++i) {
    const double expected = sample.log2_probs[i - 1] * std::numbers::ln2;
    CHECK(logprobs["token_logprobs"][i].get<double>() == Approx(expected).epsilon(1e-6));
    const json& top = logprobs["top_logprobs"][i];
    CHECK(top.contains(logprobs["tokens"][i].get<std::string>()));
    CHECK((top.size() == 3 || top.size() == 4));  // its own, if it is not of the best
  }
  // Without an echo, places count the prompt's characters.
  body["echo"] = false;
  body["logprobs"] = 0;
  const json alone = server.completed(body)["choices"][0]["logprobs"];
  CHECK(alone["text_offset"][0] == 4);
  CHECK(alone["tokens"].size() == 12);
  CHECK(alone["top_logprobs"][0].size() == 1);
}

TEST_CASE("an echo of nothing new is a score") {
  OpenAiServer server;
  json body = completion_of("Hello", 0);
  body["echo"] = true;
  body["logprobs"] = 0;
  const json got = server.completed(body);
  CHECK(got["choices"][0]["text"] == "Hello");
  CHECK(got["choices"][0]["logprobs"]["token_logprobs"].size() == 5);
  CHECK(got["usage"]["completion_tokens"] == 0);
}

TEST_CASE("a stream's pieces are the whole answer's text, never half a character") {
  OpenAiServer server;
  json body = completion_of("Hello", 200);
  body["n"] = 2;
  body["prompt"] = {"Hello", "Hi"};
  const json whole = server.completed(body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = server.complete(body);
  REQUIRE(reply.status == 200);
  CHECK(reply.header("content-type") == "text/event-stream");
  const std::vector<std::string> all = events(reply.body);
  REQUIRE(all.size() > 6);
  CHECK(all.back() == "[DONE]");
  CHECK(json::parse(all[all.size() - 2])["choices"].empty());
  CHECK(json::parse(all[all.size() - 2])["usage"] == whole["usage"]);
  std::vector<std::string> texts(4);
  std::vector<int> ends(4);
  for (std::size_t i = 0; i + 2 < all.size(); ++i) {
    const json event = json::parse(all[i]);  // which it is only if no character is cut
    CHECK(event["object"] == "text_completion");
    CHECK(event["usage"].is_null());
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    CHECK(ends[index] == 0);  // nothing follows a choice's end
    texts[index] += choice["text"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++ends[index];
  }
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(whole["choices"][i]["text"] == texts[i]);
    CHECK(ends[i] == 1);
  }
}

TEST_CASE("text model with a trained length: completions have its window, and say so") {
  TestServer server({"bytes", "text"}, with_http());
  const auto complete = [&](const json& body) {
    const HttpReply reply = post(server.server().http_port(), "/v1/completions", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return reply.body;
  };
  json body = completion_of(std::string(1000, 'x'), 90);
  body["window"] = 32;
  const json windowed = json::parse(complete(body));
  body["model"] = "text";
  for (const json& window : {json(), json(32)}) {  // null is as if it were not there
    body["window"] = window;
    const json got = json::parse(complete(body));
    CHECK(got["choices"][0]["text"] == windowed["choices"][0]["text"]);
    CHECK(got["choices"][0]["window"] == 32);
    CHECK(got["choices"][0]["window_restarts"] == (1090 - 1 - 32) / 16 + 1);
    CHECK(got["usage"]["prompt_tokens"] == 1000);  // also where less of it was read
  }
  body["stream"] = true;
  const std::vector<std::string> all = events(complete(body));
  REQUIRE(all.size() > 2);
  const json last = json::parse(all[all.size() - 2])["choices"][0];
  CHECK(last["finish_reason"] == "length");
  CHECK(last["window"] == 32);
  CHECK_FALSE(json::parse(all[0])["choices"][0].contains("window"));

  json off = completion_of("Hello", 90);
  const json plain = json::parse(complete(off));
  CHECK_FALSE(plain["choices"][0].contains("window"));
  off["model"] = "text";
  CHECK(json::parse(complete(off))["choices"][0]["text"] != plain["choices"][0]["text"]);
  off["window"] = 0;
  CHECK(json::parse(complete(off))["choices"] == plain["choices"]);
}

TEST_CASE("tokens of a prompt that were read before are reported as cached") {
  ServerOptions options = with_http();
  TestServer server({"bytes"}, options);
  const std::string body = completion_of(std::string(200, 'x'), 3).dump();
  std::int64_t cached = 0;
  for (int i = 0; i < 3; ++i) {
    const HttpReply reply = post(server.server().http_port(), "/v1/completions", body);
    REQUIRE(reply.status == 200);
    const json usage = json::parse(reply.body)["usage"];
    CHECK(usage["prompt_tokens"] == 200);
    cached = usage["prompt_tokens_details"]["cached_tokens"];
  }
  CHECK(cached > 0);
  CHECK(cached <= 200);
}

TEST_CASE("models are listed, and found by name") {
  OpenAiServer server;
  const int port = server.server().http_port();
  const HttpReply list = request(port, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(list.status == 200);
  const json models = json::parse(list.body);
  CHECK(models["object"] == "list");
  REQUIRE(models["data"].size() == 3);
  CHECK(models["data"][0]["id"] == "bytes");
  CHECK(models["data"][0]["object"] == "model");
  const auto day = std::chrono::hours(24);
  const auto today = std::chrono::system_clock::now();
  for (const json& model : models["data"]) {
    const auto created =
        std::chrono::system_clock::from_time_t(model["created"].get<std::time_t>());
    CHECK(created > today - day);
    CHECK(created <= today);
  }
  const HttpReply one = request(port, "GET /v1/models/tokens HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(json::parse(one.body)["id"] == "tokens");
  const HttpReply none = request(port, "GET /v1/models/nosuch HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(none.status == 404);
  CHECK(json::parse(none.body)["error"]["code"] == "model_not_found");
  CHECK_THAT(none.body, Contains("there are bytes, image, tokens"));
}

TEST_CASE("/v1/models/{id} accepts names with a slash, plain or percent-encoded") {
  const SteadyClock clock;
  TestServer server(with_http(), clock, {{"org/name", tiny_models({"tokens"}).at("tokens")}});
  for (const char* const path : {"/v1/models/org/name", "/v1/models/org%2Fname"}) {
    const HttpReply one =
        request(server.server().http_port(),
                "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    INFO(one.body);
    REQUIRE(one.status == 200);
    CHECK(json::parse(one.body)["id"] == "org/name");
    CHECK_FALSE(json::parse(one.body)["lintel"].contains("alias_of"));
  }
}

TEST_CASE("a completion without a model is of the one that is served, which it names") {
  TestServer one({"bytes"}, with_http());
  json body = completion_of("Hello", 5);
  body.erase("model");
  const bool streams = GENERATE(false, true);
  body["stream"] = streams;
  const HttpReply reply = post(one.server().http_port(), "/v1/completions", body.dump());
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const json first = streams ? json::parse(events(reply.body).front()) : json::parse(reply.body);
  CHECK(first["model"] == "bytes");

  OpenAiServer several;
  const HttpReply refused = several.complete(body);
  CHECK(refused.status == 400);
  const json error = json::parse(refused.body)["error"];
  CHECK(error["param"] == "model");
  CHECK_THAT(error["message"].get<std::string>(), Contains("bytes, image, tokens"));
}

TEST_CASE("a completion whose prompt is longer than the context has the code of that") {
  OpenAiServer server;
  json body = completion_of(std::string(100'000, 'a'), 5);
  body["stream"] = GENERATE(false, true);
  const HttpReply reply = server.complete(body);
  CHECK(reply.status == 400);
  const json error = json::parse(reply.body)["error"];
  CHECK(error["code"] == "context_length_exceeded");
  CHECK(error["param"] == "prompt");
  // Another error has none of it.
  body["prompt"] = "a";
  body["temperature"] = -1;
  CHECK(json::parse(server.complete(body).body)["error"]["code"].is_null());
}

TEST_CASE("completions take members of other servers") {
  GivenModels models = tiny_models({"bytes"});
  models["world"] = text_model();
  models["llama"] = llama_text_model();
  const SteadyClock clock;
  ServerOptions options = with_http();
  options.models.limits.max_new_tokens = 50;
  TestServer server(options, clock, models);
  const auto reply_to = [&](const json& body) {
    return post(server.server().http_port(), "/v1/completions", body.dump());
  };
  const auto answered = [&](const json& body) {
    const HttpReply reply = reply_to(body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return json::parse(reply.body);
  };
  json body = {{"model", "world"}, {"prompt", "Hello"}, {"max_tokens", 12}, {"seed", 7}};
  SECTION("what asks for nothing") {
    json same = body;
    same["suffix"] = "";
    same["top_k"] = -1;
    same["stop"] = "";
    CHECK(answered(same)["choices"] == answered(body)["choices"]);
    for (const json& none : {json::array({""}), json::array({"", "no such text"})}) {
      same["stop"] = none;
      CHECK(answered(same)["choices"] == answered(body)["choices"]);
    }
    body["max_tokens"] = -1;  // none, not the default
    CHECK(answered(body)["usage"]["completion_tokens"] == 50);
  }
  SECTION("ids, timings, usage in each event, a fingerprint") {
    body["return_token_ids"] = true;
    body["timings_per_token"] = true;
    const json whole = answered(body);
    CHECK(whole["system_fingerprint"] == text_model()->fingerprint());
    CHECK(whole["choices"][0]["prompt_token_ids"] ==
          json(text_model()->tokenizer()->encode("Hello")));
    CHECK(whole["choices"][0]["token_ids"].size() == 12);
    CHECK(whole["timings"]["predicted_n"] == 12);
    CHECK(whole["timings"]["predicted_per_second"] > 0);
    json by_ids = body;
    by_ids["prompt"] = {72, 73};
    CHECK(answered(by_ids)["choices"][0]["prompt_token_ids"] == json({72, 73}));
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
    json ids = json::array();
    for (const std::string& event : events(reply_to(body).body)) {
      if (event == "[DONE]") continue;
      const json part = json::parse(event);
      CHECK(part["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]);
      if (part["choices"].empty()) {
        CHECK(part["timings"]["predicted_n"] == 12);
        continue;
      }
      CHECK(part["choices"][0].contains("prompt_token_ids") == ids.empty());
      for (const json& id : part["choices"][0]["token_ids"]) ids.push_back(id);
      CHECK(part["usage"]["completion_tokens"] == ids.size());
    }
    CHECK(ids == whole["choices"][0]["token_ids"]);
  }
  SECTION("biases of texts") {
    body["logit_bias"] = json::array({json::array({"a", 100}), json::array({"a", 50})});
    CHECK(answered(body)["choices"][0]["text"] == std::string(12, 'a'));
    body["model"] = "bytes";
    body["logit_bias"] = {{"b", 100}};
    CHECK(answered(body)["choices"][0]["text"] == std::string(12, 'b'));
  }
  SECTION("stops") {
    body["model"] = "llama";
    body["logit_bias"] = {{std::to_string(kLlamaEnd), 200}, {"a", 100}};
    CHECK(answered(body)["choices"][0]["text"] == "");
    CHECK(answered(body)["choices"][0]["finish_reason"] == "stop");
    body["min_tokens"] = 5;
    CHECK(answered(body)["choices"][0]["text"] == "aaaaa");
    body["ignore_eos"] = true;
    CHECK(answered(body)["choices"][0]["finish_reason"] == "length");
    body["ignore_eos"] = false;
    body.erase("min_tokens");
    body["logit_bias"] = {{"a", 100}};
    const std::int32_t a = llama_text_model()->tokenizer()->encode("a", {.add_special = false})[0];
    body["stop_token_ids"] = json::array({a});
    CHECK(answered(body)["choices"][0]["text"] == "");
  }
}

// A server with a model that has special tokens.
struct LlamaServer {
  LlamaServer() : server(with_http(), clock, {{"llama", llama_text_model()}}) {}
  HttpReply reply_to(const json& body) {
    return post(server.server().http_port(), "/v1/completions", body.dump());
  }
  json answered(const json& body) {
    const HttpReply reply = reply_to(body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return json::parse(reply.body);
  }
  // The text of choice 0 of a stream.
  std::string streamed(json body) {
    body["stream"] = true;
    std::string text;
    for (const std::string& event : events(reply_to(body).body)) {
      if (event == "[DONE]") continue;
      const json choice = json::parse(event)["choices"][0];
      if (choice["index"] == 0) text += choice["text"];
    }
    return text;
  }

  SteadyClock clock;
  TestServer server;
};

TEST_CASE(
    "completions: the text is one of a choice, pattern, schema or grammar, and ends with it") {
  LlamaServer server;
  struct Case {
    const char* name;
    json value;
    const char* text;
  };
  const json schema = {{"enum", {1, 22}}};
  const Case cases[] = {
      {"guided_choice", json::array({"xyzzy", "plugh"}), "xyzzy|plugh"},
      {"guided_regex", "^[a-c]{3}$|x{5}y", "[a-c]{3}|x{5}y"},
      {"guided_json", schema, "\\s*(1|22)\\s*"},
      {"guided_json", schema.dump(), "\\s*(1|22)\\s*"},
      {"guided_grammar", "root ::= \"ab\" \"c\"{2}", "abcc"},
      {"grammar", "root ::= \"ab\" \"c\"{2}", "abcc"},
      {"structured_outputs", {{"regex", "ab{3}"}}, "abbb"},
      {"structured_outputs", {{"choice", json::array({"xyzzy"})}}, "xyzzy"},
      {"response_format",
       {{"type", "json_schema"}, {"json_schema", {{"name", "s"}, {"schema", schema}}}},
       "\\s*(1|22)\\s*"},
  };
  for (const Case& format : cases) {
    CAPTURE(format.name, format.value);
    const std::regex expected(format.text);
    json body = {{"prompt", "Hello"}, {"max_tokens", 60}, {"seed", 7}};
    body[format.name] = format.value;
    const json whole = server.answered(body);
    const std::string text = whole["choices"][0]["text"];
    CAPTURE(text);
    CHECK(std::regex_match(text, expected));
    CHECK(whole["choices"][0]["finish_reason"] == "stop");
    CHECK(server.streamed(body) == text);
    // Ids, which no end token ends without a format, and a second prompt.
    body["prompt"] = {{72, 73}, {74}};
    body["n"] = 2;
    const json others = server.answered(body);
    REQUIRE(others["choices"].size() == 4);
    for (const json& choice : others["choices"]) {
      CHECK(std::regex_match(choice["text"].get<std::string>(), expected));
      CHECK(choice["finish_reason"] == "stop");
    }
  }
  // OpenAI's value for no format.
  json body = {{"prompt", "Hello"}, {"max_tokens", 12}, {"seed", 7}};
  const json plain = server.answered(body);
  body["response_format"] = {{"type", "text"}};
  CHECK(server.answered(body)["choices"] == plain["choices"]);
  body["guided_choice"] = json::array({"ok"});
  CHECK(server.answered(body)["choices"][0]["text"] == "ok");
}

TEST_CASE("completions: a format is refused beside what it cannot go with") {
  LlamaServer server;
  const auto error_of = [&](const json& more) {
    json body = {{"prompt", "Hello"}, {"max_tokens", 12}};
    body.update(more);
    const HttpReply reply = server.reply_to(body);
    CHECK(reply.status == 400);
    return json::parse(reply.body)["error"];
  };
  const auto message_of = [&](const json& more) {
    return error_of(more)["message"].get<std::string>();
  };
  const json pattern = {{"guided_regex", "a+"}};
  const auto beside = [&](const char* name, const json& value) {
    json both = pattern;
    both[name] = value;
    return message_of(both);
  };
  CHECK(beside("ignore_eos", true) ==
        "ignore_eos: cannot be combined with guided_regex, which needs the model's end");
  CHECK_THAT(beside("particles", 2), Contains("particles: cannot be combined with guided_regex"));
  CHECK_THAT(beside("given", json::array({{{"position", 9}, {"text", "a"}}})),
             Contains("given: cannot be combined with guided_regex"));
  CHECK(beside("grammar", "root ::= \"a\"") == "guided_regex: cannot be combined with grammar");
  const json wrong = error_of({{"guided_regex", "a)|(b"}});
  CHECK(wrong["code"] == "unsupported_schema");
  CHECK(wrong["param"] == "guided_regex");
  CHECK(wrong["message"] == "guided_regex: pattern a)|(b is not served");
  CHECK_THAT(message_of({{"structured_outputs", {{"grammar", "root ::= other"}}}}),
             Catch::StartsWith("structured_outputs.grammar: "));
  const std::string special = "root ::= <[" + std::to_string(kLlamaEnd) + "]>";
  CHECK_THAT(message_of({{"guided_grammar", special}}),
             Contains("guided_grammar: ") && Contains("is special"));
}

TEST_CASE("completions: special tokens are spelt on request") {
  LlamaServer server;
  json body = {{"prompt", "Hello"}, {"max_tokens", 2}, {"seed", 7}, {"ignore_eos", true}};
  body["logit_bias"] = {{std::to_string(kLlamaEnd), 200}};
  CHECK(server.answered(body)["choices"][0]["text"] == "");
  body["skip_special_tokens"] = true;
  CHECK(server.answered(body)["choices"][0]["text"] == "");
  body["skip_special_tokens"] = false;
  CHECK(server.answered(body)["choices"][0]["text"] == "<|end_of_text|><|end_of_text|>");
  CHECK(server.streamed(body) == "<|end_of_text|><|end_of_text|>");
  body["logprobs"] = 1;
  CHECK(server.answered(body)["choices"][0]["logprobs"]["tokens"] ==
        json::array({"<|end_of_text|>", "<|end_of_text|>"}));
  body.erase("logprobs");
  // One that ends the answer is text where it is a part of it.
  body["ignore_eos"] = false;
  CHECK(server.answered(body)["choices"][0]["text"] == "");
  body["include_stop_str_in_output"] = true;
  CHECK(server.answered(body)["choices"][0]["text"] == "<|end_of_text|>");
}

TEST_CASE("unsupported requests are refused in OpenAI's shape, by OpenAI's names") {
  OpenAiServer server;
  struct Case {
    const char* name;
    json value;
    const char* param;
    const char* message;
  };
  const Case cases[] = {
      {"suffix", "x", "suffix", "suffix: is not served"},
      {"window", 3, "window", "window: 3 is not an even number"},
      {"window", -2, "window", "window: is not a whole number from 0 on"},
      {"window", "32", "window", "window: is not a whole number from 0 on"},
      {"best_of", 0, "best_of", "best_of: is not a whole number from 1 on"},
      {"temprature", 1, "temprature",
       "temprature: is not a parameter of this server: did you mean "
       "temperature?"},
      {"guided_regex", 3, "guided_regex", "guided_regex: is not a text"},
      {"guided_regex", "a", "guided_regex", "guided_regex: needs a model with a token"},
      {"response_format", {{"type", "xml"}}, "response_format", "is not of type text, json_object"},
      {"skip_special_tokens", 0, "skip_special_tokens", "is not true or false"},
      {"temperature", -1, "temperature", "temperature: -1"},
      {"temperature", "hot", "temperature", "is not a number"},
      {"max_tokens", -2, "max_tokens", "whole number"},
      {"max_tokens", 100'000'000, "max_tokens", "max_tokens: 100000000 is more than"},
      {"n", 0, "n", "n: 0 is not from 1"},
      {"n", 4'000'000'000u, "n", "n: 4000000000"},
      {"logprobs", 100'000, "logprobs", "logprobs: 100000 is more than 64 (--max"},
      {"top_p", 1.5, "top_p", "top_p: 1.5"},
      {"stop", json::array({std::string(300, 'x')}), "stop", "stop[0]: "},
      {"stop", 5, "stop", "is not a text"},
      {"logit_bias", {{"", 1}}, "logit_bias", "0 bytes"},
      {"logit_bias", {{"999", 1}}, "logit_bias", "logit_bias[999]"},
      {"prompt", json::array(), "prompt", "is not a text"},
      {"prompt", {1, "a"}, "prompt", "is not a text"},
      {"prompt", {1, 999}, "prompt", "prompt[1]: token 999"},
      {"prompt", "", "prompt", "prompt: is empty"},
      {"stream", 1, "stream", "is not true or false"},
      {"stream_options", {{"include_usage", true}}, "stream_options", "goes with stream"},
      {"model", "image", "model", "is of images"},
      {"adapter", "nosuch", "", "nosuch"},
  };
  for (const Case& wrong : cases) {
    CAPTURE(wrong.name, wrong.value);
    json body = completion_of("Hello", 5);
    body[wrong.name] = wrong.value;
    const HttpReply reply = server.complete(body);
    CHECK((reply.status == 400 || reply.status == 404));
    const json error = json::parse(reply.body)["error"];
    CHECK_THAT(error["message"].get<std::string>(), Contains(wrong.message));
    CHECK(error["type"] == "invalid_request_error");
    CHECK(error["param"] == (*wrong.param == '\0' ? json() : json(wrong.param)));
  }
  json unknown = completion_of("Hello", 5);
  unknown["model"] = "nosuch";
  const HttpReply missing = server.complete(unknown);
  CHECK(missing.status == 404);
  CHECK(json::parse(missing.body)["error"]["code"] == "model_not_found");
  const HttpReply broken = post(server.server().http_port(), "/v1/completions", "{");
  CHECK(broken.status == 400);
  CHECK_THAT(json::parse(broken.body)["error"]["message"].get<std::string>(), Contains("JSON"));
  // Also for a stream, before its first event.
  json streamed = completion_of("", 5);
  streamed["stream"] = true;
  CHECK(server.complete(streamed).status == 400);
}

TEST_CASE("all errors below /v1 have OpenAI's shape") {
  ServerOptions options = with_http();
  const TokenFile tokens;
  options.security.auth_tokens = tokens.path;
  options.connections.max_message_bytes = 8192;
  options.http.memory_bytes = 4096;
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  const std::string alice = "Authorization: Bearer token-alice\r\n";
  const auto refused = [&](const HttpReply& reply, int status, const std::string& why,
                           const json& code) {
    INFO(reply.head << reply.body);
    CHECK(reply.status == status);
    CHECK(reply.header("content-type") == "application/json");
    const json error = json::parse(reply.body)["error"];
    CHECK_THAT(error["message"].get<std::string>(), Contains(why));
    CHECK(error["type"].is_string());
    CHECK(error.contains("param"));
    CHECK(error["code"] == code);
    return reply;
  };
  const auto get = [&](const std::string& path, const std::string& headers) {
    return request(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  };
  const std::string path = "/v1/completions", type = "application/json";
  for (const char* const unknown : {"/v1", "/v1/", "/v1/embeddings", "/v1/models/"}) {
    refused(get(unknown, alice), 404, "no route for", "unknown_url");
  }
  CHECK(refused(get(path, alice), 405, "takes POST", json()).header("allow") == "POST");
  refused(post(port, path, "{}"), 401, "", "invalid_api_key");
  refused(post(port, path, "{}", type, alice + "Origin: https://example.org\r\n"), 403,
          "example.org", json());
  refused(post(port, path, std::string(9000, ' '), type, alice), 413,
          "8192 bytes (--max-message-size)", "request_too_large");
  // The path is looked at before the body's length.
  refused(post(port, "/v1/nothing", std::string(9000, ' '), type, alice), 404, "/v1/nothing",
          "unknown_url");
  refused(post(port, path, std::string(5000, ' '), type, alice), 503, "--http-memory", json());
  refused(post(port, path, "x", type, alice + "Content-Encoding: gzip\r\n"), 415,
          "content-encoding: gzip", json());
  refused(get("/v1/models", "Host: y\r\n" + alice), 400, "host", json());
  // Errors of other paths keep their shape.
  const HttpReply other = get("/v10/models", alice);
  CHECK(other.status == 404);
  CHECK(json::parse(other.body)["code"] == "not_found");
}

TEST_CASE("an answer that would not fit is ended, and says to stream it") {
  ServerOptions options = with_http();
  options.models.limits.max_new_tokens = 10'000'000;
  TestServer server({"tokens"}, options);
  const json body = {
      {"model", "tokens"}, {"prompt", {1}}, {"max_tokens", 10'000'000}, {"logprobs", 49}, {"n", 8}};
  const HttpReply reply = post(server.server().http_port(), "/v1/completions", body.dump());
  CHECK(reply.status == 400);
  CHECK_THAT(json::parse(reply.body)["error"]["message"].get<std::string>(),
             Contains("max_tokens: the answer is larger than"));
}

}  // namespace lintel::testing
