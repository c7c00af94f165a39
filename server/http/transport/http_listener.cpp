// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/http_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/core/mutex.h"
#include "server/grpc/listener.h"
#include "server/http/transport/http_connection.h"
#include "server/http/transport/response_head.h"
#include "server/http/transport/tls_contexts.h"
#include "server/observability/logging.h"
#include "server/rpc/status.h"

namespace lintel {

namespace asio = boost::asio;
namespace {

// The address that a connection comes from.
struct PeerAddress {
  std::string text;  // as gRPC writes it: "ipv4:127.0.0.1:40000", "ipv6:[::1]:40000", "unix:"
  std::string host;  // without the port; empty of a unix socket
};

PeerAddress peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {"unknown", ""};
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
    return {"ipv4:" + std::string(text) + ":" + std::to_string(ntohs(ipv4.sin_port)), text};
  }
  if (address.ss_family != AF_INET6) return {"unix:", ""};
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
    ::inet_ntop(AF_INET, &ipv6.sin6_addr.s6_addr[12], text, sizeof(text));
    return {"ipv4:" + std::string(text) + ":" + std::to_string(ntohs(ipv6.sin6_port)), text};
  }
  ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
  return {"ipv6:[" + std::string(text) + "]:" + std::to_string(ntohs(ipv6.sin6_port)), text};
}

// Closes what it still has.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Logs the exception that is being handled.
void log_caught(const char* what) noexcept {
  try {
    spdlog::error("{}: {}", what, status_of_exception().error_message());
  } catch (...) {  // there is no memory to say so, either
  }
}

}  // namespace

struct HttpListener::Impl {
  explicit Impl(const Parts& parts)
      : origins(parts.options.cors_origins, *parts.options.listen, parts.options.allowed_hosts),
        state{parts.options,    parts.routes,         origins,
              parts.tokens,     parts.max_body_bytes, parts.counters,
              parts.replica_id, parts.max_age,        parts.max_age_grace},
        tls(parts.certificates == nullptr ? nullptr
                                          : std::make_unique<TlsContexts>(parts.certificates)),
        io(parts.options.threads),
        // The system's own bound, for clients that are not there, comes after ours for slow ones.
        listener(*parts.options.listen, 2 * parts.options.write_timeout_ms, parts.uses_reserve) {
    state.started = parts.started;
    if (tls != nullptr) tls->current();  // throws now what OpenSSL does not take
  }

  // Takes the descriptor. An exception ends the connection alone.
  void accept(int fd) noexcept EXCLUDES(mutex) {
    Descriptor descriptor{fd};
    std::string host;
    const HttpConnection* key = nullptr;
    bool entered = false;
    try {
      PeerAddress peer = peer_of(fd);
      host = std::move(peer.host);
      state.counters.accepted.fetch_add(1);
      entered = enter(host);
      if (!entered) {
        state.counters.refused.fetch_add(1);
        refuse(fd);
        return;
      }
      const auto context = tls == nullptr ? nullptr : tls->current();
      descriptor.fd = -1;
      auto connection = make_http_connection(io, fd, context, std::move(peer.text), state);
      key = connection.get();
      {
        const MutexLock lock(mutex);
        connections.emplace(key, connection);
      }
      connection->start([this, key, host] { leave(key, host); });
    } catch (...) {
      state.counters.exceptions++;
      log_caught("an HTTP connection could not be served");
      if (entered) leave(key, host);
    }
    close_lost();
  }

  // A thread of the io_context. A connection's own exceptions end in its handlers; here come those
  // of Asio, which had no memory to run one.
  void run() noexcept EXCLUDES(mutex) {
    while (true) {
      try {
        io.run();
        return;
      } catch (...) {
        state.counters.exceptions++;
        log_caught("HTTP continues after an exception");
      }
      close_lost();
    }
  }

  // Closes connections that wait for what will never come.
  void close_lost() noexcept EXCLUDES(mutex) {
    if (!state.some_lost.exchange(false)) return;
    const MutexLock lock(mutex);
    for (const auto& [key, connection] : connections) {
      try {
        if (connection->is_lost()) connection->close();
      } catch (...) {
        state.some_lost = true;  // until the next time
      }
    }
  }

  // Counts a connection in, unless there are as many as there may be.
  bool enter(const std::string& host) EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (open >= state.options.max_connections) return false;
    if (!host.empty() && clients[host] >= state.options.max_client_connections) return false;
    ++open;
    state.counters.connections.store(open);
    if (!host.empty()) ++clients[host];
    return true;
  }

  void leave(const HttpConnection* key, const std::string& host) EXCLUDES(mutex) {
    std::shared_ptr<HttpConnection> last;  // released after the lock
    const MutexLock lock(mutex);
    if (const auto found = connections.find(key); found != connections.end()) {
      last = std::move(found->second);
      connections.erase(found);
    }
    if (const auto client = clients.find(host); client != clients.end() && --client->second == 0) {
      clients.erase(client);
    }
    --open;
    state.counters.connections.store(open);
    if (open == 0) none_open.notify_all();
  }

  // One connection too many receives the reason, unless it uses TLS. Closes nothing.
  void refuse(int fd) const {
    if (tls == nullptr) {
      const HttpAnswer answer = plain_refusal(
          {}, 503, grpc::Status(grpc::UNAVAILABLE, "too many connections, try again later"));
      const std::string text = ResponseHead{answer,
                                            {{"retry-after", "1"}},
                                            request_id_from({}),
                                            /*keep_alive=*/false,
                                            /*http_10=*/false,
                                            state.replica_id}
                                   .whole() +
                               answer.body;
      [[maybe_unused]] const ssize_t sent =
          ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  std::vector<std::shared_ptr<HttpConnection>> all() EXCLUDES(mutex) {
    std::vector<std::shared_ptr<HttpConnection>> copies;
    const MutexLock lock(mutex);
    for (const auto& [key, connection] : connections) copies.push_back(connection);
    return copies;
  }

  const OriginRules origins;
  HttpServerState state;
  const std::unique_ptr<TlsContexts> tls;  // null: plain text
  Mutex mutex;
  CondVar none_open;
  int open GUARDED_BY(mutex) = 0;
  std::map<std::string, int> clients GUARDED_BY(mutex);  // connections of an address
  asio::io_context io;
  // Declared after the io_context, parts of which the connections hold.
  std::unordered_map<const HttpConnection*, std::shared_ptr<HttpConnection>> connections
      GUARDED_BY(mutex);
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  Listener listener;
};

HttpListener::HttpListener(const Parts& parts) : impl_(std::make_unique<Impl>(parts)) {}

HttpListener::~HttpListener() { stop(); }

int HttpListener::port() const { return impl_->listener.port(); }

void HttpListener::start() {
  impl_->state.exposed_headers = impl_->state.routes.exposed_headers();
  impl_->work.emplace(impl_->io.get_executor());
  for (int i = 0; i < impl_->state.options.threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->run(); });
  }
  impl_->listener.start([this](int fd) { impl_->accept(fd); });
}

void HttpListener::begin_drain() {
  impl_->state.draining = true;
  impl_->listener.stop();
  for (const auto& connection : impl_->all()) connection->drain();
}

bool HttpListener::wait_until_closed(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(impl_->mutex);
  while (impl_->open > 0) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    impl_->none_open.wait_for(impl_->mutex, left);
  }
  return true;
}

void HttpListener::stop() {
  impl_->state.draining = true;
  impl_->listener.stop();
  for (const auto& connection : impl_->all()) connection->close();
  wait_until_closed(std::chrono::seconds(1));
  impl_->work.reset();
  impl_->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace lintel
