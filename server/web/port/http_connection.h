// HttpConnection: one client's connection. Of the listener alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "server/auth/bearer_tokens.h"
#include "server/base/mutex.h"
#include "server/web/http_counters.h"
#include "server/web/http_options.h"
#include "server/web/http_routes.h"
#include "server/web/port/origin_rules.h"

namespace boost::asio {
class io_context;
namespace ssl {
class context;
}
}  // namespace boost::asio

namespace lintel {

// What all connections share; outlives them.
struct HttpHouse {
  const HttpOptions& options;
  const HttpRoutes& routes;
  const OriginRules& origins;
  const BearerTokens* tokens;  // null: none is asked for
  std::size_t max_body_bytes;
  HttpCounters& counters;
  std::string replica_id;  // empty: answers do not say
  std::atomic<bool> draining{false};
};

// Reads a request, has its route answer it, writes the answer, and so on with the next. Everything
// happens on the connection's strand; one timer bounds how long it waits for its client.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // `closed` is called once, from the strand, when nothing will be read or written any more.
  virtual void start(std::function<void()> closed) = 0;
  // From any thread: closes it as soon as no request is being answered.
  virtual void drain() = 0;
  // From any thread: closes it now.
  virtual void close() = 0;
};

// Takes the descriptor. `tls`: null for plain text. `peer`: as gRPC writes it.
std::shared_ptr<HttpConnection> make_http_connection(boost::asio::io_context& io, int fd,
                                                     std::shared_ptr<boost::asio::ssl::context> tls,
                                                     std::string peer, HttpHouse& house);

}  // namespace lintel
