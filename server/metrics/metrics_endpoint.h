// MetricsEndpoint: /metrics, /healthz and /readyz over HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/core/listen_address.h"

namespace prometheus {
class Collectable;
}

namespace lintel {

// /metrics in Prometheus' text format; /healthz is 200 while the process is of use, /readyz while
// new calls are taken, else 503. Everything else is 404: no file is served. Has 14
// threads of its own, so that a few slow clients do not delay others.
class MetricsEndpoint {
 public:
  // `metrics` and what the functions refer to outlive the object. They are called by any thread;
  // one that throws is answered with 500. `hosts`: by which names it may be called besides those of
  // this machine, see HostRules; others are 403. Throws std::runtime_error when the address cannot
  // be listened on.
  MetricsEndpoint(const ListenAddress& address, const prometheus::Collectable& metrics,
                  std::function<bool()> alive, std::function<bool()> ready,
                  std::vector<std::string> hosts);
  ~MetricsEndpoint();

  int port() const;

 private:
  struct Impl;  // keeps civetweb out of this header
  std::unique_ptr<Impl> impl_;
};

}  // namespace lintel
