// SPDX-License-Identifier: Apache-2.0
// lintel.v1 over HTTP: the same tokens as over gRPC, in every protocol.
#include <absl/strings/escaping.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/model.pb.h"
#include "lintel/v1/response.pb.h"
#include "model/tokenizer/text_stream.h"
#include "server/http/connect/rpc_format.h"
#include "tests/server/support/http_client.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

struct Envelope {
  int flags = 0;
  std::string message;
};

// All of a body. REQUIRES: whole envelopes.
std::vector<Envelope> envelopes(std::string_view body) {
  std::vector<Envelope> all;
  while (!body.empty()) {
    REQUIRE(body.size() >= kEnvelopeHead);
    std::size_t size = 0;
    for (std::size_t i = 1; i < kEnvelopeHead; ++i) {
      size = size << 8 | static_cast<unsigned char>(body[i]);
    }
    REQUIRE(body.size() >= kEnvelopeHead + size);
    all.push_back(
        {static_cast<unsigned char>(body[0]), std::string(body.substr(kEnvelopeHead, size))});
    body.remove_prefix(kEnvelopeHead + size);
  }
  return all;
}

v1::GenerateRequest scored_request() {
  v1::GenerateRequest request = request_for("bytes", {}, 50);
  request.mutable_prompt()->set_text("The quick");
  request.set_log2_probs(true);
  request.set_top_log2_probs(2);
  request.set_num_samples(2);
  request.mutable_sampling()->set_temperature(0.9f);
  return request;
}

std::string json_of(const google::protobuf::Message& message) {
  std::string text;
  REQUIRE(google::protobuf::util::MessageToJsonString(message, &text).ok());
  return text;
}

template <typename Parse>
Generated generated_by(const std::vector<Envelope>& messages, Parse parse) {
  Generated out;
  for (const Envelope& one : messages) {
    if (one.flags != 0) continue;
    v1::GenerateResponse message;
    REQUIRE(parse(one.message, message));
    take_message(message, out);
  }
  return out;
}

bool parse_bytes(const std::string& text, v1::GenerateResponse& message) {
  return message.ParseFromString(text);
}
bool parse_json(const std::string& text, v1::GenerateResponse& message) {
  return google::protobuf::util::JsonStringToMessage(text, &message).ok();
}

void check_equal(const Generated& one, const Generated& other) {
  REQUIRE(one.samples.size() == other.samples.size());
  for (const auto& [index, sample] : one.samples) {
    const Sample& twin = other.samples.at(index);
    CHECK(sample.tokens == twin.tokens);
    CHECK(sample.log2_probs == twin.log2_probs);  // bit for bit
    CHECK(sample.finish.seed() == twin.finish.seed());
    CHECK(sample.finish.reason() == twin.finish.reason());
    CHECK(twin.contiguous);
    CHECK(twin.finishes == 1);
  }
}

}  // namespace

