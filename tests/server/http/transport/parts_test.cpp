// SPDX-License-Identifier: Apache-2.0
// The parts of HTTP that need no server: routes, envelopes, base64, JSON, origins.
#include <google/protobuf/util/json_util.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/response.pb.h"
#include "server/http/connect/rpc_format.h"
#include "server/http/connect/rpc_json.h"
#include "server/http/transport/http_routes.h"
#include "server/http/transport/request_head.h"
#include "server/http/transport/response_head.h"
#include "server/rpc/status.h"
#include "tests/server/http/read_json.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {

using Catch::Matchers::Contains;
using nlohmann::json;

TEST_CASE("a route is found by its method and path, and what stands for its wildcards is decoded") {
  HttpRoutes routes;
  for (const char* const path : {"/", "/v2/models/{}/infer", "/v2/models/all/infer",
                                 "/v2/models/{}/versions/{}", "/files/{*}"}) {
    routes.add({.method = "GET", .path = path, .handle = {}});
  }
  routes.add({.method = "POST", .path = "/v2/models/{}/infer", .handle = {}});
  const auto path_of = [&](const char* method, const char* path) {
    const auto found = routes.find(method, path);
    return found.route == nullptr ? "none, " + found.allowed : found.route->path;
  };
  CHECK(path_of("GET", "/") == "/");
  CHECK(path_of("HEAD", "/") == "/");
  CHECK(path_of("PUT", "/") == "none, GET");
  CHECK(path_of("GET", "") == "none, ");
  CHECK(path_of("GET", "v2") == "none, ");
  CHECK(path_of("GET", "/v2/models/all/infer") == "/v2/models/all/infer");
  CHECK(path_of("PUT", "/v2/models/x/infer") == "none, GET, POST");
  CHECK(path_of("GET", "/v2/models//infer") == "none, ");
  CHECK(path_of("GET", "/v2/models/x/infer/") == "none, ");
  CHECK(routes.find("GET", "/v2/models/a%2Fb%20c/infer").parameters ==
        std::vector<std::string>{"a/b c"});
  CHECK(routes.find("GET", "/v2/models/m/versions/3").parameters ==
        std::vector<std::string>{"m", "3"});
  CHECK(routes.find("GET", "/files/a/b").parameters == std::vector<std::string>{"a/b"});
  CHECK(path_of("GET", "/files") == "none, ");
  CHECK(path_of("GET", "/files/") == "none, ");
  CHECK(percent_decoded("%41%4a%zz%4") == "AJ%zz%4");
  // One of the same method and path takes its place.
  routes.add({.method = "GET", .path = "/", .handle = {}, .is_open = true});
  CHECK(routes.find("GET", "/").route->is_open);
}

TEST_CASE("a status that protocols have beside gRPC's has its reason in the status line") {
  const auto status_line = [](int http_status) {
    const HttpAnswer answer{http_status, {}, "{}"};
    const std::string head = ResponseHead{answer, {}, "id"}.whole();
    return head.substr(0, head.find("\r\n"));
  };
  CHECK(status_line(529) == "HTTP/1.1 529 Overloaded");
  CHECK(status_line(422) == "HTTP/1.1 422 Unprocessable Entity");
  CHECK(status_line(418) == "HTTP/1.1 418 Unknown");
}

