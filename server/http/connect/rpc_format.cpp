// SPDX-License-Identifier: Apache-2.0
#include "server/http/connect/rpc_format.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "google/rpc/status.pb.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/transport/response_head.h"
#include "server/rpc/status.h"

namespace lintel {

std::string envelope(std::uint8_t flags, std::string_view message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  std::string out;
  out.reserve(kEnvelopeHead + message.size());
  out += static_cast<char>(flags);
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>((length >> shift) & 0xff);
  out += message;
  return out;
}

bool open_envelope(std::string_view body, std::string_view* message, std::string* why) {
  if (body.size() < kEnvelopeHead) {
    *why = "the body is shorter than the five bytes before a message";
    return false;
  }
  const auto flags = static_cast<std::uint8_t>(body[0]);
  if ((flags & kCompressed) != 0) {
    *why = "the message is compressed, which is not supported";
    return false;
  }
  if (flags != 0) {
    *why = "the message's flags are " + std::to_string(flags) + ", not 0";
    return false;
  }
  std::size_t size = 0;
  for (std::size_t i = 1; i < kEnvelopeHead; ++i) {
    size = size << 8 | static_cast<std::uint8_t>(body[i]);
  }
  body.remove_prefix(kEnvelopeHead);
  if (size != body.size()) {
    *why = "the message should have " + std::to_string(size) + " bytes, and the body has " +
           std::to_string(body.size()) + " after its length: a request is one message";
    return false;
  }
  *message = body;
  return true;
}

bool decode_base64(std::string_view text, std::string* bytes) {
  bytes->clear();
  while (!text.empty()) {
    // A piece ends after its padding.
    std::size_t end = std::min(text.find('='), text.size());
    while (end < text.size() && text[end] == '=') ++end;
    std::string piece;
    if (end % 4 != 0 || !absl::Base64Unescape({text.data(), end}, &piece)) return false;
    *bytes += piece;
    text.remove_prefix(end);
  }
  return true;
}

namespace {

// "application/json; charset=utf-8" as "application/json".
std::string media_type(std::string_view header) {
  header = header.substr(0, std::min(header.find(';'), header.size()));
  while (!header.empty() && header.back() == ' ') header.remove_suffix(1);
  std::string type(header);
  std::ranges::transform(type, type.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return type;
}

// Parses a number of at most `most_digits` digits and nothing else.
std::optional<std::int64_t> digits(std::string_view text, std::size_t most_digits) {
  std::int64_t number = 0;
  if (text.empty() || text.size() > most_digits || text.front() == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error != std::errc() || end != text.end()) return std::nullopt;
  return number;
}

// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: "100m" is a tenth of a second.
std::optional<std::chrono::milliseconds> grpc_timeout(std::string_view text) {
  using std::chrono::milliseconds;
  if (text.empty()) return std::nullopt;
  const auto number = digits(text.substr(0, text.size() - 1), 8);
  if (!number) return std::nullopt;
  switch (text.back()) {
    case 'H':
      return std::chrono::hours(*number);
    case 'M':
      return std::chrono::minutes(*number);
    case 'S':
      return std::chrono::seconds(*number);
    case 'm':
      return milliseconds(*number);
    case 'u':
      return milliseconds(*number / 1000);
    case 'n':
      return milliseconds(*number / 1'000'000);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string RpcFormat::content_type() const {
  switch (protocol) {
    case RpcProtocol::kStream:
      return is_json ? "application/connect+json" : "application/connect+proto";
    case RpcProtocol::kGrpcWeb:
      return is_text ? "application/grpc-web-text+proto" : "application/grpc-web+proto";
    case RpcProtocol::kPlainJson:
      return "application/x-ndjson";
    default:
      return is_json ? "application/json" : "application/proto";
  }
}

RpcFormat rpc_format(const HttpRequest& request, bool server_streaming) {
  const std::string type = media_type(request.header("content-type"));
  const bool is_form = type.empty() || type == "application/x-www-form-urlencoded";
  if (type == "application/json" || (is_form && request.header("origin").empty())) {
    return {.protocol = server_streaming ? RpcProtocol::kPlainJson : RpcProtocol::kUnary,
            .is_json = true};
  }
  if (type == "application/proto" && !server_streaming) return {.protocol = RpcProtocol::kUnary};
  if (type == "application/connect+json") {
    return {.protocol = RpcProtocol::kStream, .is_json = true};
  }
  if (type == "application/connect+proto") return {.protocol = RpcProtocol::kStream};
  if (type == "application/grpc-web" || type == "application/grpc-web+proto") {
    return {.protocol = RpcProtocol::kGrpcWeb};
  }
  if (type == "application/grpc-web-text" || type == "application/grpc-web-text+proto") {
    return {.protocol = RpcProtocol::kGrpcWeb, .is_text = true};
  }
  return {};
}

std::string unsupported_header(const HttpRequest& request, const RpcFormat& format) {
  constexpr std::array kEncodings = {"content-encoding", "connect-content-encoding",
                                     "grpc-encoding"};
  for (const char* const name : kEncodings) {
    const std::string_view value = request.header(name);
    if (!value.empty() && value != "identity") {
      return std::string(name) + ": " + clip(value) + " is not supported, send identity";
    }
  }
  const std::string_view version = request.header("connect-protocol-version");
  if (format.protocol != RpcProtocol::kGrpcWeb && !version.empty() && version != "1") {
    return "connect-protocol-version: " + clip(version) + " is not supported, send 1";
  }
  return {};
}

std::optional<std::chrono::milliseconds> rpc_timeout(const HttpRequest& request,
                                                     const RpcFormat& format, bool* valid) {
  const bool is_grpc = format.protocol == RpcProtocol::kGrpcWeb;
  const std::string_view text = request.header(is_grpc ? "grpc-timeout" : "connect-timeout-ms");
  *valid = true;
  if (text.empty()) return std::nullopt;
  std::optional<std::chrono::milliseconds> timeout;
  if (is_grpc) {
    timeout = grpc_timeout(text);
  } else if (const auto number = digits(text, 10)) {
    timeout = std::chrono::milliseconds(*number);
  }
  *valid = timeout.has_value();
  return timeout;
}

namespace {

std::string base64_without_padding(const std::string& bytes) {
  std::string text = absl::Base64Escape(bytes);
  while (!text.empty() && text.back() == '=') text.pop_back();
  return text;
}

// A message in a header: what is no printable ASCII as %XX
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, Percent-Encoded).
std::string percent_encoded(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += "0123456789ABCDEF"[byte >> 4];
    encoded += "0123456789ABCDEF"[byte & 15];
  }
  return encoded;
}

}  // namespace

std::string connect_error_json(const grpc::Status& status) {
  nlohmann::ordered_json error = {{"code", json_code_name(status.error_code())},
                                  {"message", status.error_message()}};
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  for (const auto& detail : details.details()) {
    const std::string& url = detail.type_url();
    error["details"].push_back({{"type", url.substr(url.rfind('/') + 1)},
                                {"value", base64_without_padding(detail.value())}});
  }
  return dumped(error);
}

HttpHeaders grpc_trailers(const grpc::Status& status) {
  HttpHeaders trailers = {{"grpc-status", std::to_string(status.error_code())}};
  if (!status.error_message().empty()) {
    trailers.emplace_back("grpc-message", percent_encoded(status.error_message()));
  }
  if (!status.error_details().empty()) {
    trailers.emplace_back("grpc-status-details-bin",
                          base64_without_padding(status.error_details()));
  }
  return trailers;
}

HttpAnswer rpc_refusal(const RpcFormat& format, int http_status, const grpc::Status& status) {
  HttpAnswer answer{200, {{"content-type", format.content_type()}}, {}};
  switch (format.protocol) {
    case RpcProtocol::kStream:
      answer.body = envelope(kEndOfStream, "{\"error\":" + connect_error_json(status) + "}");
      return answer;
    case RpcProtocol::kGrpcWeb:
      for (auto& trailer : grpc_trailers(status)) answer.headers.push_back(std::move(trailer));
      return answer;
    default:
      answer = json_answer(http_status, connect_error_json(status) + "\n");
      add_retry_header(read_status_details(status), answer.headers);
      return answer;
  }
}

HttpAnswer rpc_refusal(const RpcFormat& format, const grpc::Status& status) {
  return rpc_refusal(format, http_status_of(status.error_code()), status);
}

}  // namespace lintel
