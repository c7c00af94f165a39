#include "server/web/port/http_listener.h"

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

#include "server/base/mutex.h"
#include "server/log/request_id.h"
#include "server/port/listener.h"
#include "server/web/port/http_connection.h"
#include "server/web/port/peer_address.h"
#include "server/web/port/response_head.h"
#include "server/web/port/tls_contexts.h"

namespace lintel {
namespace asio = boost::asio;

struct HttpListener::Impl {
  explicit Impl(const Parts& parts)
      : origins(parts.options.cors_origins, parts.options.listen->is_local()),
        house{parts.options,        parts.routes,   origins,         parts.tokens,
              parts.max_body_bytes, parts.counters, parts.replica_id},
        tls(parts.certificates == nullptr ? nullptr
                                          : std::make_unique<TlsContexts>(parts.certificates)),
        io(parts.options.threads),
        // The system's own bound, for clients that are not there, comes after ours for slow ones.
        listener(*parts.options.listen, 2 * parts.options.write_timeout_ms) {
    if (tls != nullptr) tls->current();  // what OpenSSL does not take is told now
  }

  void accept(int fd) EXCLUDES(mutex) {
    const PeerAddress peer = peer_of(fd);
    house.counters.accepted.fetch_add(1);
    if (!enter(peer.host)) {
      house.counters.refused.fetch_add(1);
      refuse(fd);
      return;
    }
    try {
      auto connection =
          make_http_connection(io, fd, tls == nullptr ? nullptr : tls->current(), peer.text, house);
      const HttpConnection* const key = connection.get();
      {
        const MutexLock lock(mutex);
        connections.emplace(key, connection);
      }
      connection->start([this, key, host = peer.host] { leave(key, host); });
    } catch (const std::exception& error) {
      spdlog::warn("an HTTP connection could not be served: {}", error.what());
      leave(nullptr, peer.host);
    }
  }

  // Counts a connection in, unless there are as many as there may be.
  bool enter(const std::string& host) EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (open >= house.options.max_connections) return false;
    if (!host.empty() && clients[host] >= house.options.max_client_connections) return false;
    ++open;
    house.counters.connections.store(open);
    if (!host.empty()) ++clients[host];
    return true;
  }

  void leave(const HttpConnection* key, const std::string& host) EXCLUDES(mutex) {
    std::shared_ptr<HttpConnection> last;  // let go behind the lock
    const MutexLock lock(mutex);
    if (const auto found = connections.find(key); found != connections.end()) {
      last = std::move(found->second);
      connections.erase(found);
    }
    if (const auto client = clients.find(host); client != clients.end() && --client->second == 0) {
      clients.erase(client);
    }
    --open;
    house.counters.connections.store(open);
    if (open == 0) none_open.notify_all();
  }

  // One connection too many hears why, unless it would have to be told through TLS.
  void refuse(int fd) const {
    if (tls == nullptr) {
      const HttpAnswer answer = plain_refusal(
          {}, 503, grpc::Status(grpc::UNAVAILABLE, "too many connections, try again later"));
      const std::string text = ResponseHead{answer,
                                            {{"retry-after", "1"}},
                                            request_id_from({}),
                                            /*keep_alive=*/false,
                                            /*http_10=*/false,
                                            house.replica_id}
                                   .whole() +
                               answer.body;
      [[maybe_unused]] const ssize_t sent =
          ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    ::close(fd);
  }

  std::vector<std::shared_ptr<HttpConnection>> all() EXCLUDES(mutex) {
    std::vector<std::shared_ptr<HttpConnection>> copies;
    const MutexLock lock(mutex);
    for (const auto& [key, connection] : connections) copies.push_back(connection);
    return copies;
  }

  const OriginRules origins;
  HttpHouse house;
  const std::unique_ptr<TlsContexts> tls;  // null: plain text
  Mutex mutex;
  CondVar none_open;
  int open GUARDED_BY(mutex) = 0;
  std::map<std::string, int> clients GUARDED_BY(mutex);  // connections of an address
  asio::io_context io;
  // After the io_context, whose parts they hold.
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
  impl_->work.emplace(impl_->io.get_executor());
  for (int i = 0; i < impl_->house.options.threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->io.run(); });
  }
  impl_->listener.start([this](int fd) { impl_->accept(fd); });
}

void HttpListener::begin_drain() {
  impl_->house.draining = true;
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
  impl_->house.draining = true;
  impl_->listener.stop();
  for (const auto& connection : impl_->all()) connection->close();
  wait_until_closed(std::chrono::seconds(1));
  impl_->work.reset();
  impl_->io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace lintel
