// MetricsEndpoint: /metrics, /healthz and /readyz over HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/base/listen_address.h"

namespace prometheus {
class Collectable;
}

namespace lintel {

// /metrics in Prometheus' text format; /healthz is 200 as long as the process answers; /readyz is
// 200 while new calls are taken, else 503. Everything else is 404: no file is served. Has 14
// threads of its own, so that a few slow clients keep nobody waiting.
class MetricsEndpoint {
 public:
  // `metrics` and what `ready` refers to outlive the object. `ready` is called by any thread.
  // `hosts`: by which names it may be called beside those of this machine, see HostRules; others
  // are 403. `exceptions` counts answers that became 500, for want of memory. Throws
  // std::runtime_error when the address cannot be listened on.
  MetricsEndpoint(const ListenAddress& address, const prometheus::Collectable& metrics,
                  std::function<bool()> ready, std::vector<std::string> hosts,
                  std::atomic<std::uint64_t>& exceptions);
  ~MetricsEndpoint();

  int port() const;

 private:
  struct Impl;  // keeps civetweb out of this header
  std::unique_ptr<Impl> impl_;
};

}  // namespace lintel
