#include "server/metrics/metrics_endpoint.h"

#include <CivetServer.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/core/threads.h"

namespace lintel {
namespace {

struct Answer {
  int code = 200;
  std::string text;
  const char* type = "text/plain; charset=utf-8";
};

const char* reason_of(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 403:
      return "Forbidden";
    case 500:
      return "Internal Server Error";
    default:
      return "Service Unavailable";
  }
}

// Answers GET with what a function says.
class Page final : public CivetHandler {
 public:
  Page(const HostRules& hosts, std::function<Answer()> answer)
      : hosts_(hosts), answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    // No exception may leave: the caller is C.
    Answer answer{500, "", "text/plain; charset=utf-8"};
    survives(ServerThread::kMetrics, [&] {
      const char* const host = mg_get_header(connection, "Host");
      answer = host == nullptr || hosts_.takes(host)
                   ? answer_()
                   : Answer{403, "this host name is not allowed: --http-allowed-host adds names\n"};
    });
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
              "Cache-Control: no-store\r\n\r\n",
              answer.code, reason_of(answer.code), answer.type, answer.text.size());
    mg_write(connection, answer.text.data(), answer.text.size());
    return true;
  }

 private:
  const HostRules& hosts_;
  const std::function<Answer()> answer_;
};

// A connection has a thread until its request is there: slow ones hold them for a second at most,
// and a probe waits behind few. With those that wait for a thread there are never more than the
// descriptors that Listener keeps for them.
std::vector<std::string> server_options(const ListenAddress& address) {
  return {"listening_ports",    address.to_string(address.port),
          "num_threads",        "14",
          "connection_queue",   "8",
          "request_timeout_ms", "1000"};
}

// All that civetweb says while it starts, in the thread that starts it: its exception knows no
// reason.
thread_local std::string* start_messages = nullptr;

int keep_message(const mg_connection*, const char* message) {
  if (start_messages != nullptr) *start_messages += message;
  return 1;  // it is not logged by civetweb
}

CivetCallbacks callbacks() {
  CivetCallbacks callbacks;
  callbacks.log_message = &keep_message;
  return callbacks;
}

}  // namespace

struct MetricsEndpoint::Impl {
  Impl(const ListenAddress& address, const prometheus::Collectable& collectable,
       std::function<bool()> is_alive, std::function<bool()> is_ready,
       std::vector<std::string> names)
      : hosts(address, std::move(names)),
        metrics(hosts,
                [&collectable] {
                  return Answer{200, prometheus::TextSerializer().Serialize(collectable.Collect()),
                                "text/plain; version=0.0.4; charset=utf-8"};
                }),
        healthz(hosts,
                [is_alive = std::move(is_alive)] {
                  return is_alive() ? Answer{200, "ok\n"}
                                    : Answer{503, "the session store is broken\n"};
                }),
        readyz(hosts,
               [is_ready = std::move(is_ready)] {
                 return is_ready() ? Answer{200, "ready\n"} : Answer{503, "not ready\n"};
               }),
        server(server_options(address), &civet_callbacks) {
    server.addHandler("/metrics$", metrics);
    server.addHandler("/healthz$", healthz);
    server.addHandler("/readyz$", readyz);
  }

  const HostRules hosts;
  Page metrics, healthz, readyz;  // before the server, which calls them
  const CivetCallbacks civet_callbacks = callbacks();
  CivetServer server;
};

MetricsEndpoint::MetricsEndpoint(const ListenAddress& address,
                                 const prometheus::Collectable& metrics,
                                 std::function<bool()> alive, std::function<bool()> ready,
                                 std::vector<std::string> hosts) {
  std::string messages;
  start_messages = &messages;
  try {
    impl_ = std::make_unique<Impl>(address, metrics, std::move(alive), std::move(ready),
                                   std::move(hosts));
    start_messages = nullptr;
  } catch (const CivetException& error) {
    start_messages = nullptr;
    // "cannot bind to ADDRESS: 98 (Address already in use)"
    const auto reason = messages.rfind('(');
    throw std::runtime_error("cannot listen on " + address.to_string(address.port) +
                             " for metrics: " +
                             (reason == std::string::npos
                                  ? error.what()
                                  : messages.substr(reason + 1, messages.rfind(')') - reason - 1)));
  }
}

MetricsEndpoint::~MetricsEndpoint() = default;

int MetricsEndpoint::port() const { return impl_->server.getListeningPorts().at(0); }

}  // namespace lintel
