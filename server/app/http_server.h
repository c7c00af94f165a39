// HttpServer: all routes over HTTP, on one port.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <string>

#include "server/http/transport/http_counters.h"
#include "server/http/transport/http_options.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"

namespace lintel {

// Makes calls to the gRPC server within this process, and is stopped after that server: then no
// call is left to answer. Threads: one starts, drains and stops it.
class HttpServer {
 public:
  struct Parts {
    const HttpOptions& options;                  // with an address to listen on
    std::shared_ptr<grpc::Channel> calls;        // to the gRPC server in this process
    std::string inner_key;                       // CallGate::inner_key
    std::shared_ptr<Certificates> certificates;  // null: plain text
    const BearerTokens* tokens = nullptr;        // null: none is asked for
    std::size_t max_body_bytes = 0;
    HttpCounters& counters;
    std::string replica_id = {};  // for every answer's header lintel-replica; empty: none
    std::chrono::milliseconds max_age{0}, max_age_grace{0};  // as ConnectionOptions has them
  };
  // What `parts` refer to outlives the object. Throws std::runtime_error where the address cannot
  // be listened on.
  explicit HttpServer(Parts parts);
  ~HttpServer();

  int port() const;
  void start();
  // Takes no more connections; those that are open close with the answers that they wait for.
  void begin_drain();
  // Waits until they have, at most this long.
  void flush(std::chrono::nanoseconds timeout);
  // Ends all connections. Returns whether all calls have ended within `timeout`: the gRPC server
  // has to have been shut down before. If not, the object must not be destroyed.
  bool stop(std::chrono::nanoseconds timeout);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lintel