TEST_CASE("a protocol has its own headers of tokens, shape of errors and exposed headers") {
  const HttpProtocol other{
      .path = "/other",
      .token_headers = {"x-api-key", "authorization"},
      .exposed_headers = {"other-id"},
      .refuse = [](const HttpRequest&, int http_status, const grpc::Status& status) {
        return HttpAnswer{http_status, {}, "other: " + status.error_message()};
      }};
  HttpRoutes routes;
  routes.add(other);
  const auto error_of = [&](const char* path) {
    return routes.protocol_of(path).refuse({}, 404, grpc::Status(grpc::NOT_FOUND, "none")).body;
  };
  CHECK(error_of("/other") == "other: none");
  CHECK(error_of("/other/x") == "other: none");
  CHECK(error_of("/others") == "{\"code\":\"not_found\",\"message\":\"none\"}\n");
  HttpProtocol below = other;
  below.path = "/other/x";
  below.exposed_headers = {};
  below.refuse = [](const HttpRequest&, int http_status, const grpc::Status&) {
    return HttpAnswer{http_status, {}, "below"};
  };
  routes.add(below);
  CHECK(error_of("/other/x/y") == "below");
  CHECK(error_of("/other/y") == "other: none");
  CHECK(routes.exposed_headers() ==
        "retry-after, x-request-id, lintel-replica, lintel-ignored, other-id");
  // One without a path has what no other has.
  const HttpProtocol rest{.exposed_headers = {"grpc-status"},
                          .refuse = [](const HttpRequest&, int http_status, const grpc::Status&) {
                            return HttpAnswer{http_status, {}, "rest"};
                          }};
  routes.add(rest);
  CHECK(error_of("/others") == "rest");
  CHECK(error_of("/other/y") == "other: none");
  CHECK(routes.exposed_headers() ==
        "retry-after, x-request-id, lintel-replica, lintel-ignored, other-id, grpc-status");
  const auto token = [](const HttpProtocol& protocol, HttpHeaders headers) {
    HttpRequest request;
    request.headers = std::move(headers);
    return std::string(token_of(request, protocol));
  };
  CHECK(token(other, {{"x-api-key", "a"}, {"authorization", "Bearer b"}}) == "a");
  CHECK(token(other, {{"authorization", "Bearer b"}}) == "b");
  CHECK(token(other, {{"x-api-key", "a"}, {"x-api-key", "c"}}).empty());
  CHECK(token({}, {{"x-api-key", "a"}}).empty());
  CHECK(token({}, {{"authorization", "Bearer b"}}) == "b");
}

TEST_CASE("an envelope is opened only where it is one message, whole and not compressed") {
  std::string_view message;
  std::string why;
  const std::string sealed = envelope(0, "hello");
  CHECK(sealed == std::string("\0\0\0\0\5hello", 10));
  REQUIRE(open_envelope(sealed, &message, &why));
  CHECK(message == "hello");
  for (std::size_t size = 0; size < sealed.size(); ++size) {
    CHECK_FALSE(open_envelope(std::string_view(sealed).substr(0, size), &message, &why));
  }
  CHECK_FALSE(open_envelope(sealed + "x", &message, &why));
  CHECK_FALSE(open_envelope(envelope(kCompressed, "x"), &message, &why));
  CHECK_FALSE(open_envelope(envelope(kEndOfStream, "x"), &message, &why));
  CHECK_FALSE(open_envelope(std::string("\0\xff\xff\xff\xffx", 6), &message, &why));
  REQUIRE(open_envelope(envelope(0, ""), &message, &why));
  CHECK(message.empty());
}

TEST_CASE("base64 is read in one piece or in several, and nothing else is") {
  std::string bytes;
  CHECK((decode_base64("", &bytes) && bytes.empty()));
  CHECK((decode_base64("YWJj", &bytes) && bytes == "abc"));
  CHECK((decode_base64("YQ==YmM=ZGVm", &bytes) && bytes == "abcdef"));
  for (const char* const wrong : {"Y", "YW", "YWJ", "YQ=", "=", "====", "YQ===", "Y!==", "YWJj "}) {
    INFO(wrong);
    CHECK_FALSE(decode_base64(wrong, &bytes));
  }
}

