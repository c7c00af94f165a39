// SPDX-License-Identifier: Apache-2.0
// LintelServer: models, sessions, schedulers, services and the gRPC server, put together.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "model/transformer.h"
#include "server/app/options.h"
#include "server/core/clock.h"
#include "server/core/memory_limit.h"
#include "server/engine/scheduler.h"
#include "server/sessions/session_manager.h"

namespace grpc {
class Server;
}

namespace lintel {

class HttpRoutes;

// Models by name that were loaded elsewhere: served as their version 1, their memory not counted.
using GivenModels = std::map<std::string, std::shared_ptr<const Transformer>>;

// Also used in-process by tests. The constructor makes no thread but those of HTTP and metrics, and
// those that load, unload and step models; with options.models.scheduling.workers = 0 a test steps
// scheduler() itself. Threads: start, drain and stop by one thread; the rest by any.
class LintelServer {
 public:
  // Opens the HTTP port, which answers with the server's health alone until start(). Loads the
  // models of the options and serves the given ones, too. REQUIRES: names differ; `clock` outlives
  // the server. Throws ModelError naming the model and what is wrong with it, or that the memory
  // for models would not do; std::runtime_error when certificates, tokens or the session store
  // cannot be used, or HTTP's address, unless it is the default, or the memory limit leaves too
  // little for sessions.
  LintelServer(const ServerOptions& options, const Clock& clock, const GivenModels& given = {});
  ~LintelServer();  // stop()

  // Listens and serves. Throws std::runtime_error when the address cannot be listened on.
  void start();
  // HOST:PORT with the real port, [IPv6]:PORT or unix:PATH. REQUIRES: started.
  std::string address() const;
  int port() const { return port_; }
  // The port of /metrics, which is served from the construction on. REQUIRES:
  // options.monitoring.metrics_listen.
  int metrics_port() const;
  // False: off, or the default address was taken.
  bool serves_http() const;
  // The counterparts of address() and port() for HTTP. REQUIRES: serves_http().
  std::string http_address() const;
  std::string http_url() const;  // http://HOST:PORT, or https
  int http_port() const;
  // All routes of HTTP, for tests. REQUIRES: serves_http().
  const HttpRoutes& http_routes() const;

  // Health turns NOT_SERVING and new streams and sessions are refused; running streams continue.
  void begin_drain();
  // Begins the drain, waits for running streams, and stops, within `timeout`: its last quarter, 0.2
  // to 2 seconds, is for the output that ended streams still have to send. Returns whether all
  // streams ended by themselves.
  bool drain(std::chrono::nanoseconds timeout);
  // Ends everything. Idempotent.
  void stop();

  SessionManager& store();
  // The scheduler of the model's highest version. REQUIRES: the model exists and stays loaded.
  Scheduler& scheduler(const std::string& model);

 private:
  struct Impl;  // keeps gRPC out of this header

  // Streams that end have `flush` to send their last messages.
  void stop(std::chrono::nanoseconds flush);
  void report_health();  // of the services and of every model, from now on

  const MemoryLimit limit_;  // read before models are loaded
  const ServerOptions options_;
  std::unique_ptr<Impl> impl_;
  int port_ = 0;
  bool stopped_ = false;
};

}  // namespace lintel
