// SPDX-License-Identifier: Apache-2.0
// HttpConnection: one client's connection. Used by the listener only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/core/mutex.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"
#include "server/http/transport/request_head.h"
#include "server/security/bearer_tokens.h"

namespace boost::asio {
class io_context;
namespace ssl {
class context;
}
}  // namespace boost::asio

namespace lintel {

// State that all connections share; outlives them.
struct HttpServerState {
  const HttpOptions& options;
  const HttpRoutes& routes;
  const OriginRules& origins;
  const BearerTokens* tokens;  // null: none is asked for
  std::size_t max_body_bytes;
  HttpCounters& counters;
  std::string replica_id;  // empty: answers do not say
  // A connection this old takes no further request; a running one has the grace to end, then it is
  // closed: as ConnectionOptions has it for gRPC. 0: no bound.
  std::chrono::milliseconds max_age{0}, max_age_grace{0};
  std::string exposed_headers = {};  // of the routes' protocols, since the listener started
  std::atomic<bool> draining{false};
  // False: routes that do not answer at the start are refused. Null: it has started.
  const std::atomic<bool>* started = nullptr;
  // There are connections that nothing will close but HttpConnection::close(), see is_lost().
  std::atomic<bool> some_lost{false};
};

// Reads a request, has its route answer it, writes the answer, and so on with the next. Everything
// happens on the connection's strand; one timer bounds how long it waits for its client, another
// how old it gets. An exception anywhere on the way, for want of memory, ends the connection.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // `closed` is called once, from the strand, when nothing will be read or written any more.
  virtual void start(std::function<void()> closed) = 0;
  // Closes the connection as soon as no request is being answered. From any thread.
  virtual void drain() = 0;
  // Closes the connection now. From any thread.
  virtual void close() = 0;
  // True if the connection waits for an event that was lost for want of memory. From any thread.
  virtual bool is_lost() const = 0;
};

// Takes the descriptor, also when it throws. `tls`: null for plain text. `peer`: as gRPC writes it.
std::shared_ptr<HttpConnection> make_http_connection(boost::asio::io_context& io, int fd,
                                                     std::shared_ptr<boost::asio::ssl::context> tls,
                                                     std::string peer, HttpServerState& state);

}  // namespace lintel
