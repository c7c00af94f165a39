// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol over HTTP, and Triton's generate.
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/core/utf8.h"
#include "model/tokenizer/text_stream.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

struct RestServer : TestServer {
  RestServer() : TestServer(with_http(), clock, models_of_all_kinds()) {}
  static GivenModels models_of_all_kinds() {
    GivenModels all = tiny_models({"image", "bytes", "tokens"});
    all["world"] = text_model();
    return all;
  }
  static const SteadyClock clock;
  HttpReply get(const std::string& path) {
    return request(server().http_port(), "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  HttpReply send(const std::string& path, const json& body, const std::string& headers = "") {
    return post(server().http_port(), path, body.dump(), "application/json", headers);
  }
  json sent(const std::string& path, const json& body) {
    const HttpReply reply = send(path, body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return json::parse(reply.body);
  }
  std::string text(const std::string& prompt, unsigned count) {
    v1::GenerateRequest request = request_for("bytes", {}, count);
    request.mutable_prompt()->set_text(prompt);
    const Generated generated = generate(*this, request);
    std::string bytes, text;
    for (const int token : generated.only().tokens) {
      bytes.push_back(static_cast<char>(token));
    }
    Utf8Stream utf8;
    utf8.push(bytes, text);
    utf8.finish(text);
    return text;
  }
};

const SteadyClock RestServer::clock;

json tensor(const std::string& name, const std::string& datatype, const json& shape,
            const json& data) {
  return {{"name", name}, {"datatype", datatype}, {"shape", shape}, {"data", data}};
}

json infer_body(const json& input, int max_new_tokens) {
  return {{"id", "mine"},
          {"inputs", {input}},
          {"parameters", {{"max_new_tokens", max_new_tokens}, {"seed", 7}}}};
}

const json& output(const json& response, std::string_view name) {
  for (const json& one : response["outputs"]) {
    if (one["name"] == name) return one;
  }
  FAIL("there is no output " << name);
  throw 0;
}

}  // namespace

TEST_CASE("health and models are reported as the protocol defines") {
  RestServer server;
  CHECK(json::parse(server.get("/v2/health/live").body)["live"] == true);
  CHECK(json::parse(server.get("/v2/health/ready").body)["ready"] == true);
  const json about = json::parse(server.get("/v2").body);
  CHECK(about["name"] == "lintel");
  CHECK(about["extensions"][0] == "generate");
  CHECK(json::parse(server.get("/v2/").body) == about);
  for (const char* path : {"/v2/models/bytes", "/v2/models/bytes/versions/1"}) {
    const json model = json::parse(server.get(path).body);
    CHECK(model["name"] == "bytes");
    CHECK(model["versions"] == json({"1"}));
    CHECK(model["platform"] == "lintel");
    CHECK(model["inputs"][1] ==
          json({{"name", "text_input"}, {"datatype", "BYTES"}, {"shape", {-1, 1}}}));
    CHECK(json::parse(server.get(std::string(path) + "/ready").body)["ready"] == true);
  }
  const HttpReply none = server.get("/v2/models/nosuch");
  CHECK(none.status == 404);
  CHECK_THAT(json::parse(none.body)["error"].get<std::string>(), Contains("nosuch"));
  CHECK(server.get("/v2/models/nosuch/ready").status == 503);
  CHECK(server.get("/v2/models/bytes/versions/2/ready").status == 503);
}

TEST_CASE("every extension that /v2 lists is served over HTTP") {
  RestServer server;
  const json about = json::parse(server.get("/v2").body);
  CHECK(about["extensions"] ==
        json({"generate", "sequence", "statistics", "model_repository", "model_configuration"}));
  server.sent("/v2/models/tokens/infer", infer_body(tensor("tokens", "INT32", {1, 1}, {1}), 3));

  // Triton's statistics: of one version, of a model, of all.
  for (const char* const path : {"/v2/models/tokens/versions/1/stats", "/v2/models/tokens/stats"}) {
    const json stats = json::parse(server.get(path).body)["model_stats"];
    REQUIRE(stats.size() == 1);
    CHECK(stats[0]["name"] == "tokens");
    CHECK(stats[0]["version"] == "1");
    CHECK(stats[0]["inference_count"] == 1);
    CHECK(stats[0]["execution_count"] > 0);
    const json& success = stats[0]["inference_stats"]["success"];
    CHECK(success["count"] == 1);
    CHECK(success["ns"] > 0);
    CHECK(stats[0]["inference_stats"]["fail"] == json({{"count", 0}, {"ns", 0}}));
  }
  CHECK(json::parse(server.get("/v2/models/stats").body)["model_stats"].size() == 4);
  CHECK(server.get("/v2/models/nosuch/stats").status == 404);

  const json config = json::parse(server.get("/v2/models/world/config").body);
  CHECK(config["name"] == "world");
  CHECK(config["max_batch_size"] == 64);
  CHECK(config["input"][0]["name"] == "tokens");
  CHECK(config["input"][0]["data_type"] == "TYPE_INT32");
  CHECK(config["input"][0]["dims"] == json({-1}));
  CHECK(config["input"][0]["optional"] == true);
  CHECK(config["instance_group"][0]["kind"] == "KIND_CPU");
  CHECK(config["parameters"]["weight_type"]["string_value"] == "f32");
  CHECK(config["model_transaction_policy"]["decoupled"] == true);
  CHECK(server.get("/v2/models/nosuch/versions/1/config").status == 404);

  const json properties = json::parse(server.get("/v2/models/world").body)["properties"];
  CHECK(properties["weight_type"] == "f32");
  CHECK(properties["max_length"].is_string());
  CHECK(properties["attention"].is_string());

  const auto index = [&](const std::string& body) {
    return post(server.server().http_port(), "/v2/repository/index", body);
  };
  for (const char* const body : {"", "{}", R"({"ready": true})"}) {
    const json models = json::parse(index(body).body);
    REQUIRE(models.size() == 4);
    CHECK(models[0] ==
          json({{"name", "bytes"}, {"version", "1"}, {"state", "READY"}, {"reason", ""}}));
  }
  CHECK_THAT(index(R"({"ready": 1})").body, Contains("ready is not true or false"));
  CHECK_THAT(index(R"({"name": "x"})").body, Contains("name is not a member"));
  const auto load = [&](const json& body) {
    const HttpReply reply = server.send("/v2/repository/models/tokens/load", body);
    CHECK(reply.status == 400);
    return json::parse(reply.body)["error"].get<std::string>();
  };
  CHECK_THAT(load({{"parameters", {{"config", "{}"}}}}), Contains("parameters[config]"));
  CHECK_THAT(load({{"parameters", {{"config", json::array()}}}}),
             Contains("parameters[config] is not a text"));
  CHECK_THAT(load({{"parameters", 1}}), Contains("parameters is not an object"));
  CHECK(server
            .send("/v2/repository/models/tokens/unload",
                  {{"parameters", {{"unload_dependents", true}}}})
            .status == 200);
  CHECK(json::parse(index(R"({"ready": true})").body).size() == 3);
}

TEST_CASE("an inference over HTTP returns the tokens that gRPC returns, for tokens and for text") {
  RestServer server;
  const std::string path = "/v2/models/tokens/versions/1/infer";
  const std::vector<std::int32_t> expected =
      generate(server, request_for("tokens", {1, 2, 3}, 6)).only().tokens;
  for (const char* type : {"INT32", "INT64"}) {
    for (const json& data : {json({1, 2, 3}), json({{1, 2, 3}})}) {  // flat, and as its shape
      const json got = server.sent(path, infer_body(tensor("tokens", type, {1, 3}, data), 6));
      CHECK(got["model_name"] == "tokens");
      CHECK(got["model_version"] == "1");
      CHECK(got["id"] == "mine");
      CHECK(output(got, "tokens")["datatype"] == "INT32");
      CHECK(output(got, "tokens")["shape"] == json({1, 6}));
      CHECK(output(got, "tokens")["data"] == json(expected));
    }
  }
  json body = infer_body(tensor("text_input", "BYTES", {2, 1}, {"Hello", "Hi"}), 8);
  body["outputs"] = {{{"name", "text_output"}, {"parameters", {{"binary_data", false}}}},
                     {{"name", "log2_probs"}},
                     {{"name", "score"}}};
  body["parameters"]["binary_data_output"] = false;
  body["parameters"]["echo"] = true;
  const json got = server.sent("/v2/models/bytes/infer", body);
  CHECK(output(got, "text_output")["data"][0] == "Hello" + server.text("Hello", 8));
  CHECK(output(got, "log2_probs")["data"][0].is_null());  // JSON has no NaN
  CHECK(output(got, "score")["data"][0].get<double>() < 0);
}

TEST_CASE("a long inference is answered in pieces, with the values of gRPC", "[threat-86]") {
  RestServer server;
  constexpr int kTokens = 20'000;
  const std::vector<std::int32_t> expected =
      generate(server, request_for("tokens", {1, 2, 3}, kTokens)).only().tokens;
  json body = infer_body(tensor("tokens", "INT32", {1, 3}, {1, 2, 3}), kTokens);
  body["outputs"] = {{{"name", "tokens"}}, {{"name", "log2_probs"}}, {{"name", "score"}}};
  const json flat = {{"tokens", {1, 2, 3}},
                     {"outputs", {"tokens", "log2_probs", "score"}},
                     {"parameters", {{"max_new_tokens", kTokens}, {"seed", 7}}}};
  const HttpReply inferred = server.send("/v2/models/tokens/infer", body);
  const HttpReply generated = server.send("/v2/models/tokens/generate", flat);
  for (const HttpReply& reply : {inferred, generated}) {
    INFO(reply.body.substr(0, 300));
    CHECK(reply.status == 200);
    CHECK(reply.whole);
    CHECK(reply.body.size() > 200'000);
    CHECK(reply.header("content-length").empty());
    CHECK(reply.header("content-type") == "application/json");
  }
  const json got = json::parse(inferred.body), same = json::parse(generated.body);
  CHECK(output(got, "tokens")["data"] == json(expected));
  CHECK(same["tokens"] == json(expected));
  CHECK(same["log2_probs"] == output(got, "log2_probs")["data"]);
  CHECK(same["score"] == output(got, "score")["data"][0]);
  double sum = 0;
  for (const json& value : same["log2_probs"]) sum += value.is_null() ? 0 : value.get<double>();
  CHECK(same["score"].get<double>() == Approx(sum));
}

TEST_CASE("generate is flat, and generate_stream the same in events") {
  RestServer server;
  const json whole =
      server.sent("/v2/models/bytes/generate",
                  {{"text_input", "Hello"}, {"max_tokens", 60}, {"parameters", {{"seed", 7}}}});
  CHECK(whole["model_name"] == "bytes");
  CHECK(whole["model_version"] == "1");
  CHECK(whole["text_output"] == server.text("Hello", 60));
  const json scored =
      server.sent("/v2/models/bytes/generate", {{"text_input", "Hello"},
                                                {"outputs", {"text_output", "score", "log2_probs"}},
                                                {"top_log2_probs", 2},
                                                {"max_tokens", 3}});
  CHECK(scored["score"].get<double>() < 0);
  CHECK(scored["log2_probs"].size() == 3);
  CHECK(scored["top_tokens"].size() == 6);

  const HttpReply stream = server.send(
      "/v2/models/bytes/generate_stream",
      {{"text_input", "Hello"},
       {"parameters",
        {{"stream", true}, {"max_tokens", 60}, {"seed", 7}, {"max_tokens_per_message", 1}}}});
  CHECK(stream.status == 200);
  CHECK(stream.header("content-type") == "text/event-stream");
  std::string text;
  int pieces = 0;
  for (std::size_t at = 0; at < stream.body.size(); ++pieces) {
    const std::size_t end = stream.body.find("\n\n", at);
    REQUIRE(stream.body.substr(at, 6) == "data: ");
    text += json::parse(stream.body.substr(at + 6, end - at - 6))["text_output"];
    at = end + 2;
  }
  CHECK(whole["text_output"] == text);
  CHECK(pieces >= 60);
  // Also where the last character is cut, which the length of some of these does.
  for (int length = 1; length <= 20; ++length) {
    const json cut = server.sent(
        "/v2/models/bytes/generate",
        {{"text_input", "Hello"}, {"max_tokens", length}, {"parameters", {{"seed", 7}}}});
    CHECK(cut["text_output"] == server.text("Hello", length));
  }
}

TEST_CASE("a list of stop strings ends a completion") {
  RestServer server;
  const std::string whole = server.text("Hello", 60);
  // A part of it that is plain ASCII.
  std::size_t at = 10;
  while (static_cast<unsigned char>(whole[at]) >= 0x80) ++at;
  const std::string stop = whole.substr(at, 1);
  const json got =
      server.sent("/v2/models/bytes/generate", {{"text_input", "Hello"},
                                                {"stop", {"not to be found", stop}},
                                                {"parameters", {{"max_tokens", 60}, {"seed", 7}}}});
  CHECK(got["text_output"] == whole.substr(0, whole.find(stop)));
}

TEST_CASE("details of generate: why it ended, and of each token its text and log-probability") {
  RestServer server;
  const std::string path = "/v2/models/world/generate";
  json body = {{"text_input", "Hello"},
               {"max_tokens", 6},
               {"parameters", {{"seed", 7}}},
               {"outputs", {"text_output", "tokens", "log2_probs"}}};
  const json plain = server.sent(path, body);
  CHECK_FALSE(plain.contains("details"));
  body["parameters"]["details"] = true;
  const json whole = server.sent(path, body);
  CHECK(whole["text_output"] == plain["text_output"]);
  const json& details = whole["details"];
  CHECK(details["finish_reason"] == "length");
  REQUIRE(details["logprobs"].size() == plain["tokens"].size());
  for (std::size_t i = 0; i < plain["tokens"].size(); ++i) {
    const json& token = details["logprobs"][i];
    CHECK(token["id"] == plain["tokens"][i]);
    CHECK(token["text"].is_string());
    CHECK(token["special"] == false);
    CHECK(token["logprob"].get<double>() ==
          Approx(plain["log2_probs"][i].get<double>() * std::log(2.0)));
  }
  // Without other outputs, and in events: each has one token, the last says why it ended.
  body.erase("outputs");
  const json alone = server.sent(path, body);
  CHECK(alone["details"] == details);
  CHECK_FALSE(alone.contains("tokens"));
  const HttpReply events = server.send(path + "_stream", body);
  json tokens = json::array(), reason;
  for (std::size_t at = events.body.find("data: "); at != std::string::npos;
       at = events.body.find("data: ", at + 1)) {
    const std::size_t end = events.body.find("\n\n", at);
    const json of_event = json::parse(events.body.substr(at + 6, end - at - 6))["details"];
    if (of_event.contains("token")) tokens.push_back(of_event["token"]);
    reason = of_event["finish_reason"];
  }
  CHECK(tokens == details["logprobs"]);
  CHECK(reason == "length");
  // The same as tensors.
  json infer = infer_body(tensor("text_input", "BYTES", {1, 1}, {"Hello"}), 6);
  infer["parameters"]["details"] = true;
  const json tensors = server.sent("/v2/models/world/infer", infer);
  CHECK(tensors["parameters"]["finish_reason"] == "length");
  CHECK(output(tensors, "details.id")["data"] == plain["tokens"]);
  CHECK(output(tensors, "details.special")["datatype"] == "BOOL");
  CHECK(output(tensors, "details.special")["data"] == json(std::vector<bool>(6, false)));
  CHECK(output(tensors, "details.text")["shape"] == json({1, 6}));
  body["max_tokens"] = 200;
  const auto text = server.sent(path, body)["text_output"].get<std::string>();
  std::size_t stop = 3;
  while (stop + 1 < text.size() && (text[stop] & 0x80) != 0) ++stop;
  body["stop"] = json::array({text.substr(stop, 1)});
  CHECK(server.sent(path, body)["details"]["finish_reason"] == "stop_sequence");
  const HttpReply ids = server.send("/v2/models/tokens/generate",
                                    {{"tokens", {1}}, {"parameters", {{"details", true}}}});
  CHECK(ids.status == 422);
  CHECK_THAT(ids.body, Contains("details]: applies to models with a tokenizer only"));
}

TEST_CASE("text model with a trained length: REST requests have its window, and say so") {
  TestServer server({"bytes", "text"}, with_http());
  const auto sent = [&](const std::string& path, const json& body) {
    const HttpReply reply = post(server.server().http_port(), path, body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return json::parse(reply.body);
  };
  const std::string prompt(50, 'x');
  json generate = {{"text_input", prompt}, {"max_tokens", 90}, {"seed", 7}, {"window", 32}};
  const json windowed = sent("/v2/models/bytes/generate", generate);
  generate.erase("window");
  const json chosen = sent("/v2/models/text/generate", generate);
  CHECK(chosen["text_output"] == windowed["text_output"]);
  CHECK(chosen["lintel_window"] == 32);
  CHECK(chosen["lintel_window_restarts"] == 7);
  const json plain = sent("/v2/models/bytes/generate", generate);
  CHECK_FALSE(plain.contains("lintel_window"));
  generate["window"] = 0;
  const json off = sent("/v2/models/text/generate", generate);
  CHECK(off["text_output"] == plain["text_output"]);
  CHECK_FALSE(off.contains("lintel_window"));

  json infer = infer_body(tensor("text_input", "BYTES", {1, 1}, {prompt}), 90);
  const json whole = sent("/v2/models/text/infer", infer);
  CHECK(output(whole, "text_output")["data"][0] == chosen["text_output"]);
  CHECK(whole["parameters"]["lintel_window"] == 32);
  CHECK(whole["parameters"]["lintel_window_restarts"] == 7);
  infer["parameters"]["window"] = 0;
  CHECK(output(sent("/v2/models/text/infer", infer), "text_output")["data"][0] ==
        off["text_output"]);
}

TEST_CASE("fields that the protocol's REST does not have are refused by name") {
  RestServer server;
  const auto refusal = [&](const std::string& path, const json& body,
                           const std::string& headers = "") {
    const HttpReply reply = server.send(path, body, headers);
    INFO(reply.body);
    const int invalid = path.find("/generate") == std::string::npos ? 400 : 422;
    CHECK((reply.status == invalid || reply.status == 404));
    return json::parse(reply.body)["error"].get<std::string>();
  };
  const std::string infer = "/v2/models/tokens/infer";
  const json input = tensor("tokens", "INT32", {1, 1}, {1});
  CHECK_THAT(refusal(infer, infer_body(input, 1), "Inference-Header-Content-Length: 5\r\n"),
             Contains("inference-header-content-length"));
  json binary = input;
  binary.erase("data");
  binary["parameters"] = {{"binary_data_size", 4}};
  CHECK_THAT(refusal(infer, infer_body(binary, 1)),
             Contains("inputs[0].parameters.binary_data_size"));
  json body = infer_body(input, 1);
  body["outputs"] = {{{"name", "tokens"}, {"parameters", {{"binary_data", true}}}}};
  CHECK_THAT(refusal(infer, body), Contains("outputs[0].parameters.binary_data"));
  body = infer_body(input, 1);
  body["parameters"]["binary_data_output"] = true;
  CHECK_THAT(refusal(infer, body), Contains("binary_data_output"));
  body = infer_body(input, 1);
  body["parameters"]["nonsense"] = 1;
  CHECK_THAT(refusal(infer, body), Contains("parameters[nonsense]"));
  body["parameters"]["nonsense"] = {1};
  CHECK_THAT(refusal(infer, body), Contains("parameters.nonsense"));
  body = infer_body(input, 1);
  body["surplus"] = 1;
  CHECK_THAT(refusal(infer, body), Contains("surplus"));
  CHECK_THAT(refusal(infer, infer_body(tensor("tokens", "INT32", {1, 1}, {1'000'000'000'000}), 1)),
             Contains("inputs[0].data[0]"));
  CHECK_THAT(refusal(infer, infer_body(tensor("tokens", "FP32", {1, 1}, {1}), 1)),
             Contains("datatype"));
  CHECK_THAT(refusal(infer, infer_body(tensor("tokens", "INT32", {1, 2}, {1}), 1)),
             Contains("shape"));
  CHECK_THAT(refusal("/v2/models/tokens/generate", {{"text_input", "x"}}),
             Contains("models with a tokenizer only"));
  CHECK_THAT(refusal("/v2/models/tokens/generate_stream", {{"text_input", "x"}}),
             Contains("models with a tokenizer only"));
  CHECK_THAT(refusal("/v2/models/nosuch/generate_stream", {{"text_input", "x"}}),
             Contains("nosuch"));
  CHECK_THAT(refusal("/v2/models/bytes/generate", {{"text_input", "x"}, {"bad_words", "y"}}),
             Contains("bad_words"));
}

TEST_CASE("text of a model with a tokenizer: infer, generate and its stream of whole characters") {
  RestServer server;
  const std::string prompt = "Hello, w\u00f6rld";
  v1::GenerateRequest request = request_for("world", {}, 60);
  request.mutable_prompt()->set_text(prompt);
  const Tokenizer& tokenizer = *text_model()->tokenizer();
  const std::string expected = to_text(tokenizer, generate(server, request).only().tokens, false);
  CHECK(expected.size() > 60);

  const json inferred = server.sent(
      "/v2/models/world/infer", infer_body(tensor("text_input", "BYTES", {1, 1}, {prompt}), 60));
  CHECK(output(inferred, "text_output")["data"][0] == expected);
  json body = {{"text_input", prompt}, {"max_tokens", 60}, {"seed", 7}};
  CHECK(server.sent("/v2/models/world/generate", body)["text_output"] == expected);
  body["max_tokens_per_message"] = 1;
  std::string streamed;
  const HttpReply reply = server.send("/v2/models/world/generate_stream", body);
  for (std::size_t at = reply.body.find("data: "); at != std::string::npos;
       at = reply.body.find("data: ", at + 1)) {
    const std::size_t end = reply.body.find('\n', at);
    streamed += json::parse(reply.body.substr(at + 6, end - at - 6))["text_output"];
  }
  CHECK(streamed == expected);
  std::size_t at = 10;
  while (static_cast<unsigned char>(expected[at]) >= 0x80) ++at;
  const std::string stop = expected.substr(at, 1);
  body["stop"] = {stop};
  CHECK(server.sent("/v2/models/world/generate", body)["text_output"] ==
        expected.substr(0, expected.find(stop)));
}

TEST_CASE("generate_stream refuses with the status of its cause and a time to retry") {
  ServerOptions options = with_http();
  const TokenFile tokens;
  options.security = options_with(tokens).security;
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 1;
  TestServer server({"bytes"}, options);
  const auto refused = [&](const std::string& path, const json& body, const std::string& who) {
    const HttpReply reply = post(server.server().http_port(), path, body.dump(), "application/json",
                                 who.empty() ? "" : "Authorization: Bearer token-" + who + "\r\n");
    INFO(reply.body);
    CHECK(reply.header("content-type") == "application/json");
    CHECK(json::parse(reply.body)["error"].is_string());
    return reply;
  };
  const std::string path = "/v2/models/bytes/generate_stream";
  const json body = {{"text_input", "x"}, {"max_tokens", 5}};
  CHECK(refused("/v2/models/nosuch/generate_stream", body, "alice").status == 404);
  CHECK(refused(path, body, "").status == 401);
  CHECK(refused(path, body, "carol").status == 403);
  CHECK(refused(path, {{"text_input", "x"}, {"temperature", -1}}, "alice").status == 422);
  // One waits, and there is a place for one.
  grpc::ClientContext context;
  set_token(context, "alice");
  const auto first = server.generation->Generate(&context, request_for("bytes", {1}, 5));
  REQUIRE(eventually([&] { return server.scheduler("bytes").stats().queued == 1; }));
  const HttpReply full = refused(path, body, "alice");
  CHECK(full.status == 429);
  CHECK(full.header("retry-after") == "1");
  server.scheduler("bytes").stop();
  CHECK(refused(path, body, "alice").status == 503);
}

TEST_CASE("an error after the first event of generate_stream is an event") {
  ServerOptions options = with_http();
  options.models.scheduling.workers = 0;
  TestServer server({"bytes"}, options);
  Scheduler& scheduler = server.scheduler("bytes");
  HttpClient client(server.server().http_port());
  const json body = {{"text_input", "x"}, {"max_tokens", 500}, {"max_tokens_per_message", 1}};
  client.send(post_text("/v2/models/bytes/generate_stream", body.dump(), "application/json"));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  for (int i = 0; i < 5; ++i) scheduler.run_one_step();
  scheduler.stop();
  const HttpReply reply = client.read();
  CHECK(reply.status == 200);
  CHECK(reply.whole);
  const std::size_t last = reply.body.rfind("data: ");
  REQUIRE(last > 0);
  CHECK(json::parse(reply.body.substr(last + 6))["error"].is_string());
  CHECK(json::parse(reply.body.substr(6, reply.body.find("\n\n") - 6)).contains("text_output"));
}

TEST_CASE("a sequence continues and ends without a text or tokens over HTTP") {
  RestServer server;
  const std::string generate_path = "/v2/models/bytes/generate";
  v1::GenerateRequest request = request_for("bytes", {}, 12);
  request.mutable_prompt()->set_text("Once");
  const std::vector<std::int32_t> whole = generate(server, request).only().tokens;
  const json seed = request.sampling().has_seed() ? json(request.sampling().seed()) : json();
  std::vector<std::int32_t> received;
  const auto add = [&](const json& response) {
    for (const json& token : response["tokens"]) received.push_back(token.get<std::int32_t>());
  };
  const auto step = [&](json body, int count) {
    body["sequence_id"] = "tale";
    body["max_new_tokens"] = count;
    body["outputs"] = {"tokens"};
    if (!seed.is_null()) body["seed"] = seed;
    return body;
  };
  add(server.sent(generate_path, step({{"text_input", "Once"}, {"sequence_start", true}}, 5)));
  add(server.sent(generate_path, step(json::object(), 4)));
  const HttpReply events = server.send("/v2/models/bytes/generate_stream", step(json::object(), 3));
  CHECK(events.status == 200);
  for (std::size_t at = events.body.find("data: "); at != std::string::npos;
       at = events.body.find("data: ", at + 1)) {
    const std::size_t end = events.body.find("\n\n", at);
    add(json::parse(events.body.substr(at + 6, end - at - 6)));
  }
  CHECK(received == whole);
  // A model of bytes answers with text where no output is named.
  const json next = server.sent(generate_path, {{"max_new_tokens", 1}, {"sequence_id", "tale"}});
  CHECK(next["text_output"].is_string());
  const json ended =
      server.sent("/v2/models/bytes/infer",
                  {{"inputs", json::array()},
                   {"parameters", {{"sequence_id", "tale"}, {"sequence_end", true}}}});
  CHECK(output(ended, "text_output")["data"] == json::array({""}));
  CHECK(server.send(generate_path, step(json::object(), 1)).status == 404);
  // Without a sequence to continue an input is required.
  for (const json& body :
       {json{{"max_new_tokens", 3}}, json{{"sequence_id", "new"}, {"sequence_start", true}}}) {
    const HttpReply refused = server.send(generate_path, body);
    CHECK(refused.status == 422);
    CHECK_THAT(json::parse(refused.body)["error"].get<std::string>(), Contains("text_input"));
  }
}

TEST_CASE("all that is wrong with an inference request is named in its one message") {
  RestServer server;
  const auto refusal = [&](const json& body) {
    const HttpReply reply = server.send("/v2/models/bytes/generate", body);
    CHECK(reply.status == 422);
    return json::parse(reply.body)["error"].get<std::string>();
  };
  const std::string three =
      refusal({{"text_input", "x"}, {"bad_words", "y"}, {"no_such", 1}, {"temperature", "hot"}});
  CHECK_THAT(three, Contains("parameters[bad_words]: is not a parameter") &&
                        Contains("parameters[no_such]") && Contains("parameters[temperature]") &&
                        !Contains("more)"));
  json many = {{"text_input", "x"}};
  for (int i = 100; i < 140; ++i) many["unknown_parameter_" + std::to_string(i)] = 1;
  const std::string all = refusal(many);
  CHECK(all.size() < 1000);
  CHECK_THAT(all, Contains("also wrong: ") && Contains("fields more that are wrong"));
}

TEST_CASE("an encoded body is refused by its encoding's name in every protocol's shape",
          "[threat-33]") {
  RestServer server;
  const int port = server.server().http_port();
  const auto refused = [&](const std::string& path, const std::string& type,
                           const std::string& headers = "Content-Encoding: gzip\r\n") {
    const HttpReply reply = post(port, path, "\x1f\x8b", type, headers);
    CHECK(reply.status == 415);
    CHECK_THAT(reply.body, Contains("content-encoding: ") && Contains("send identity"));
    return json::parse(reply.body);
  };
  const std::string type = "application/json";
  CHECK(refused("/v2/models/bytes/infer", type)["error"].is_string());
  CHECK(refused("/v2/models/bytes/generate_stream", type)["error"].is_string());
  CHECK(refused("/v1/completions", type)["error"]["message"].is_string());
  CHECK(refused("/v1/chat/completions", type)["error"]["message"].is_string());
  CHECK(refused("/lintel.v1.ModelService/List", type)["code"] == "unimplemented");
  CHECK(refused("/lintel.v1.ModelService/List", "application/proto")["code"] == "unimplemented");
  CHECK(refused(kGeneratePath, type)["code"] == "unimplemented");
  refused("/v1/completions", type, "Content-Encoding: br\r\n");
  // Twice is no identity either.
  refused("/v1/completions", type, "Content-Encoding: identity\r\nContent-Encoding: gzip\r\n");
  const HttpReply stream =
      post(port, kGeneratePath, "x", "application/connect+json", "Content-Encoding: gzip\r\n");
  CHECK(stream.status == 200);  // its errors are envelopes
  CHECK_THAT(stream.body, Contains("content-encoding: gzip"));
  const HttpReply plain =
      post(port, "/v2/models/bytes/generate", R"({"text_input":"x","max_tokens":1})", type,
           "Content-Encoding: identity\r\n");
  CHECK(plain.status == 200);
}

}  // namespace lintel::testing
