// SPDX-License-Identifier: Apache-2.0
// HttpRoutes: which function answers which path.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/transport/http_message.h"

namespace lintel {

// Runs on a thread of HTTP's and must not block; answers now or later. What it throws is a 500.
using HttpHandler = std::function<void(const SharedExchange&)>;
// Makes what answers the messages of one WebSocket, one after the other: each is the body of an
// exchange, whose request is the handshake's. What the handler writes are frames, see websocket.h;
// of an answer only the body is sent. Runs on a thread of HTTP's and must not block.
using HttpSocketOpener = std::function<HttpHandler(const HttpRequest& handshake)>;
// An error in the shape that a route's clients read. `http_status`: what the answer should have.
using HttpRefusal =
    std::function<HttpAnswer(const HttpRequest&, int http_status, const grpc::Status&)>;

struct HttpRoute {
  std::string method;  // "GET", which answers HEAD too, "POST", ...
  // "/v2/models/{}/infer": {} stands for one segment that is not empty, {*} at the end for all the
  // rest.
  std::string path;
  HttpHandler handle;
  // Of what is refused before `handle` is called: no token, a body that is too long. Empty:
  // Connect's shape, {"code": ..., "message": ...}.
  HttpRefusal refuse = {};
  bool is_open = false;  // answers without a token, too
  // A GET with `Upgrade: websocket`; null: as one without.
  HttpSocketOpener open_socket = {};
  // Of a message that is refused before its handler is called: the body is a frame.
  HttpRefusal refuse_message = {};
};

// Filled before the listener starts, constant from then on.
class HttpRoutes {
 public:
  // REQUIRES: no route has the same method and path.
  void add(HttpRoute route);
  // Errors of `path` and of all below it have this shape where no route has one: of unknown paths,
  // other methods, and what is refused before a route is looked for. `path`: "/v1".
  void shape_below(std::string path, HttpRefusal refuse);

  struct Found {
    const HttpRoute* route = nullptr;     // null: there is none
    std::vector<std::string> parameters;  // percent-decoded
    std::string allowed;                  // no route, but with these methods there is: "GET, POST"
  };
  // A path without {} wins over one with it, then the earlier added.
  Found find(std::string_view method, std::string_view path) const;
  // The shape of errors of a path without a route: plain_refusal where shape_below() says nothing.
  HttpRefusal shape_of(std::string_view path) const;

 private:
  struct Entry {
    HttpRoute route;
    std::vector<std::string> segments;
  };
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, HttpRefusal>> shapes_;  // by the path that they begin with
};

// %41 as A. What is no such code stays as it is.
std::string percent_decoded(std::string_view text);

// Connect's: {"code": "not_found", "message": ...}.
HttpAnswer plain_refusal(const HttpRequest& request, int http_status, const grpc::Status& status);

}  // namespace lintel
