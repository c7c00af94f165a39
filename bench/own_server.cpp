#include "bench/own_server.h"

#include "bench/machine.h"

namespace lintel::bench {
namespace {

ServerOptions options_of(const OwnServer::Options& options) {
  ServerOptions server;
  server.listen.port = 0;
  server.models.scheduling.workers = options.workers;
  server.models.scheduling.max_batch_rows = options.rows;
  server.models.scheduling.speculation = options.speculation;
  server.sessions.session_memory_bytes = this_machine().memory_bytes / 2;
  server.durable.store = options.session_store;
  if (options.http) {
    server.http.listen = ListenAddress{"127.0.0.1", 0, ""};
    server.http.max_client_connections = server.http.max_connections;
  }
  return server;
}

}  // namespace

OwnServer::OwnServer(std::shared_ptr<const Transformer> model, const Options& options)
    : server_(options_of(options), clock_, {{"model", std::move(model)}}) {
  server_.start();
}

}  // namespace lintel::bench