TEST_CASE("plain JSON takes text as it is, wherever there is some, and protobuf's takes base64") {
  v1::GenerateRequest request;
  const std::string text = R"({"prompt":{"text":"na\u00efve"},"stop":{"strings":["\n","end"]},
      "given":[{"position":"5","values":{"text":"x"}}],"max_new_tokens":7})";
  REQUIRE(read_plain_json(text, request).ok());
  CHECK(request.prompt().text() == "na\xc3\xafve");
  CHECK(request.stop().strings(1) == "end");
  CHECK(request.given(0).values().text() == "x");
  CHECK(request.max_new_tokens() == 7);
  request.Clear();
  REQUIRE(read_plain_json(R"({"prompt":{"pixels":"AAE="}})", request).ok());
  CHECK(request.prompt().pixels() == std::string("\0\1", 2));
  request.Clear();
  REQUIRE(read_json(R"({"prompt":{"text":"YWI="}})", request).ok());
  CHECK(request.prompt().text() == "ab");
  v1::ChatRequest chat;
  REQUIRE(read_plain_json(R"({"body":"{\"model\":\"m\"}"})", chat).ok());
  CHECK(chat.body() == R"({"model":"m"})");
  v1::ResponseEvents events;
  events.add_events()->set_body(R"({"type":"response.created"})");
  events.set_response("{}");
  CHECK(nlohmann::json::parse(PlainMessages(PlainText::kNone).line(events)) ==
        nlohmann::json(
            {{"events", {{{"body", R"({"type":"response.created"})"}}}}, {"response", "{}"}}));
  CHECK_THAT(read_plain_json(R"({"prompt":{"txt":"x"}})", request).error_message(),
             Contains("txt"));
  CHECK_THAT(read_plain_json("{\"prompt\":", request).error_message(), Contains("JSON"));
  CHECK_FALSE(read_plain_json(std::string(1'000'000, '['), request).ok());
  CHECK_THAT(
      read_plain_json(R"({"prompt":{"text":"x"},"max_new_tokens":1e999})", request).error_message(),
      Contains("1e999"));
  request.Clear();
  const std::string brackets(100, '[');  // in a text they are no lists
  REQUIRE(read_plain_json(R"({"prompt":{"text":"\"\\)" + brackets + "\"}}", request).ok());
  CHECK(request.prompt().text() == "\"\\" + brackets);
  CHECK_FALSE(read_plain_json("[]", request).ok());
  CHECK_FALSE(read_plain_json("{\"prompt\":{\"text\":\"\xff\"}}", request).ok());
}

