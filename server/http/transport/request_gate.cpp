// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/request_gate.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "server/http/transport/request_head.h"
#include "server/http/transport/response_head.h"
#include "server/observability/logging.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/status.h"

namespace lintel {

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

}  // namespace lintel
