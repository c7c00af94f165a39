#include "server/metrics_endpoint.h"

#include <CivetServer.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lintel {
namespace {

struct Answer {
  int code = 200;
  std::string text;
  const char* type = "text/plain; charset=utf-8";
};

// Answers GET with what a function says.
class Page final : public CivetHandler {
 public:
  explicit Page(std::function<Answer()> answer) : answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const Answer answer = answer_();
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
              "Cache-Control: no-store\r\n\r\n",
              answer.code, answer.code == 200 ? "OK" : "Service Unavailable", answer.type,
              answer.text.size());
    mg_write(connection, answer.text.data(), answer.text.size());
    return true;
  }

 private:
  const std::function<Answer()> answer_;
};

std::vector<std::string> server_options(const ListenAddress& address) {
  return {"listening_ports",    address.to_string(address.port),
          "num_threads",        "2",
          "request_timeout_ms", "5000"};
}

}  // namespace

struct MetricsEndpoint::Impl {
  Impl(const ListenAddress& address, const prometheus::Collectable& collectable,
       std::function<bool()> is_ready)
      : metrics([&collectable] {
          return Answer{200, prometheus::TextSerializer().Serialize(collectable.Collect()),
                        "text/plain; version=0.0.4; charset=utf-8"};
        }),
        healthz([] {
          return Answer{200, "ok\n"};
        }),
        readyz([is_ready = std::move(is_ready)] {
          return is_ready() ? Answer{200, "ready\n"} : Answer{503, "not ready\n"};
        }),
        server(server_options(address)) {
    server.addHandler("/metrics$", metrics);
    server.addHandler("/healthz$", healthz);
    server.addHandler("/readyz$", readyz);
  }

  Page metrics, healthz, readyz;  // before the server, which calls them
  CivetServer server;
};

MetricsEndpoint::MetricsEndpoint(const ListenAddress& address,
                                 const prometheus::Collectable& metrics,
                                 std::function<bool()> ready) {
  try {
    impl_ = std::make_unique<Impl>(address, metrics, std::move(ready));
  } catch (const CivetException& error) {
    throw std::runtime_error("cannot listen on " + address.to_string(address.port) +
                             " for metrics: " + error.what());
  }
}

MetricsEndpoint::~MetricsEndpoint() = default;

int MetricsEndpoint::port() const { return impl_->server.getListeningPorts().at(0); }

}  // namespace lintel
