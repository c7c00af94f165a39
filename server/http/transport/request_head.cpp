// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/request_head.h"

#include <grpcpp/support/status_code_enum.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/beast/http/error.hpp>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/transport/http_connection.h"
#include "server/http/transport/response_head.h"
#include "server/observability/logging.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// "https://host:port" as "host:port".
std::string_view authority_of(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

// Origins' authorities and other names, as HostRules takes them.
std::vector<std::string> names_of(const std::vector<std::string>& origins,
                                  std::vector<std::string> names) {
  for (const std::string& origin : origins) {
    if (origin != "*") names.emplace_back(authority_of(origin));
  }
  return names;
}

}  // namespace

OriginRules::OriginRules(std::vector<std::string> allowed, const ListenAddress& address,
                         std::vector<std::string> hosts)
    : allowed_(std::move(allowed)),
      all_(std::ranges::find(allowed_, "*") != allowed_.end()),
      hosts_(address, names_of(allowed_, std::move(hosts))) {}

bool OriginRules::is_named(std::string_view origin) const {
  return all_ || std::ranges::find(allowed_, origin) != allowed_.end();
}

bool OriginRules::takes_host(const HttpRequest& request) const {
  const std::string_view host = request.header("host");
  return all_ || host.empty() || hosts_.takes(host);
}

bool OriginRules::takes(const HttpRequest& request) const {
  const bool has_origin = std::ranges::any_of(
      request.headers, [](const auto& header) { return header.first == "origin"; });
  if (!has_origin) return true;
  const std::string_view origin = request.header("origin");
  if (is_named(origin)) return true;
  const std::string_view authority = authority_of(origin);
  return !authority.empty() && authority == request.header("host");
}

HttpHeaders OriginRules::headers_for(const HttpRequest& request, const std::string& exposed) const {
  if (allowed_.empty()) return {};
  HttpHeaders headers = {{"vary", "origin"}};
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !is_named(origin)) return headers;
  headers.emplace_back("access-control-allow-origin", all_ ? "*" : std::string(origin));
  headers.emplace_back("access-control-expose-headers", exposed);
  return headers;
}

bool OriginRules::is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

HttpAnswer OriginRules::preflight(const HttpRequest& request) const {
  HttpAnswer answer{204, {}, {}};
  if (!is_named(request.header("origin"))) return answer;
  answer.headers.emplace_back("access-control-allow-methods", "GET, POST, DELETE");
  if (const std::string_view asked = request.header("access-control-request-headers");
      !asked.empty()) {
    answer.headers.emplace_back("access-control-allow-headers", std::string(asked));
  }
  answer.headers.emplace_back("access-control-max-age", "7200");
  return answer;
}

