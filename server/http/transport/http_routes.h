// SPDX-License-Identifier: Apache-2.0
// HttpRoutes: which function answers which path.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/transport/http_message.h"

namespace lintel {

// Runs on a thread of HTTP's and must not block; answers now or later. An exception is a 500.
using HttpHandler = std::function<void(const SharedExchange&)>;
// Makes the handler of the messages of one WebSocket, one after the other: each is the body of an
// exchange, whose request is the handshake's. The handler writes frames, see websocket.h; of an
// answer only the body is sent. Runs on a thread of HTTP's and must not block.
using HttpSocketOpener = std::function<HttpHandler(const HttpRequest& handshake)>;
// An error in the shape that a route's clients read. `http_status`: what the answer should have.
using HttpRefusal =
    std::function<HttpAnswer(const HttpRequest&, int http_status, const grpc::Status&)>;

// {"code": "not_found", "message": ...}, for what is no protocol's.
HttpAnswer plain_refusal(const HttpRequest& request, int http_status, const grpc::Status& status);

// The part of a protocol beside its messages, as its clients expect it.
struct HttpProtocol {
  // The path that the protocol's routes are below: "/v1". Paths below it without a route are
  // refused in this protocol's shape. Empty: that of every path that no other protocol has.
  std::string path = {};
  // Headers that may carry the caller's token, in lower case; the first that is there counts.
  // "authorization" has it as `Bearer TOKEN`, another header as it is.
  std::vector<std::string> token_headers = {"authorization"};
  // Headers of its answers that pages of other origins may read, beside those of every protocol.
  std::vector<std::string> exposed_headers = {};
  // Errors that are made before a handler is called: no route, no token, a body that is too long,
  // a server that drains.
  HttpRefusal refuse = plain_refusal;
  // A piece that a silent stream writes from time to time; empty: none.
  std::string keep_alive = {};
};
// The token of a request; empty: it has none.
std::string_view token_of(const HttpRequest& request, const HttpProtocol& protocol);

struct HttpRoute {
  std::string method;  // "GET", which answers HEAD too, "POST", ...
  // "/v2/models/{}/infer": {} stands for one segment that is not empty, {*} at the end for all the
  // rest, which is not empty.
  std::string path;
  HttpHandler handle;
  // Replaces its protocol's; empty: that is used.
  HttpRefusal refuse = {};
  bool is_open = false;  // answers without a token, too
  // Opens a WebSocket for a GET with `Upgrade: websocket`; null: the header is ignored.
  HttpSocketOpener open_socket = {};
  // Refuses a message before its handler is called: the body is a frame.
  HttpRefusal refuse_message = {};
  bool answers_at_start = false;  // before the server has started, too
};

// Filled before the listener starts, constant from then on.
class HttpRoutes {
 public:
  // Takes the place of a route of the same method and path.
  void add(HttpRoute route);
  // `protocol` outlives the object.
  void add(const HttpProtocol& protocol);

  struct Found {
    const HttpRoute* route = nullptr;     // null: there is none
    std::vector<std::string> parameters;  // percent-decoded
    std::string allowed;                  // no route, but with these methods there is: "GET, POST"
    const HttpRoute* other = nullptr;     // one of those: its shape of errors is the path's
  };
  // A path without {} wins over one with it, then the earlier added.
  Found find(std::string_view method, std::string_view path) const;
  // The protocol of a path, which may have no route: the one added with the longest path that fits,
  // or a default HttpProtocol if none does.
  const HttpProtocol& protocol_of(std::string_view path) const;
  // The routes in the order in which they were added, for tests. Valid until another is added.
  std::vector<const HttpRoute*> all() const;
  // Headers that pages of other origins may read, of all protocols, separated by commas.
  std::string exposed_headers() const;

 private:
  struct Entry {
    HttpRoute route;
    std::vector<std::string> segments;
  };
  std::vector<Entry> entries_;
  std::vector<const HttpProtocol*> protocols_;
};

// Decodes %41 as A. Other text stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace lintel