TEST_CASE("HTTP gives the bits that gRPC gives, in every protocol") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const v1::GenerateRequest request = scored_request();
  const Generated grpc = generate(server, request);
  REQUIRE(grpc.status.ok());
  REQUIRE(grpc.samples.size() == 2);

  SECTION("Connect, proto") {
    const HttpReply reply = post(port, kGeneratePath, envelope(0, request.SerializeAsString()),
                                 "application/connect+proto");
    CHECK(reply.status == 200);
    CHECK(reply.header("content-type") == "application/connect+proto");
    const auto messages = envelopes(reply.body);
    CHECK(messages.back().flags == kEndOfStream);
    CHECK(messages.back().message == "{}");
    check_equal(grpc, generated_by(messages, parse_bytes));
  }
  SECTION("Connect, JSON") {
    const HttpReply reply =
        post(port, kGeneratePath, envelope(0, json_of(request)), "application/connect+json");
    CHECK(reply.header("content-type") == "application/connect+json");
    const auto messages = envelopes(reply.body);
    CHECK(messages.back().message == "{}");
    check_equal(grpc, generated_by(messages, parse_json));
  }
  SECTION("gRPC-Web") {
    const HttpReply reply = post(port, kGeneratePath, envelope(0, request.SerializeAsString()),
                                 "application/grpc-web+proto");
    CHECK(reply.header("content-type") == "application/grpc-web+proto");
    const auto messages = envelopes(reply.body);
    CHECK(messages.back().flags == kTrailers);
    CHECK(messages.back().message == "grpc-status: 0\r\n");
    check_equal(grpc, generated_by(messages, parse_bytes));
  }
  SECTION("gRPC-Web, text") {
    const std::string body = absl::Base64Escape(envelope(0, request.SerializeAsString()));
    const HttpReply reply = post(port, kGeneratePath, body, "application/grpc-web-text");
    CHECK(reply.header("content-type") == "application/grpc-web-text+proto");
    std::string bytes;
    REQUIRE(decode_base64(reply.body, &bytes));
    const auto messages = envelopes(bytes);
    CHECK(messages.back().message == "grpc-status: 0\r\n");
    check_equal(grpc, generated_by(messages, parse_bytes));
  }
  SECTION("lines of JSON") {
    v1::GenerateRequest without_prompt = request;
    without_prompt.clear_prompt();
    json body = json::parse(json_of(without_prompt));
    body["prompt"]["text"] = "The quick";  // as it is
    const HttpReply reply = post(port, kGeneratePath, body.dump(), "");
    CHECK(reply.status == 200);
    CHECK(reply.header("content-type") == "application/x-ndjson");
    std::vector<Envelope> messages;
    std::istringstream lines(reply.body);
    std::map<unsigned, std::string> texts;
    for (std::string line; std::getline(lines, line);) {
      json message = json::parse(line);
      for (auto& chunk : message.value("chunks", json::array())) {
        texts[chunk.value("sample", 0U)] += chunk.at("text").get<std::string>();
      }
      for (const char* const part : {"chunks", "finished"}) {
        if (!message.contains(part)) continue;
        for (auto& one : message[part]) one.erase("text");
      }
      messages.push_back({0, message.dump()});
    }
    check_equal(grpc, generated_by(messages, parse_json));
    // The tokens are bytes: with what is no UTF-8 replaced there are at least as many characters.
    for (const auto& [sample, text] : texts) CHECK_FALSE(text.empty());
  }
}

TEST_CASE("lines of JSON: the text of a model with a tokenizer, in whole characters") {
  GivenModels models;
  models["world"] = text_model();
  const SteadyClock clock;
  TestServer server(with_http(), clock, models);
  const Tokenizer& tokenizer = *text_model()->tokenizer();
  v1::GenerateRequest request = request_for("world", {}, 60);
  request.mutable_prompt()->set_text("there");
  const Generated expected = generate(server, request);
  const std::string text = to_text(tokenizer, expected.only().tokens, false);
  json body = {{"model", "world"},
               {"prompt", {{"text", "there"}}},
               {"maxNewTokens", 60},
               {"maxTokensPerMessage", 1},
               {"sampling", {{"seed", "7"}}}};
  const auto lines_of = [&] {
    std::vector<json> all;
    std::istringstream lines(
        post(server.server().http_port(), kGeneratePath, body.dump(), "").body);
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
    return all;
  };
  std::string shown;
  for (const json& line : lines_of()) {
    for (const json& chunk : line.value("chunks", json::array())) {
      CHECK_FALSE(chunk.contains("tokenBytes"));
      shown += chunk.at("text").get<std::string>();
    }
    for (const json& end : line.value("finished", json::array())) shown += end.value("text", "");
  }
  CHECK(shown == text);

  body["tokenBytes"] = true;
  std::string bytes;
  for (const json& line : lines_of()) {
    for (const json& chunk : line.value("chunks", json::array())) {
      std::string part;
      REQUIRE(absl::Base64Unescape(chunk.at("tokenBytes").at(0).get<std::string>(), &part));
      bytes += part;
    }
  }
  std::string joined;
  for (const std::int32_t id : expected.only().tokens) joined += tokenizer.bytes_of(id);
  CHECK(bytes == joined);
}

