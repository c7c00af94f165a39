// SPDX-License-Identifier: Apache-2.0
// Refuses requests by their first line and headers, before their bodies are read.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "server/http/transport/http_connection.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// In the shape of the route; null: there is none, and the shape is that of the request's path.
HttpAnswer refusal(const HttpRoutes& routes, const HttpRequest& request, const HttpRoute* route,
                   int http_status, const grpc::Status& status);

// Nothing: the request goes to `route`, and has its parameters. Also what has no body to wait for:
// the answer to a browser that asks whether a page may call. Where a route was found `route` is
// set, also with a refusal. `is_http_10`: then no host is needed.
std::optional<HttpAnswer> answer_head(const HttpServerState& state, HttpRequest& request,
                                      bool is_http_10, const HttpRoute*& route);

// Sets the caller that the request's token names. OK also where no token is asked for.
grpc::Status identify_caller(const HttpServerState& server, const HttpRoute& route,
                             HttpRequest& request);

// A line of the log: what no call's line will tell of.
void log_refusal(const HttpRequest& request, const std::string& peer, int http_status);
// Likewise, of the exception that is being handled.
void log_exception(const std::string& peer) noexcept;

}  // namespace lintel
