// SPDX-License-Identifier: Apache-2.0
// /metrics, /healthz and /readyz on an HTTP port of their own (MetricsEndpoint); /health, /ping and
// /metrics on that of the server.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/core/listen_address.h"
#include "server/http/transport/body_work.h"
#include "server/http/transport/http_listener.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"

namespace prometheus {
class Collectable;
}

namespace lintel {

// /metrics in Prometheus' text format; /healthz is 200 while the process is of use, /readyz while
// new calls are taken, else 503. Has threads and connections of its own, so that the server's
// clients do not delay it; a connection ends a second after its last request.
class MetricsEndpoint {
 public:
  // `metrics` and what the functions refer to outlive the object. They are called by any thread;
  // one that throws is answered with 500. `hosts`: by which names it may be called besides those of
  // this machine, see HostRules; others are 403. Throws std::runtime_error when the address cannot
  // be listened on.
  MetricsEndpoint(const ListenAddress& address, const prometheus::Collectable& metrics,
                  std::function<bool()> alive, std::function<bool()> ready,
                  std::vector<std::string> hosts);

  int port() const { return listener_.port(); }

 private:
  const HttpOptions options_;
  HttpCounters counters_;
  HttpRoutes routes_;
  HttpListener listener_;
};

// Adds /health and /ping, which need no token: 200, or 503 with why no request can be served now
// (`unhealthy`; empty: some can). Both show it to strangers. And /metrics, unless `metrics` is
// null; it needs a token where tokens are asked for. All that is given outlives the routes, and is
// called by any thread.
void add_health_routes(HttpRoutes& routes, BodyWork& bodies, std::function<std::string()> unhealthy,
                       const prometheus::Collectable* metrics);

}  // namespace lintel