TEST_CASE(
    "objects and names of a message's JSON take little CPU time, in proportion to their number",
    "[threat-31]") {
  using Read = grpc::Status (*)(const std::string&, google::protobuf::Message&);
  const auto seconds_of = [](Read read, int names) {
    v1::GenerateRequest request;
    std::string objects = "{\"given\":[{}";
    for (int i = 0; i < 2 * names; ++i) objects += ",{}";
    std::string biases = "{\"sampling\":{\"logit_bias\":{\"0\":1";
    std::string strangers = "{\"x\":0";
    std::string strings = "{\"stop\":{\"strings\":[\"\"";
    for (int i = 1; i < names; ++i) {
      biases += ",\"" + std::to_string(i) + "\":1";
      strangers += ",\"x" + std::to_string(i) + "\":0";
      strings += ",\"a\"";
    }
    return cpu_seconds_of([&] {
      CHECK_FALSE(read(objects, request).ok());  // it has no end
      CHECK(read(objects + "]}", request).ok());
      CHECK(request.given_size() == 2 * names + 1);
      CHECK(read(biases + "}}}", request).ok());
      CHECK(request.sampling().logit_bias_size() == names);
      CHECK_THAT(read(strangers + "}", request).error_message(), Contains("x"));
      // Four letters of base64 are three bytes.
      const bool is_plain = read == Read(read_plain_json);
      CHECK(read(strings + "]}}", request).ok() == is_plain);
    });
  };
  for (const Read read : {Read(read_plain_json), Read(read_json)}) {
    // Four times as many take four times as long, and thirteen times where a list is searched for
    // each name. Another program may slow down one of two readings, but hardly all three times.
    constexpr double kMostGrowth = 8, kMostSeconds = 4;
    double growth = 2 * kMostGrowth, seconds = 2 * kMostSeconds;
    for (int attempt = 0; attempt < 3 && (growth > kMostGrowth || seconds > kMostSeconds);
         ++attempt) {
      const double few = seconds_of(read, 37'500);
      seconds = seconds_of(read, 150'000);
      growth = seconds / few;
    }
    CHECK(growth <= kMostGrowth);
    CHECK(seconds <= kMostSeconds);
  }
}

TEST_CASE("a message's JSON is as deep and as large as bounds allow, in either form") {
  v1::GenerateRequest request;
  using Read = grpc::Status (*)(const std::string&, google::protobuf::Message&);
  for (const Read read : {Read(read_plain_json), Read(read_json)}) {
    CHECK_THAT(read(std::string(4 << 20, '['), request).error_message(),
               Contains("nested more than"));
    CHECK_THAT(read("{\"a\":" + std::string(4 << 20, '{'), request).error_message(),
               Contains("nested more than") || Contains("not JSON"));
    std::string objects = "{\"given\":[{}";
    while (objects.size() < std::size_t{4} << 20) objects += ",{},{},{},{}";
    CHECK_THAT(read(objects + "]}", request).error_message(), Contains("MiB of memory"));
  }
}

TEST_CASE("a message's JSON that is read in pieces is what it is as a whole") {
  const auto seed = Catch::rngSeed();
  std::mt19937 random(seed);
  INFO("seed " << seed);
  v1::GenerateRequest request;
  for (int i = 0; i < 300'000; ++i) {
    request.mutable_prompt()->mutable_tokens()->add_ids(static_cast<int>(random() % 1'000'000));
  }
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += i % 3 == 0 ? "\xc3\xa4" : i % 3 == 1 ? "\n" : "\"\\";
  request.set_call_id(text);
  std::string printed;
  REQUIRE(google::protobuf::util::MessageToJsonString(request, &printed).ok());
  REQUIRE(printed.size() > 2 << 20);
  v1::GenerateRequest read, plain;
  REQUIRE(read_json(printed, read).ok());
  CHECK(read.SerializeAsString() == request.SerializeAsString());
  REQUIRE(read_plain_json(printed, plain).ok());
  CHECK(plain.SerializeAsString() == request.SerializeAsString());
}

TEST_CASE("text in lines of JSON is whole characters, cut anywhere") {
  const std::string text = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    PlainMessages messages(PlainText::kAlone);
    std::string together;
    for (const std::string& part : {text.substr(0, cut), text.substr(cut)}) {
      v1::GenerateResponse response;
      v1::Chunk& chunk = *response.add_chunks();
      chunk.add_tokens(1);
      chunk.add_token_bytes(part);
      together += json::parse(messages.line(response))["chunks"][0]["text"].get<std::string>();
    }
    CHECK(together == text);
  }
  PlainMessages messages(PlainText::kAlone);
  v1::GenerateResponse response;
  response.add_chunks()->add_token_bytes("\xc3");
  CHECK(json::parse(messages.line(response))["chunks"][0]["text"] == "");
  response.clear_chunks();
  response.add_finished()->set_stop_string("end");
  const json end = json::parse(messages.line(response))["finished"][0];
  CHECK(end["text"] == "\xef\xbf\xbd");
  CHECK(end["stopString"] == "end");
}

TEST_CASE(
    "values are written as protobuf writes them, and for people as their JSON is read again") {
  const auto seed = Catch::rngSeed();
  std::mt19937 random(seed);
  INFO("seed " << seed);
  const auto any_float = [&random] {
    constexpr float kSpecial[] = {0.0f,   -0.0f,     -1.0f,       -0.5f,          1e6f,
                                  1.5e9f, -1e-5f,    1e-4f,       3e38f,          INFINITY,
                                  NAN,    -INFINITY, 16777216.0f, 7.78118056e-39f};
    switch (random() % 4) {
      case 0:
        return kSpecial[random() % std::size(kSpecial)];
      case 1:
        return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      default:
        return -std::ldexp(static_cast<float>(random()), -30);
    }
  };
  for (int round = 0; round < 2000; ++round) {
    v1::GenerateResponse message;
    const bool with_text = round % 2 == 1;
    const bool with_bytes = round % 3 == 1;
    json texts = json::array();
    for (auto chunks = random() % 3; chunks > 0; --chunks) {
      v1::Chunk& chunk = *message.add_chunks();
      chunk.set_sample(random() % 3);
      chunk.set_first_position(random() % 2 == 0 ? 0 : static_cast<std::int64_t>(random()) << 20);
      chunk.set_source(static_cast<v1::ValueSource>(random() % 6));
      std::string text;
      for (auto tokens = random() % 4; tokens > 0; --tokens) {
        const int token = static_cast<int>(with_text ? random() % 128 : random());
        chunk.add_tokens(token);
        if (with_text || with_bytes) {
          const std::string bytes(random() % 3, static_cast<char>(random() % 128));
          chunk.add_token_bytes(bytes);
          text += bytes;
        }
        chunk.add_log2_probs(any_float());
        v1::TopValues& top = *chunk.add_top();
        for (auto best = random() % 3; best > 0; --best) {
          top.add_tokens(static_cast<int>(best));
          top.add_log2_probs(any_float());
          if (with_text || with_bytes) top.add_token_bytes("x\xff");
        }
      }
      texts.push_back(text);
    }
    std::string printed;
    REQUIRE(google::protobuf::util::MessageToJsonString(message, &printed).ok());
    REQUIRE(write_json(message) == printed);
    auto read_again = nlohmann::ordered_json::parse(printed);
    for (std::size_t i = 0; with_text && i < texts.size(); ++i) {
      if (!with_bytes) {
        read_again["chunks"][i].erase("tokenBytes");
        for (auto& top : read_again["chunks"][i]["top"]) top.erase("tokenBytes");
        if (read_again["chunks"][i]["top"].empty()) read_again["chunks"][i].erase("top");
      }
      read_again["chunks"][i]["text"] = texts[i];
    }
    const PlainText shown = !with_text   ? PlainText::kNone
                            : with_bytes ? PlainText::kWithBytes
                                         : PlainText::kAlone;
    REQUIRE(PlainMessages(shown).line(message) == read_again.dump());
  }
}

TEST_CASE("every gRPC code has Connect's name and HTTP status") {
  // https://connectrpc.com/docs/protocol#error-codes
  const std::tuple<int, const char*, int> table[] = {{1, "canceled", 499},
                                                     {2, "unknown", 500},
                                                     {3, "invalid_argument", 400},
                                                     {4, "deadline_exceeded", 504},
                                                     {5, "not_found", 404},
                                                     {6, "already_exists", 409},
                                                     {7, "permission_denied", 403},
                                                     {8, "resource_exhausted", 429},
                                                     {9, "failed_precondition", 400},
                                                     {10, "aborted", 409},
                                                     {11, "out_of_range", 400},
                                                     {12, "unimplemented", 501},
                                                     {13, "internal", 500},
                                                     {14, "unavailable", 503},
                                                     {15, "data_loss", 500},
                                                     {16, "unauthenticated", 401}};
  for (const auto& [code, name, status] : table) {
    CHECK(json_code_name(code) == name);
    const grpc::Status failed(static_cast<grpc::StatusCode>(code), "why");
    CHECK(json::parse(plain_refusal({}, status, failed).body)["code"] == name);
    CHECK(http_status_of(code) == status);
  }
}

TEST_CASE("line breaks in values do not end an answer's headers") {
  const HttpAnswer answer{200, {{"x-quote", "a\r\nset-cookie: b"}}, "body"};
  const ResponseHead head{answer, {}, "id", true, false};
  const std::string text = head.whole();
  CHECK_THAT(text, Contains("x-quote: a  set-cookie: b\r\n"));
  CHECK_THAT(text, Contains("content-length: 4\r\n"));
  CHECK(text.ends_with("\r\n\r\n"));
  CHECK(chunk_size_line(255) == "ff\r\n");
  CHECK_THAT(grpc_trailers({grpc::NOT_FOUND, "a%\nb\xc3\xa4"})[1].second,
             Catch::Equals("a%25%0Ab%C3%A4"));
}

TEST_CASE("any bytes for an envelope, base64 or JSON are read or refused") {
  const std::uint64_t seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const std::string starts[] = {envelope(0, "abcdef"), "YWJjZGVm", R"({"prompt":{"text":"ab"}})",
                                R"({"given":[{"values":{"tokens":{"ids":[1,2]}}}]})"};
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = starts[random() % std::size(starts)];
    for (std::size_t k = random() % 4 + 1; k > 0 && !bytes.empty(); --k) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 4);
          break;
        default:
          bytes.insert(at, bytes.substr(0, random() % 8));
      }
    }
    std::string_view message;
    std::string why, decoded;
    if (open_envelope(bytes, &message, &why)) CHECK(message.size() + kEnvelopeHead == bytes.size());
    decode_base64(bytes, &decoded);
    v1::GenerateRequest request;
    const grpc::Status read = read_plain_json(bytes, request);
    CHECK((read.ok() || !read.error_message().empty()));
  }
}

}  // namespace lintel::testing