TEST_CASE("text model with a trained length: its window over Connect, where a request has none") {
  TestServer server({"bytes", "text"}, with_http());
  const int port = server.server().http_port();
  const auto sent = [&](const json& body) {
    return generated_by(
        envelopes(
            post(port, kGeneratePath, envelope(0, body.dump()), "application/connect+json").body),
        parse_json);
  };
  v1::GenerateRequest request = scored_request();
  request.set_window(32);
  const Generated windowed = generate(server, request);
  request.clear_window();
  const Generated plain = generate(server, request);
  request.set_model("text");
  json body = json::parse(json_of(request));
  CHECK_FALSE(body.contains("window"));
  const Generated chosen = sent(body);
  check_equal(windowed, chosen);
  CHECK(chosen.only().finish.window() == 32);
  CHECK(chosen.only().finish.window_restarts() == 2);  // 59 tokens
  for (const json& off : {json(0), json("0")}) {
    body["window"] = off;
    const Generated got = sent(body);
    check_equal(plain, got);
    CHECK(got.only().finish.window() == 0);
  }
  // A session, as the page makes it.
  const auto window_of = [&](const json& create) {
    const HttpReply reply = post(port, "/lintel.v1.SessionService/Create", create.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return json::parse(reply.body).value("window", "0");
  };
  CHECK(window_of({{"model", "text"}}) == "32");
  CHECK(window_of({{"model", "text"}, {"window", 0}}) == "0");
  CHECK(window_of({{"model", "bytes"}}) == "0");
}

TEST_CASE("a unary method answers in Connect's JSON and in protobuf, and over gRPC-Web") {
  TestServer server({"bytes", "image"}, with_http());
  const int port = server.server().http_port();
  const std::string path = "/lintel.v1.ModelService/List";
  v1::ListModelsResponse expected;
  grpc::ClientContext context;
  REQUIRE(server.models->List(&context, {}, &expected).ok());

  v1::ListModelsResponse listed;
  const HttpReply as_json = post(port, path, "{}");
  CHECK(as_json.header("content-type") == "application/json");
  REQUIRE(google::protobuf::util::JsonStringToMessage(as_json.body, &listed).ok());
  CHECK(listed.models_size() == expected.models_size());
  const HttpReply as_proto = post(port, path, "", "application/proto");
  CHECK(as_proto.header("content-type") == "application/proto");
  REQUIRE(listed.ParseFromString(as_proto.body));
  CHECK(listed.models(1).name() == expected.models(1).name());
  const HttpReply as_web = post(port, path, envelope(0, ""), "application/grpc-web");
  const auto frames = envelopes(as_web.body);
  REQUIRE(frames.size() == 2);
  REQUIRE(listed.ParseFromString(frames[0].message));
  CHECK(listed.models_size() == 2);
  CHECK(frames[1].message == "grpc-status: 0\r\n");
}

TEST_CASE("an error has the protocol's shape, gRPC's code and message, and its details") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  v1::GenerateRequest wrong = request_for("bytes", {1}, 5);
  wrong.mutable_sampling()->set_top_p(7);
  const grpc::Status expected = generate(server, wrong).status;
  REQUIRE(expected.error_code() == grpc::INVALID_ARGUMENT);

  const HttpReply plain = post(port, kGeneratePath, json_of(wrong));
  CHECK(plain.status == 400);
  const json error = json::parse(plain.body);
  CHECK(error["code"] == "invalid_argument");
  CHECK(error["message"] == expected.error_message());
  CHECK(error["details"][0]["type"] == "google.rpc.BadRequest");

  const HttpReply connect =
      post(port, kGeneratePath, envelope(0, json_of(wrong)), "application/connect+json");
  CHECK(connect.status == 200);
  const auto ends = envelopes(connect.body);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].flags == kEndOfStream);
  CHECK(json::parse(ends[0].message)["error"] == error);

  const HttpReply web =
      post(port, kGeneratePath, envelope(0, wrong.SerializeAsString()), "application/grpc-web");
  CHECK(web.status == 200);
  CHECK(web.header("grpc-status") == "3");
  CHECK(web.header("grpc-message") == expected.error_message());
  CHECK_FALSE(web.header("grpc-status-details-bin").empty());

  const HttpReply unary = post(port, "/lintel.v1.ModelService/Get", R"({"name":"nosuch"})");
  CHECK(unary.status == 404);
  CHECK(json::parse(unary.body)["code"] == "not_found");
}