namespace {

namespace http = boost::beast::http;

std::string text_of(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The values of all headers of a name.
std::vector<std::string_view> values_of(const HttpRequest& request, std::string_view name) {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : request.headers) {
    if (key == name) values.push_back(value);
  }
  return values;
}

// True if a header's value continues on the next line, which is obsolete: Beast joins the parts, so
// that the value does not directly follow its name.
bool is_folded(boost::beast::string_view name, boost::beast::string_view value) {
  const char* at = name.data() + name.size() + 1;  // after the ':'
  while (*at == ' ' || *at == '\t') ++at;          // its line ends with CR
  return at != value.data();
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

bool announces_body(const HttpRequest& request) {
  return std::ranges::any_of(request.headers, [](const auto& header) {
    const auto& [name, value] = header;
    return name == "transfer-encoding" ||
           (name == "content-length" && value.find_first_not_of('0') != std::string::npos);
  });
}

RequestParser::RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes)
    : max_header_bytes_(max_header_bytes), max_body_bytes_(max_body_bytes) {
  header_limit(static_cast<std::uint32_t>(max_header_bytes));
  body_limit(std::numeric_limits<std::uint64_t>::max());  // the bound is kept here
}

bool RequestParser::is_too_long() const { return content_length().value_or(0) > max_body_bytes_; }

void RequestParser::on_request_impl(http::verb, BeastView method, BeastView target, int version,
                                    ErrorCode& error) {
  error = {};
  version_ = version;
  header_bytes_ = method.size() + target.size();
  head_.method = text_of(method);
  std::string_view path(target.data(), target.size());
  // "http://host/path" names a path, too: clients that believe to speak to a proxy write so.
  if (path.starts_with("http://") || path.starts_with("https://")) {
    path.remove_prefix(path.find("://") + 3);
    authority_ = std::string(path.substr(0, path.find_first_of("/?")));
    path.remove_prefix(authority_.size());
    if (!path.starts_with('/')) path = "/";
  }
  const std::size_t question = std::min(path.find('?'), path.size());
  head_.path = std::string(path.substr(0, question));
  if (question < path.size()) head_.query = std::string(path.substr(question + 1));
}

void RequestParser::on_field_impl(http::field, BeastView name, BeastView value, ErrorCode& error) {
  error = {};
  header_bytes_ += name.size() + value.size() + std::string_view(": \r\n").size();
  if (++headers_ > kMaxHeaders) {
    problem_ = in_trailers_ ? "more than 100 trailers" : "more than 100 headers";
    error = http::error::header_limit;
  } else if (header_bytes_ > max_header_bytes_) {
    error = http::error::header_limit;
  } else if (is_folded(name, value)) {
    problem_ = "a header's value continues on another line";
    error = http::error::bad_value;
  }
  if (error || in_trailers_) return;
  head_.headers.emplace_back(lower({name.data(), name.size()}), text_of(value));
}

void RequestParser::on_header_impl(ErrorCode& error) {
  error = {};
  check_framing(error);
  // A host in the address takes precedence over the header (RFC 9112, 3.2.2).
  if (!authority_.empty()) {
    for (auto& [name, value] : head_.headers) {
      if (name == "host") value = authority_;
    }
  }
  in_trailers_ = true;
  headers_ = 0;
  header_bytes_ = 0;
}

// Proxies and this server must agree where a body ends: what a proxy takes for a body and this
// server for the next request is a request that the proxy never saw.
void RequestParser::check_framing(ErrorCode& error) {
  const std::vector<std::string_view> codings = values_of(head_, "transfer-encoding");
  const std::vector<std::string_view> lengths = values_of(head_, "content-length");
  if (!codings.empty()) {
    if (is_http_10()) {
      problem_ = "HTTP/1.0 has no transfer-encoding";
    } else if (!lengths.empty()) {
      problem_ = "transfer-encoding and content-length exclude each other";
    } else if (codings.size() != 1 || lower(codings.front()) != "chunked") {
      problem_ = "transfer-encoding is not chunked, once and alone";
    }
    if (!problem_.empty()) error = http::error::bad_transfer_encoding;
  } else if (lengths.size() > 1 || (lengths.size() == 1 && !is_number(lengths.front()))) {
    problem_ = "content-length is not one number";
    error = http::error::bad_content_length;
  }
}

void RequestParser::on_body_init_impl(const boost::optional<std::uint64_t>& length,
                                      ErrorCode& error) {
  error = {};
  // A length that was only announced takes no memory beyond this: the body grows as it is read.
  constexpr std::uint64_t kReservedBytes = 64 << 10;
  if (length) body_.reserve(static_cast<std::size_t>(std::min(*length, kReservedBytes)));
}

std::size_t RequestParser::on_body_impl(BeastView piece, ErrorCode& error) {
  error = {};
  if (piece.size() > max_body_bytes_ - body_.size()) {
    error = http::error::body_limit;
    return 0;
  }
  body_.append(piece.data(), piece.size());
  return piece.size();
}

void RequestParser::on_chunk_header_impl(std::uint64_t size, BeastView extension,
                                         ErrorCode& error) {
  error = {};
  if (size > max_body_bytes_ - body_.size()) {
    error = http::error::body_limit;
  } else if (extension.find('\n') != BeastView::npos || extension.find('\r') != BeastView::npos) {
    problem_ = "a chunk extension has a line of its own";
    error = http::error::bad_chunk_extension;
  }
}

std::size_t RequestParser::on_chunk_body_impl(std::uint64_t, BeastView piece, ErrorCode& error) {
  return on_body_impl(piece, error);
}

HttpAnswer refusal(const HttpRoutes& routes, const HttpRequest& request, const HttpRoute* route,
                   int http_status, const grpc::Status& status) {
  const bool shaped = route != nullptr && route->refuse;
  return (shaped ? route->refuse : routes.protocol_of(request.path).refuse)(request, http_status,
                                                                            status);
}

namespace {

// The encoding of a body that is not sent as it is; empty: it is.
std::string_view foreign_encoding(const HttpRequest& request) {
  for (const auto& [name, value] : request.headers) {
    if (name == "content-encoding" && !value.empty() && lower(value) != "identity") return value;
  }
  return {};
}

}  // namespace

std::optional<HttpAnswer> answer_head(const HttpServerState& server, HttpRequest& request,
                                      bool is_http_10, const HttpRoute*& route) {
  const auto refused = [&](int http_status, grpc::StatusCode code, const std::string& what) {
    return refusal(server.routes, request, route, http_status, grpc::Status(code, what));
  };
  const auto hosts = std::ranges::count_if(
      request.headers, [](const auto& header) { return header.first == "host"; });
  if (hosts > 1 || (!is_http_10 && request.header("host").empty())) {
    return refused(400, grpc::INVALID_ARGUMENT, "the request needs one header host");
  }
  if (!server.origins.takes_host(request)) {
    return refusal(server.routes, request, route, 403,
                   permission_denied("this server is not called " + clip(request.header("host")) +
                                     ": --http-allowed-host lists its names besides "
                                     "localhost and its loopback addresses"));
  }
  if (!server.origins.takes(request)) {
    return refusal(server.routes, request, route, 403,
                   permission_denied("pages of " + clip(request.header("origin")) +
                                     " may not call: --http-cors-origin names those that may"));
  }
  HttpRoutes::Found found = server.routes.find(request.method, request.path);
  if (found.route == nullptr && found.allowed.empty()) {
    return refused(404, grpc::NOT_FOUND, "no route for " + clip(request.path));
  }
  if (OriginRules::is_preflight(request)) return server.origins.preflight(request);
  if (found.route == nullptr) {
    HttpAnswer answer =
        refusal(server.routes, request, found.other, 405,
                grpc::Status(grpc::UNIMPLEMENTED, request.path + " takes " + found.allowed));
    answer.headers.emplace_back("allow", found.allowed);
    return answer;
  }
  route = found.route;
  request.parameters = std::move(found.parameters);
  if (const grpc::Status known = identify_caller(server, *route, request); !known.ok()) {
    return refusal(server.routes, request, route, 401, known);
  }
  if (server.started != nullptr && !*server.started && !route->answers_at_start) {
    HttpAnswer answer =
        refused(503, grpc::UNAVAILABLE, "the server starts: its models are being loaded");
    answer.headers.emplace_back("retry-after", "1");
    return answer;
  }
  if (const std::string_view encoding = foreign_encoding(request); !encoding.empty()) {
    return refused(415, grpc::UNIMPLEMENTED,
                   "content-encoding: " + clip(encoding) + " is not supported, send identity");
  }
  // Requests without a token must not hold the memory of those that have one.
  if (route->is_open && announces_body(request)) {
    return refused(413, grpc::INVALID_ARGUMENT, request.path + " takes no body");
  }
  const std::string_view expected = request.header("expect");
  if (!expected.empty() && lower(expected) != "100-continue") {
    return refused(417, grpc::INVALID_ARGUMENT, "expect: " + clip(expected) + " is not known here");
  }
  return std::nullopt;
}

grpc::Status identify_caller(const HttpServerState& server, const HttpRoute& route,
                             HttpRequest& request) {
  if (server.tokens == nullptr || route.is_open) return grpc::Status::OK;
  Identity caller;
  grpc::Status known =
      identify(*server.tokens, token_of(request, server.routes.protocol_of(request.path)), caller);
  if (known.ok()) request.caller = std::move(caller);
  return known;
}

void log_refusal(const HttpRequest& request, const std::string& peer, int http_status) {
  LogFields fields;
  fields.add("request_id", request.request_id);
  fields.add("peer", peer);
  fields.add("via", "http");
  fields.add("method", clip(request.method));
  fields.add("path", clip(request.path));
  fields.add("status", static_cast<std::int64_t>(http_status));
  const LogScope scope(fields);
  spdlog::info("request refused");
}

void log_exception(const std::string& peer) noexcept {
  try {
    const std::string what = status_of_exception().error_message();
    LogFields fields;
    fields.add("peer", peer);
    fields.add("via", "http");
    const LogScope scope(fields);
    spdlog::error("a connection ends for an exception: {}", what);
  } catch (...) {  // there is no memory for that, either
  }
}

namespace {

constexpr std::size_t kFrameHead = 9;  // bytes before a frame's own
enum FrameType : std::uint8_t { kHeaders = 1, kSettings = 4, kGoaway = 7 };
constexpr std::uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;

std::string big_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::uint32_t number_of(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

std::string frame(FrameType type, std::uint8_t flags, std::uint32_t stream,
                  std::string_view payload) {
  return big_endian(payload.size(), 3) + big_endian(type, 1) + big_endian(flags, 1) +
         big_endian(stream, 4) + std::string(payload);
}

// HPACK's form of a text without Huffman's code (RFC 7541, 5.1 and 5.2).
std::string packed(std::string_view text) {
  constexpr std::size_t kPrefix = 127;
  if (text.size() < kPrefix) return big_endian(text.size(), 1) + std::string(text);
  std::string packed(1, static_cast<char>(kPrefix));
  std::size_t rest = text.size() - kPrefix;
  for (; rest >= 128; rest /= 128) packed.push_back(static_cast<char>(128 + rest % 128));
  packed.push_back(static_cast<char>(rest));
  return packed + std::string(text);
}

// A header that no table is to remember.
std::string field(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + packed(name) + packed(value);
}

}  // namespace

std::string http2_settings() { return frame(kSettings, 0, 0, {}) + frame(kSettings, kAck, 0, {}); }

Http2Frames http2_frames(std::string_view bytes) {
  Http2Frames frames;
  while (bytes.size() - frames.size >= kFrameHead) {
    const std::string_view next = bytes.substr(frames.size);
    if (static_cast<std::uint8_t>(next[3]) == kHeaders) {
      frames.stream = number_of(next.substr(5, 4)) & 0x7fffffff;
      return frames;
    }
    const std::size_t size = kFrameHead + number_of(next.substr(0, 3));
    if (next.size() < size) return frames;
    frames.size += size;
  }
  return frames;
}

std::string http2_refusal(std::uint32_t stream, std::string_view message) {
  // "Trailers-Only" of gRPC's protocol over HTTP/2.
  const std::string headers = field(":status", "200") + field("content-type", "application/grpc") +
                              field("grpc-status", std::to_string(grpc::UNIMPLEMENTED)) +
                              field("grpc-message", message);
  constexpr std::uint32_t kNoError = 0;
  return frame(kHeaders, kEndStream | kEndHeaders, stream, headers) +
         frame(kGoaway, 0, 0, big_endian(stream, 4) + big_endian(kNoError, 4));
}

}  // namespace lintel
