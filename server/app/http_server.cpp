#include "server/app/http_server.h"

#include <utility>

#include "server/http/connect/routes.h"
#include "server/http/kserve/routes.h"
#include "server/http/openai/routes.h"
#include "server/http/transport/body_work.h"
#include "server/http/transport/http_listener.h"
#include "server/http/transport/http_routes.h"
#include "server/http/transport/inner_calls.h"
#include "server/http/ui/routes.h"

namespace lintel {

struct HttpServer::Impl {
  explicit Impl(Parts parts)
      : calls(std::move(parts.calls), std::move(parts.inner_key)),
        bodies(parts.options.memory_bytes, parts.counters),
        listener({parts.options, routes, std::move(parts.certificates), parts.tokens,
                  parts.max_body_bytes, parts.counters, std::move(parts.replica_id), parts.max_age,
                  parts.max_age_grace}) {
    add_connect_routes(routes, calls, bodies);
    add_kserve_routes(routes, calls, bodies);
    add_openai_routes(routes, calls, bodies);
    add_page_routes(routes);
  }

  HttpRoutes routes;
  InnerCalls calls;
  BodyWork bodies;
  HttpListener listener;
};

HttpServer::HttpServer(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->listener.port(); }

void HttpServer::start() { impl_->listener.start(); }

void HttpServer::begin_drain() {
  impl_->listener.begin_drain();
  impl_->bodies.begin_drain();
}

void HttpServer::flush(std::chrono::nanoseconds timeout) {
  impl_->listener.wait_until_closed(timeout);
}

bool HttpServer::stop(std::chrono::nanoseconds timeout) {
  impl_->listener.stop();
  impl_->bodies.stop();
  return impl_->calls.stop(timeout);
}

}  // namespace lintel