// The messages of a streamed answer to `request` in one of the protocols.
template <typename Message>
std::vector<Message> streamed(int port, const std::string& path,
                              const google::protobuf::Message& request, const std::string& type) {
  const bool is_json = type == "application/connect+json";
  const std::string message = is_json ? json_of(request) : request.SerializeAsString();
  const HttpReply reply = post(port, path, envelope(0, message), type);
  REQUIRE(reply.status == 200);
  std::vector<Message> all;
  for (const Envelope& one : envelopes(reply.body)) {
    if (one.flags != 0) {
      CHECK((one.message == "{}" || one.message == "grpc-status: 0\r\n"));
      continue;
    }
    Message& parsed = all.emplace_back();
    REQUIRE((is_json ? google::protobuf::util::JsonStringToMessage(one.message, &parsed).ok()
                     : parsed.ParseFromString(one.message)));
  }
  return all;
}

TEST_CASE("a chat and a response have the same text in every protocol") {
  const TemporaryDirectory files;
  const auto path = files.path() / "chat.jinja";
  std::ofstream(path) << "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                         "{% if add_generation_prompt %}assistant: {% endif %}";
  ServerOptions options = with_http();
  options.models.chat_templates = {{"m", path}};
  static const SteadyClock clock;
  TestServer server(options, clock, {{"m", text_model()}});
  const int port = server.server().http_port();
  const auto protocol = GENERATE(as<std::string>(), "application/connect+proto",
                                 "application/connect+json", "application/grpc-web+proto", "lines");
  CAPTURE(protocol);
  const auto lines_of = [&](const std::string& method, const std::string& body) {
    const HttpReply reply = post(port, method, json{{"body", body}}.dump(), "");
    REQUIRE(reply.status == 200);
    std::vector<json> lines;
    std::istringstream text(reply.body);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  };

  SECTION("of a chat") {
    const std::string method = "/lintel.v1.ChatService/Complete";
    const std::string body = json{
        {"model", "m"},
        {"messages", json::array({{{"role", "user"}, {"content", "Hello"}}})},
        {"max_tokens", 12},
        {"temperature", 0}}.dump();
    const HttpReply openai = post(port, "/v1/chat/completions", body);
    REQUIRE(openai.status == 200);
    std::string content;
    if (protocol == "lines") {
      for (const json& line : lines_of(method, body)) {
        for (const json& delta : line.value("deltas", json::array())) {
          content += delta.value("content", "");
        }
      }
    } else {
      v1::ChatRequest request;
      request.set_body(body);
      for (const auto& message : streamed<v1::ChatResponse>(port, method, request, protocol)) {
        for (const v1::ChatDelta& delta : message.deltas()) content += delta.content();
      }
    }
    CHECK_FALSE(content.empty());
    CHECK(json::parse(openai.body)["choices"][0]["message"]["content"] == content);
  }
  SECTION("of a response") {
    const std::string method = "/lintel.v1.ResponseService/Create";
    const std::string body = json{
        {"model", "m"},
        {"input", "Hello"},
        {"max_output_tokens", 16},
        {"store", false},
        {"temperature", 0}}.dump();
    const HttpReply openai = post(port, "/v1/responses", body);
    REQUIRE(openai.status == 200);
    std::string response;
    if (protocol == "lines") {
      for (const json& line : lines_of(method, body)) response = line.value("response", response);
    } else {
      v1::CreateResponseRequest request;
      request.set_body(body);
      for (const auto& message : streamed<v1::ResponseEvents>(port, method, request, protocol)) {
        if (!message.response().empty()) response = message.response();
      }
    }
    REQUIRE_FALSE(response.empty());
    const json output = json::parse(response)["output"][0]["content"][0]["text"];
    CHECK_FALSE(output.get<std::string>().empty());
    CHECK(json::parse(openai.body)["output"][0]["content"][0]["text"] == output);
  }
}

