// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/web_inputs.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "lintel/v1/generation.pb.h"
#include "server/http/connect/rpc_format.h"
#include "server/http/connect/rpc_json.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/kserve/infer_json.h"
#include "server/http/transport/http_connection.h"
#include "server/http/transport/request_head.h"
#include "server/http/transport/response_head.h"
#include "server/http/transport/websocket.h"
#include "server/observability/logging.h"
#include "server/openai/http/completion_request.h"
#include "tests/server/http/read_json.h"

namespace lintel::fuzz {
namespace {

namespace http = boost::beast::http;

constexpr std::size_t kLongestRefusal = 1000;

void require(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(std::string("broken promise: ") + promise);
}

void check_refusal(const std::string& why) {
  require(!why.empty(), "a refusal says why");
  require(why.size() < kLongestRefusal, "a refusal is short");
}

bool try_inference(const nlohmann::json& json,
                   std::string (*read)(nlohmann::json, inference::ModelInferRequest&)) {
  inference::ModelInferRequest wire, again;
  const std::string wrong = read(json, wire);
  if (!wrong.empty()) {
    check_refusal(wrong);
    return false;
  }
  require(again.ParseFromString(wire.SerializeAsString()), "what is read can be sent on");
  return true;
}

bool try_completion(const nlohmann::json& body) {
  OpenAiError error;
  const std::optional<CompletionRequest> request = read_completion_request(body, error);
  if (!request) {
    check_refusal(error.message);
    return false;
  }
  require(!request->prompts.empty(), "there is a prompt");
  const v1::GenerateRequest last = generate_request(*request, request->prompts.size() - 1);
  require(last.model() == request->settings.model, "a request is of the completion's model");
  v1::GenerateRequest again;
  require(again.ParseFromString(last.SerializeAsString()), "what is read can be sent on");
  return true;
}

bool try_message(const std::string& body,
                 grpc::Status (*read)(const std::string&, google::protobuf::Message&)) {
  v1::GenerateRequest request, again;
  const grpc::Status status = read(body, request);
  if (!status.ok()) {
    require(!status.error_message().empty(), "a refusal says why");
    return false;
  }
  google::protobuf::util::DefaultFieldComparator comparator;
  comparator.set_treat_nan_as_equal(true);
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_field_comparator(&comparator);
  require(read_json(write_json(request), again).ok(), "what is written reads back");
  require(differencer.Compare(request, again), "and is the same");
  return true;
}

// The routes' kinds, without handlers.
const HttpRoutes& some_routes() {
  static const HttpRoutes routes = [] {
    HttpRoutes all;
    all.add({.method = "GET", .path = "/", .handle = {}});
    all.add({.method = "GET", .path = "/js/{*}", .handle = {}});
    all.add({.method = "GET", .path = "/v1/models/{}", .handle = {}});
    all.add({.method = "POST", .path = "/v1/completions", .handle = {}});
    all.add({.method = "POST", .path = "/v2/models/{}/versions/{}/infer", .handle = {}});
    all.add({.method = "POST", .path = "/lintel.v1.ModelService/List", .handle = {}});
    return all;
  }();
  return routes;
}

// A response is one head, regardless of the request's text that it quotes.
void check_head(const std::string& head) {
  require(head.starts_with("HTTP/1.1 ") && head.find("\r\n\r\n") == head.size() - 4,
          "a head ends once");
  const auto lines = std::ranges::count(head, '\n');
  require(lines == std::ranges::count(head, '\r') && lines < 20, "a value never ends its line");
}

constexpr std::size_t kMostMessage = 1 << 16;

// Messages of a client over a WebSocket, in the order in which they are read.
std::vector<std::string> websocket_events(std::string_view bytes, std::size_t piece) {
  WebSocketReader reader(kMostMessage);
  std::vector<std::string> events;
  while (!bytes.empty()) {
    std::string_view rest = bytes.substr(0, piece);
    bytes.remove_prefix(rest.size());
    while (!rest.empty()) {
      auto event = WebSocketReader::Event::kNone;
      const std::size_t used = reader.put(rest, event);
      require(used <= rest.size(), "no more is used than there is");
      rest.remove_prefix(used);
      require(reader.message_bytes() <= kMostMessage, "a message has its bound");
      if (event == WebSocketReader::Event::kNone) {
        require(rest.empty(), "without an event all is used");
      } else if (event == WebSocketReader::Event::kMessage) {
        events.push_back("message " + reader.take_message());
      } else if (event == WebSocketReader::Event::kPing) {
        require(websocket_pong(reader.control()).size() <= 127, "a pong is a control frame");
        events.push_back("ping " + reader.control());
      } else {
        const auto code = static_cast<int>(reader.close_code());
        require(code >= 1000 && code < 5000, "a close has a code");
        require(reader.problem().empty() == (event == WebSocketReader::Event::kClose),
                "a refusal says why");
        events.push_back("close " + std::to_string(code));
        return events;
      }
    }
  }
  return events;
}

}  // namespace

bool try_web_socket(std::string_view bytes) {
  const std::vector<std::string> events = websocket_events(bytes, bytes.size());
  for (const std::size_t piece : {1, 3, 17}) {
    require(websocket_events(bytes, piece) == events, "the events do not depend on the pieces");
  }
  return !events.empty() && !events.back().starts_with("close 1002");
}

bool try_web_frame(std::string_view bytes) {
  std::string_view message;
  std::string why, decoded;
  const bool opened = open_envelope(bytes, &message, &why);
  if (opened) {
    require(envelope(0, message) == bytes, "what is opened was sealed");
  } else {
    check_refusal(why);
  }
  const bool is_base64 = decode_base64(bytes, &decoded);
  require(!is_base64 || (bytes.size() % 4 == 0 && decoded.size() <= bytes.size() / 4 * 3),
          "four characters are three bytes at most");
  return opened || is_base64;
}

bool try_web_json(std::string_view bytes) {
  const std::string body(bytes);
  bool taken = false;
  {
    nlohmann::json json;
    const grpc::Status parsed = parse_object(body, nullptr, json);
    if (parsed.ok()) {
      taken |= try_inference(json, read_infer_request);
      taken |= try_inference(json, read_generate_request);
      taken |= try_completion(json);
    } else {
      check_refusal(parsed.error_message());
    }
  }
  taken |= try_message(body, read_json);
  taken |= try_message(body, read_plain_json);
  return taken;
}

bool try_web_head(std::string_view bytes) {
  constexpr std::size_t kMostBody = 1 << 20;
  RequestParser parser(/*max_header_bytes=*/16 << 10, kMostBody);
  boost::system::error_code error;
  const auto put = [&] {
    const std::size_t used = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
    require(used <= bytes.size(), "no more is used than there is");
    bytes.remove_prefix(used);
    return used;
  };
  put();
  if (error || !parser.is_header_done()) return false;

  HttpOptions options;
  options.listen = ListenAddress{"127.0.0.1", 8080, ""};
  HttpCounters counters;
  const OriginRules origins({"https://example.org"}, ListenAddress{});
  const HttpServerState house{options, some_routes(), origins, nullptr, 1 << 20, counters};
  HttpRequest request = parser.take_head();
  require(request.headers.size() <= RequestParser::kMaxHeaders, "headers are few");
  require(announces_body(request) || parser.is_done(), "what has a body says so");
  request.request_id = request_id_from(request.header("x-request-id"));
  const HttpRoute* route = nullptr;
  const bool is_http_10 = parser.is_http_10();
  const std::optional<HttpAnswer> answer = answer_head(house, request, is_http_10, route);
  const HttpAnswer back = answer.value_or(HttpAnswer{});
  const ResponseHead head{back, origins.headers_for(request, "retry-after"), request.request_id,
                          true, is_http_10};
  check_head(head.whole());
  check_head(head.in_pieces());
  if (answer) return answer->status < 400;
  require(route != nullptr, "what is not answered has a route");
  for (const std::string& parameter : request.parameters) {
    require(parameter.size() <= request.path.size(), "a parameter is a part of the path");
  }
  // The body, as far as it is there.
  const std::size_t most = std::min(bytes.size(), kMostBody);
  while (!parser.is_too_long() && !parser.is_done() && !bytes.empty()) {
    if (put() == 0 || error) break;
  }
  require(parser.body().size() <= most, "a body is no longer than what came, and its bound");
  return !error || error == http::error::need_more;
}

}  // namespace lintel::fuzz
