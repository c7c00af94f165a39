// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metrics_endpoint.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/core/threads.h"
#include "server/http/transport/response_head.h"

namespace lintel {
namespace {

HttpAnswer text_answer(int status, std::string text,
                       const char* type = "text/plain; charset=utf-8") {
  return with_retry_if_unavailable(
      {status, {{"content-type", type}, {"cache-control", "no-store"}}, std::move(text)});
}

HttpAnswer metrics_page(const prometheus::Collectable& metrics) {
  return text_answer(200, prometheus::TextSerializer().Serialize(metrics.Collect()),
                     "text/plain; version=0.0.4; charset=utf-8");
}

// In the form of llama.cpp's server.
HttpAnswer health_page(const std::string& why_not) {
  using Json = nlohmann::ordered_json;
  const Json page =
      why_not.empty()
          ? Json{{"status", "ok"}}
          : Json{{"error", {{"code", 503}, {"message", why_not}, {"type", "unavailable_error"}}}};
  return with_retry_if_unavailable(
      {why_not.empty() ? 200 : 503,
       {{"content-type", "application/json"}, {"cache-control", "no-store"}},
       page.dump()});
}

// Bounds the text of the metrics and what it is made of, while they are collected.
constexpr std::size_t kMetricsBytes = std::size_t{256} << 10;

// There are never more connections than the descriptors that Listener keeps for them.
HttpOptions options_of(const ListenAddress& address, std::vector<std::string> hosts) {
  HttpOptions options;
  options.listen = address;
  options.allowed_hosts = std::move(hosts);
  options.max_connections = options.max_client_connections = 22;
  options.header_timeout_ms = options.idle_timeout_ms = std::chrono::seconds(1);
  options.write_timeout_ms = std::chrono::seconds(10);
  return options;
}

}  // namespace

MetricsEndpoint::MetricsEndpoint(const ListenAddress& address,
                                 const prometheus::Collectable& metrics,
                                 std::function<bool()> alive, std::function<bool()> ready,
                                 std::vector<std::string> hosts)
    : options_(options_of(address, std::move(hosts))),
      listener_({.options = options_,
                 .routes = routes_,
                 .certificates = nullptr,
                 .counters = counters_,
                 .uses_reserve = true}) {
  const auto add = [this](const char* path, std::function<HttpAnswer()> page) {
    routes_.add({.method = "GET",
                 .path = path,
                 .handle =
                     [page = std::move(page)](const SharedExchange& exchange) {
                       HttpAnswer answer = text_answer(500, "");
                       survives(ServerThread::kMetrics, [&] { answer = page(); });
                       exchange->answer(std::move(answer));
                     },
                 .is_open = true});
  };
  add("/metrics", [&metrics] { return metrics_page(metrics); });
  add("/healthz", [alive = std::move(alive)] {
    return alive() ? text_answer(200, "ok\n") : text_answer(503, "the session store is broken\n");
  });
  add("/readyz", [ready = std::move(ready)] {
    return ready() ? text_answer(200, "ready\n") : text_answer(503, "not ready\n");
  });
  listener_.start();
}

void add_health_routes(HttpRoutes& routes, BodyWork& bodies, std::function<std::string()> unhealthy,
                       const prometheus::Collectable* metrics) {
  for (const char* const path : {"/health", "/ping"}) {
    routes.add({.method = "GET",
                .path = path,
                .handle =
                    [unhealthy](const SharedExchange& exchange) {
                      exchange->answer(health_page(unhealthy()));
                    },
                .is_open = true,
                .answers_at_start = true});
  }
  if (metrics == nullptr) return;
  // Collecting takes milliseconds, which other connections do not wait.
  routes.add({.method = "GET",
              .path = "/metrics",
              .handle = [&bodies, metrics](const SharedExchange& exchange) {
                const auto collect = [metrics, exchange](const grpc::Status& status) {
                  HttpAnswer answer = text_answer(503, status.error_message() + "\n");
                  if (status.ok()) {
                    answer = text_answer(500, "");
                    survives(ServerThread::kMetrics, [&] { answer = metrics_page(*metrics); });
                  }
                  exchange->answer(std::move(answer));
                };
                if (!bodies.run_in_turn(exchange->request(), kMetricsBytes, collect)) {
                  exchange->answer(text_answer(503, "the server is shutting down\n"));
                }
              }});
}

}  // namespace lintel