TEST_CASE("every method of lintel.v1 has a route") {
  TestServer server({"bytes"}, with_http());
  const std::filesystem::path protos =
      std::filesystem::path(LINTEL_TEST_DATA).parent_path() / "proto" / "lintel" / "v1";
  std::size_t num_methods = 0;
  for (const auto& entry : std::filesystem::directory_iterator(protos)) {
    const auto* const file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
        "lintel/v1/" + entry.path().filename().string());
    CAPTURE(entry.path());
    REQUIRE(file != nullptr);
    for (int i = 0; i < file->service_count(); ++i) {
      for (int k = 0; k < file->service(i)->method_count(); ++k, ++num_methods) {
        const auto* const method = file->service(i)->method(k);
        const std::string path = "/" + file->service(i)->full_name() + "/" + method->name();
        CAPTURE(path);
        const HttpReply reply = post(server.server().http_port(), path, "{}", "text/xml");
        CHECK(reply.status == (method->client_streaming() ? 501 : 415));
      }
    }
  }
  CHECK(num_methods > 30);
}

TEST_CASE("bodies and encodings that are invalid or not supported are refused by name") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const std::string list = "/lintel.v1.ModelService/List";
  const auto refusal = [&](int status, const std::string& path, std::string_view body,
                           const std::string& type, const std::string& headers = "") {
    const HttpReply reply = post(port, path, body, type, headers);
    CHECK(reply.status == status);
    CHECK(reply.whole);
    return reply.body;
  };
  CHECK_THAT(refusal(400, kGeneratePath, R"({"promt":{}})", "application/json"), Contains("promt"));
  CHECK_THAT(refusal(400, kGeneratePath, "{", "application/json"), Contains("invalid_argument"));
  CHECK_THAT(refusal(400, kGeneratePath, std::string(100000, '['), "application/json"),
             Contains("invalid_argument"));
  CHECK_THAT(refusal(415, kGeneratePath, "{}", "text/xml"), Contains("text/xml"));
  CHECK_THAT(refusal(415, list, "{}", "application/connect+json"), Contains("application/json"));
  CHECK_THAT(refusal(415, list, "{}", "application/json", "Content-Encoding: gzip\r\n"),
             Contains("gzip") && Contains("unimplemented"));
  CHECK_THAT(refusal(501, list, "{}", "application/json", "Connect-Protocol-Version: 2\r\n"),
             Contains("connect-protocol-version"));
  CHECK_THAT(refusal(400, list, "{}", "application/json", "Connect-Timeout-Ms: soon\r\n"),
             Contains("timeout"));
  CHECK_THAT(refusal(501, "/lintel.v1.SessionService/Restore", "{}", "application/json"),
             Contains("use gRPC"));
  // The refusal of a call in envelopes comes in an envelope, too.
  CHECK_THAT(refusal(200, kGeneratePath, "abc", "application/connect+proto"),
             Contains("five bytes"));
  CHECK_THAT(refusal(200, kGeneratePath, envelope(kCompressed, "x"), "application/connect+proto"),
             Contains("compressed"));
  CHECK_THAT(refusal(200, kGeneratePath, envelope(0, "x") + "y", "application/connect+proto"),
             Contains("one message"));
}

