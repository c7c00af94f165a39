#include "server/http/connect/rpc_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "server/grpc/transport/status.h"

namespace lintel {
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

// At most `most_digits` digits and nothing else.
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

}  // namespace lintel
