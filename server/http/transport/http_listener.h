// SPDX-License-Identifier: Apache-2.0
// HttpListener: the server's HTTP port.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"

namespace lintel {

// HTTP/1.1 for any number of connections by a few threads (HttpOptions::threads, and one that
// accepts). Bounds what a connection may hold: its headers, its body, its share of the memory of
// all bodies, the time for each of them, and some tens of KiB of its answer. An exception, for want
// of memory, ends a connection and no thread.
//
// Threads: start, begin_drain and stop by one thread.
class HttpListener {
 public:
  struct Parts {
    const HttpOptions& options;  // with an address to listen on
    const HttpRoutes& routes;
    std::shared_ptr<Certificates> certificates;  // null: plain text
    const BearerTokens* tokens = nullptr;        // null: none is asked for
    std::size_t max_body_bytes = 0;              // of a request
    HttpCounters& counters;
    std::string replica_id = {};  // of every answer; empty: they do not say
    std::chrono::milliseconds max_age{0}, max_age_grace{0};  // of a connection, see HttpServerState
    bool uses_reserve = false;                               // see Listener
    // False until all routes answer: see HttpRoute::answers_at_start. Null: they do.
    const std::atomic<bool>* started = nullptr;
  };

  // REQUIRES: the objects that `parts` refers to outlive this one. Throws std::runtime_error if the
  // address cannot be listened on.
  explicit HttpListener(const Parts& parts);
  ~HttpListener();  // stop()

  int port() const;  // 0 of a unix socket
  void start();
  // Takes no more connections and closes those without a request; the others close with their
  // answer.
  void begin_drain();
  // Waits for the connections to close. Returns whether they have.
  bool wait_until_closed(std::chrono::nanoseconds timeout);
  // Closes what is open. No function of a route runs afterwards. Idempotent.
  void stop();

 private:
  struct Impl;  // keeps Boost out of this header
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lintel
