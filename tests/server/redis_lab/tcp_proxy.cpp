// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/tcp_proxy.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <system_error>

namespace lintel::testing {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
constexpr std::size_t kMostWaiting = 1 << 20;  // bytes one way, then the sender waits

void close_with_reset(int& socket) {
  if (socket < 0) return;
  const linger none{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  close(socket);
  socket = -1;
}

}  // namespace

// One direction of a connection.
struct TcpProxy::Pipe {
  struct Piece {
    SteadyTime due;
    std::string bytes;
  };
  std::deque<Piece> pieces;
  std::size_t waiting = 0;        // bytes in pieces
  bool has_ended = false;         // the sender has closed its side
  bool end_is_passed_on = false;  // and the receiver knows
};

struct TcpProxy::Pair {
  int client = -1, target = -1;
  std::string source;  // the client's address
  Pipe requests, answers;
  bool loses_answer = false;

  Pipe& pipe(bool is_request) { return is_request ? requests : answers; }
  int from(bool is_request) const { return is_request ? client : target; }
  int to(bool is_request) const { return is_request ? target : client; }
  bool is_over() const {
    return target < 0 || (client < 0 && answers.has_ended) ||
           (requests.end_is_passed_on && answers.end_is_passed_on);
  }
  ~Pair() {
    if (client >= 0) close(client);
    if (target >= 0) close(target);
  }
};

TcpProxy::TcpProxy(Endpoint target, Endpoint listen)
    : target_(std::move(target)),
      listener_(listen_at(listen)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  endpoint_ = local_endpoint(listener_);
  fcntl(listener_, F_SETFL, O_NONBLOCK);
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  over_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  close(listener_);
  close(wake_);
}

template <class Change>
void TcpProxy::change(Change how) {
  std::uint64_t mine;
  {
    const std::lock_guard lock(mutex_);
    how(wanted_);
    mine = ++changes_;
  }
  eventfd_write(wake_, 1);
  for (std::uint64_t seen; (seen = seen_changes_) < mine;) seen_changes_.wait(seen);
}

void TcpProxy::cut() {
  change([](Rules& rules) { rules.hold_requests = rules.hold_answers = true; });
}
void TcpProxy::cut_requests() {
  change([](Rules& rules) { rules.hold_requests = true; });
}
void TcpProxy::cut_answers() {
  change([](Rules& rules) { rules.hold_answers = true; });
}
void TcpProxy::cut_from(const std::string& address) {
  change([&](Rules& rules) { rules.cut_sources.insert(address); });
}
void TcpProxy::heal() {
  change([](Rules& rules) {
    rules.hold_requests = rules.hold_answers = rules.refuse = false;
    rules.cut_sources.clear();
  });
}
void TcpProxy::delay(std::chrono::milliseconds each_way) {
  change([&](Rules& rules) { rules.delay = each_way; });
}
void TcpProxy::refuse() {
  change([](Rules& rules) {
    rules.refuse = true;
    ++rules.resets;
  });
}
void TcpProxy::reset() {
  change([](Rules& rules) { ++rules.resets; });
}
void TcpProxy::lose_answer_to(std::string text) {
  change([&](Rules& rules) { rules.lose = std::move(text); });
}

bool TcpProxy::is_held(const Pair& pair, bool is_request) const {
  return (is_request ? rules_.hold_requests : rules_.hold_answers) ||
         rules_.cut_sources.contains(pair.source);
}

void TcpProxy::take_client() {
  auto pair = std::make_unique<Pair>();
  pair->client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (pair->client < 0) return;
  ++connections_;
  pair->source = remote_endpoint(pair->client).address;
  const int on = 1;
  setsockopt(pair->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  try {
    if (rules_.refuse) throw std::system_error(ECONNREFUSED, std::generic_category());
    // From the same address: the target, too, may go by it.
    pair->target = connect_to(target_, pair->source);
    fcntl(pair->target, F_SETFL, O_NONBLOCK);
    pairs_.push_back(std::move(pair));
  } catch (const std::system_error&) {  // no server listens
    close_with_reset(pair->client);
  }
}

void TcpProxy::read_from(Pair& pair, bool is_request) {
  Pipe& pipe = pair.pipe(is_request);
  std::array<char, 65536> bytes;
  const ssize_t got = recv(pair.from(is_request), bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    pipe.has_ended = true;
    return;
  }
  if (pair.loses_answer && !is_request) {
    break_client(pair);
    return;
  }
  std::string piece(bytes.data(), static_cast<std::size_t>(got));
  if (is_request && !rules_.lose.empty() && piece.find(rules_.lose) != std::string::npos) {
    pair.loses_answer = true;
    rules_.lose.clear();
    const std::lock_guard lock(mutex_);
    wanted_.lose.clear();
  }
  pipe.waiting += piece.size();
  pipe.pieces.push_back({std::chrono::steady_clock::now() + rules_.delay, std::move(piece)});
}

// Bytes that the client has sent are still read by the target, to their end: they must have gone
// through.
void TcpProxy::break_client(Pair& pair) {
  if (pair.client < 0) return;
  ++lost_answers_;
  close_with_reset(pair.client);
  pair.requests.has_ended = true;
}

void TcpProxy::write_to(Pair& pair, bool is_request) {
  Pipe& pipe = pair.pipe(is_request);
  const int to = pair.to(is_request);
  if (to < 0) {  // a broken client's answers
    pipe.pieces.clear();
    pipe.waiting = 0;
    return;
  }
  const SteadyTime now = std::chrono::steady_clock::now();
  while (!pipe.pieces.empty() && pipe.pieces.front().due <= now) {
    std::string& bytes = pipe.pieces.front().bytes;
    const ssize_t sent = send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      pipe.pieces.clear();
      pipe.waiting = 0;
      pair.requests.has_ended = pair.answers.has_ended = true;
      break;
    }
    pipe.waiting -= static_cast<std::size_t>(sent);
    bytes.erase(0, static_cast<std::size_t>(sent));
    if (!bytes.empty()) return;
    pipe.pieces.pop_front();
  }
  if (pipe.pieces.empty() && pipe.has_ended && !pipe.end_is_passed_on) {
    shutdown(to, SHUT_WR);
    pipe.end_is_passed_on = true;
  }
}

void TcpProxy::run() {
  std::uint64_t resets = 0;
  std::vector<pollfd> files;
  while (!over_) {
    {
      const std::lock_guard lock(mutex_);
      rules_ = wanted_;
      seen_changes_ = changes_.load();
    }
    if (resets != rules_.resets) {
      resets = rules_.resets;
      for (auto& pair : pairs_) {
        close_with_reset(pair->client);
        close_with_reset(pair->target);
      }
      pairs_.clear();
    }
    seen_changes_.notify_all();

    files = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    int timeout = -1;
    const SteadyTime now = std::chrono::steady_clock::now();
    for (const auto& pair : pairs_) {
      for (const bool is_request : {true, false}) {
        const Pipe& pipe = pair->pipe(is_request);
        const bool held = is_held(*pair, is_request);
        const bool reads = !held && !pipe.has_ended && pipe.waiting < kMostWaiting;
        files.push_back({reads ? pair->from(is_request) : -1, POLLIN, 0});
        const bool has_more = !held && !pipe.pieces.empty();
        const auto wait = has_more ? pipe.pieces.front().due - now : SteadyTime::duration::zero();
        if (has_more && wait > SteadyTime::duration::zero()) {
          const int ms =
              static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
          timeout = timeout < 0 ? ms : std::min(timeout, ms);
          files.push_back({-1, 0, 0});
        } else {
          files.push_back({has_more ? pair->to(is_request) : -1, POLLOUT, 0});
        }
      }
    }
    poll(files.data(), files.size(), timeout);
    eventfd_t count;
    eventfd_read(wake_, &count);
    std::size_t next = 2;
    for (const auto& pair : pairs_) {
      for (const bool is_request : {true, false}) {
        if (files[next].revents != 0 && pair->from(is_request) >= 0) read_from(*pair, is_request);
        next += 2;
        if (!is_held(*pair, is_request)) write_to(*pair, is_request);
      }
    }
    std::erase_if(pairs_, [](const auto& pair) { return pair->is_over(); });
    if (files[1].revents != 0) take_client();
  }
}

}  // namespace lintel::testing
