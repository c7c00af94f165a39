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

// A refusal in the shape of the route, or of the request's path if there is no route (null).
HttpAnswer refusal(const HttpRoutes& routes, const HttpRequest& request, const HttpRoute* route,
                   int http_status, const grpc::Status& status);

// Returns an answer if the request needs no body: a refusal, or the answer to a browser that asks
// whether a page may call. Nothing: the request goes to `route`, and has its parameters. If a route
// was found, `route` is set even with a refusal. `is_http_10`: no host is needed.
std::optional<HttpAnswer> answer_head(const HttpServerState& state, HttpRequest& request,
                                      bool is_http_10, const HttpRoute*& route);

// Sets the caller that the request's token names. OK also where no token is asked for.
grpc::Status identify_caller(const HttpServerState& server, const HttpRoute& route,
                             HttpRequest& request);

// A line of the log: what no call's line will tell of.
void log_refusal(const HttpRequest& request, const std::string& peer, int http_status);
// Logs the exception that is being handled, likewise.
void log_exception(const std::string& peer) noexcept;

}  // namespace lintel