TEST_CASE("a call's timeout ends it over HTTP as over gRPC") {
  TestServer server({"tokens"}, with_http());
  const int port = server.server().http_port();
  v1::GenerateRequest endless = request_for("tokens", {1}, 0);
  endless.clear_max_new_tokens();
  const HttpReply connect = post(port, kGeneratePath, envelope(0, json_of(endless)),
                                 "application/connect+json", "Connect-Timeout-Ms: 50\r\n");
  CHECK_THAT(envelopes(connect.body).back().message, Contains("deadline_exceeded"));
  const HttpReply web = post(port, kGeneratePath, envelope(0, endless.SerializeAsString()),
                             "application/grpc-web", "Grpc-Timeout: 50m\r\n");
  const std::string trailers = web.body.empty() ? web.head : envelopes(web.body).back().message;
  CHECK_THAT(trailers, Contains("grpc-status: 4"));
}

TEST_CASE("a method that changes nothing answers Connect's GET as it answers its POST",
          "[threat-41]") {
  TestServer server({"bytes", "tokens"}, with_http());
  const int port = server.server().http_port();
  const auto get = [&](const std::string& target, const std::string& headers = "") {
    return request(port, "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  };
  const std::string path = "/lintel.v1.ModelService/Get";
  const std::string posted = post(port, path, R"({"name":"bytes"})").body;
  REQUIRE(json::parse(posted)["name"] == "bytes");
  const HttpReply plain =
      get(path + "?connect=v1&encoding=json&message=%7B%22name%22%3A%22bytes%22%7D");
  CHECK(plain.status == 200);
  CHECK(plain.header("content-type") == "application/json");
  CHECK(plain.body == posted);
  CHECK(get(path + "?encoding=json&base64=1&message=eyJuYW1lIjoiYnl0ZXMifQ").body == posted);
  CHECK(get(path + "?encoding=json&base64=1&message=eyJuYW1lIjoiYnl0ZXMifQ%3D%3D").body == posted);

  v1::GetModelRequest message;
  message.set_name("bytes");
  std::string encoded;
  absl::WebSafeBase64Escape(message.SerializeAsString(), &encoded);
  const HttpReply proto = get(path + "?connect=v1&encoding=proto&base64=1&message=" + encoded);
  CHECK(proto.header("content-type") == "application/proto");
  v1::Model model;
  REQUIRE(model.ParseFromString(proto.body));
  CHECK(model.name() == "bytes");
  CHECK(get("/lintel.v1.ModelService/List?encoding=proto&message=").status == 200);
  CHECK(get("/lintel.v1.ModelService/Statistics?encoding=json&message=%7B%7D").status == 200);

  const auto refused = [&](const std::string& query, int status, const std::string& why,
                           const std::string& headers = "") {
    const HttpReply reply = get(path + query, headers);
    CHECK(reply.status == status);
    CHECK_THAT(json::parse(reply.body)["message"].get<std::string>(), Contains(why));
  };
  refused("?encoding=json&message=%7B%22name%22%3A%22nosuch%22%7D", 404, "nosuch");
  refused("?encoding=json&message=%7B", 400, "JSON");
  refused("?encoding=json&compression=gzip&message=x", 501, "compression=gzip");
  refused("?encoding=xml&message=x", 400, "encoding=xml");
  refused("?encoding=json", 400, "message is missing");
  refused("", 400, "encoding=");
  refused("?encoding=json&connect=v2&message=%7B%7D", 400, "connect=v2");
  refused("?encoding=json&base64=1&message=*", 400, "no base64");
  refused("?encoding=json&message=%7B%7D", 400, "timeout", "connect-timeout-ms: soon\r\n");
  for (const char* const changes :
       {"/lintel.v1.SessionService/Create", "/lintel.v1.SessionService/Get",
        "/lintel.v1.GenerationService/Generate"}) {
    const HttpReply reply = get(std::string(changes) + "?encoding=json&message=%7B%7D");
    CHECK(reply.status == 405);
    CHECK(reply.header("allow") == "POST");
  }
}

}  // namespace lintel::testing
