// SPDX-License-Identifier: Apache-2.0
#include "bench/throughput.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "bench/chat_client.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "client/lib/client.h"
#include "lintel/v1/generation.pb.h"

namespace lintel::bench {
namespace {

ServerOptions options_of(const OwnServer::Options& options) {
  ServerOptions server;
  server.listen.port = 0;
  server.models.scheduling.workers = options.workers;
  server.models.scheduling.max_batch_rows = options.rows;
  server.models.scheduling.speculation = options.speculation;
  server.sessions.session_memory_bytes = this_machine().memory_bytes / 2;
  server.durable.store = options.session_store;
  if (!options.chat_template.empty()) {
    server.models.chat_templates = {{"model", options.chat_template}};
  }
  if (options.http) {
    server.http.listen = ListenAddress{"127.0.0.1", 0, ""};
    server.http.max_client_connections = server.http.max_connections;
  }
  return server;
}

std::uint32_t length_of(std::string_view head) {
  std::uint32_t length = 0;
  for (std::size_t i = 1; i < 5; ++i) length = length << 8 | static_cast<unsigned char>(head[i]);
  return length;
}

// A client of Generate and of chat completions over HTTP, as cheap as may be, to measure the server
// with: one connection in plain text, one stream of Connect's protocol after the other
// (application/connect+proto). Throws std::runtime_error where the server is gone or says no.
// Threads: stop by any, the rest by one.
class ConnectClient {
 public:
  explicit ConnectClient(const std::string& address) {  // HOST:PORT
    const std::size_t colon = address.rfind(':');
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
    ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &name.sin_addr);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
      ::close(fd_);
      throw std::runtime_error("cannot connect to http://" + address);
    }
  }
  ~ConnectClient() { ::close(fd_); }
  ConnectClient(const ConnectClient&) = delete;
  ConnectClient& operator=(const ConnectClient&) = delete;

  // Runs a call to its end. Returns false where it was stopped before.
  bool generate(const v1::GenerateRequest& request,
                const std::function<void(const v1::GenerateResponse&)>& on_message) {
    const std::string message = request.SerializeAsString();
    std::string framed(1, '\0');
    for (int shift = 24; shift >= 0; shift -= 8) {
      framed += static_cast<char>(message.size() >> shift & 0xff);
    }
    framed += message;
    return post("/lintel.v1.GenerationService/Generate", "application/connect+proto", framed,
                [&](std::string_view body) {
                  if (body.size() < 5 || body.size() - 5 < length_of(body)) return std::size_t{0};
                  const std::uint32_t length = length_of(body);
                  const std::string_view content = body.substr(5, length);
                  if (body[0] == 0) {
                    v1::GenerateResponse response;
                    response.ParseFromArray(content.data(), static_cast<int>(length));
                    on_message(response);
                  } else if (length > 2) {
                    throw std::runtime_error(std::string(content));
                  }
                  return std::size_t{5} + length;
                });
  }
  // The same of a chat completion; on_content receives how many bytes of the answer have come.
  bool chat(const std::string& request, const std::function<void(std::int64_t)>& on_content) {
    return post("/v1/chat/completions", "application/json", request, [&](std::string_view body) {
      const std::size_t end = body.find("\n\n");
      if (end == std::string_view::npos) return std::size_t{0};
      // A cheap approximation: an escaped character counts with its escape.
      constexpr std::string_view kContent = "\"content\":\"";
      const std::size_t at = body.substr(0, end).find(kContent);
      if (at != std::string_view::npos) {
        std::size_t last = at + kContent.size();
        while (last < end && body[last] != '"') last += body[last] == '\\' ? 2 : 1;
        on_content(static_cast<std::int64_t>(last - at - kContent.size()));
      }
      return end + 2;
    });
  }

  // Ends the call that runs, and all that would come after it.
  void stop() {
    stopped_ = true;
    ::shutdown(fd_, SHUT_RDWR);
  }

 private:
  // take: receives what has come of the answer's body and was not taken, until it takes nothing;
  // returns the bytes that it took.
  bool post(const std::string& path, const std::string& type, const std::string& request,
            const std::function<std::size_t(std::string_view)>& take_message) {
    const std::string text =
        "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + type +
        "\r\nContent-Length: " + std::to_string(request.size()) + "\r\n\r\n" + request;
    try {
      if (::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(text.size())) {
        throw std::runtime_error("the HTTP server takes no request");
      }
      if (const std::string status = take_line(); status.find(" 200 ") == std::string::npos) {
        throw std::runtime_error("the HTTP server says " + status);
      }
      while (!take_line().empty()) {
      }
      std::string body;
      while (true) {
        const std::size_t size = std::stoul(take_line(), nullptr, 16);
        body += take(size);
        take(2);
        std::size_t at = 0;
        while (const std::size_t taken = take_message(std::string_view(body).substr(at))) {
          at += taken;
        }
        body.erase(0, at);
        if (size == 0) return true;
      }
    } catch (const std::runtime_error&) {
      if (stopped_) return false;
      throw;
    }
  }

  // Makes sure that the buffer holds so many bytes.
  void need(std::size_t bytes) {
    while (buffer_.size() < bytes) {
      char piece[65536];
      const ssize_t size = ::recv(fd_, piece, sizeof(piece), 0);
      if (size <= 0) throw std::runtime_error("the HTTP server has closed the connection");
      buffer_.append(piece, static_cast<std::size_t>(size));
    }
  }

  std::string take(std::size_t bytes) {
    need(bytes);
    const std::string taken = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return taken;
  }

  std::string take_line() {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n")) == std::string::npos) need(buffer_.size() + 1);
    const std::string line = take(end + 2);
    return line.substr(0, end);
  }

  int fd_ = -1;
  std::atomic<bool> stopped_{false};
  std::string buffer_;
};

using Clock = MessageWindow::Clock;

double seconds_from(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct ProcessUse {
  double cpu_seconds = 0, bytes_written = 0;
};

ProcessUse use_of_process() {
  ProcessUse use{.cpu_seconds = process_cpu_seconds()};
  std::ifstream in("/proc/self/io");
  std::string what;
  for (double bytes = 0; in >> what >> bytes;) {
    if (what == "wchar:") use.bytes_written = bytes;
  }
  return use;
}

// Counts the clients that have had a token.
class Counted {
 public:
  void add_one() {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    more_.notify_all();
  }
  // Waits until there are as many, or until `time`. Returns how many there are.
  int wait_for(int count, Clock::time_point time) {
    std::unique_lock lock(mutex_);
    more_.wait_until(lock, time, [&] { return count_ >= count; });
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable more_;
  int count_ = 0;
};

// One client, on a thread of its own.
class StreamingClient {
 public:
  // `started` counts the clients that had a token.
  StreamingClient(const ThroughputOptions& options, std::uint64_t first_seed, Counted& started)
      : options_(options),
        begun_(started),
        seed_(first_seed),
        channel_(unshared_channel(options.address, options.tls, options.token)),
        client_(channel_, std::chrono::minutes(10), options.token),
        http_(options.http ? std::make_unique<ConnectClient>(options.address) : nullptr) {}

  // Returns when there is a connection, or none in time: the first call then says why.
  bool connect() {
    return http_ != nullptr ||
           channel_->WaitForConnected(std::chrono::system_clock::now() + kConnectTime);
  }

  // Sessions to begin with: made beforehand, so that making them is not measured.
  void make_sessions() {
    constexpr int kAhead = 4;
    while (options_.durability && ahead_.size() < kAhead) ahead_.push_back(make_session());
  }
  void delete_sessions() {
    for (const std::string& id : made_) {
      // The server may be about to end a call that was cancelled.
      for (int tries = 0; !try_delete(id) && tries < 100; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

  void run(MessageWindow& window) {
    while (!window.is_over()) {
      try {
        if (options_.chat) {
          chat(window);
        } else {
          stream(window);
        }
      } catch (const CallError& error) {
        if (error.code() == grpc::StatusCode::CANCELLED && cancellation_.cancelled()) return;
        throw;
      }
    }
  }
  void stop() {
    cancellation_.cancel();
    if (http_ != nullptr) http_->stop();
  }

  std::int64_t tokens() const { return tokens_; }
  const Throughput& seen() const { return seen_; }

 private:
  bool try_delete(const std::string& id) {
    try {
      client_.delete_session(id);
    } catch (const CallError& error) {
      if (error.code() == grpc::StatusCode::ABORTED) return false;
      throw;
    }
    return true;
  }

  std::string make_session() {
    v1::CreateSessionRequest request;
    request.set_model(options_.model);
    request.set_durability(*options_.durability);
    if (!options_.sequence.ends_itself) request.set_max_tokens(options_.sequence.tokens + 1);
    made_.push_back(client_.create_session(request).id());
    return made_.back();
  }

  void chat(MessageWindow& window) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"Tell a story."}],"stream":true,"seed":)" +
        std::to_string(seed_++) + R"(,"max_tokens":)" + std::to_string(options_.sequence.tokens) +
        "}";
    const auto on_content = [&](std::int64_t bytes) {
      if (!std::exchange(has_begun_, true)) begun_.add_one();
      if (window.note_message(Clock::now())) tokens_ += bytes;
    };
    if (http_ != nullptr) {
      http_->chat(body, on_content);
      return;
    }
    client_.complete_chat(
        body,
        [&](const v1::ChatResponse& message) {
          for (const v1::ChatDelta& delta : message.deltas()) {
            on_content(static_cast<std::int64_t>(delta.content().size()));
          }
        },
        &cancellation_);
  }

  void stream(MessageWindow& window) {
    v1::GenerateRequest request;
    if (options_.durability) {
      if (ahead_.empty()) ahead_.push_back(make_session());
      request.set_session_id(ahead_.back());
      ahead_.pop_back();
    } else {
      request.set_model(options_.model);
    }
    const SequencePlan& sequence = options_.sequence;
    if (sequence.first_token) {
      request.mutable_prompt()->mutable_tokens()->add_ids(*sequence.first_token);
    }
    if (!sequence.ends_itself) {
      request.set_max_new_tokens(static_cast<std::uint32_t>(sequence.tokens));
    }
    request.mutable_sampling()->set_seed(seed_++);
    if (options_.only_token) {
      (*request.mutable_sampling()->mutable_logit_bias())[*options_.only_token] = 100.0f;
    }
    request.set_max_tokens_per_message(static_cast<std::uint32_t>(options_.tokens_per_message));
    const Clock::time_point begin = Clock::now();
    std::optional<Clock::time_point> last;
    const auto on_chunk = [&](const v1::Chunk& chunk) {
      if (chunk.source() != v1::VALUE_SOURCE_SAMPLED) return;
      const Clock::time_point now = Clock::now();
      if (!std::exchange(has_begun_, true)) begun_.add_one();
      if (window.note_message(now)) {
        tokens_ += chunk.tokens_size();
        if (!last && window.holds(begin)) {
          seen_.first_token_seconds.push_back(seconds_from(begin, now));
        }
        if (last && window.holds(*last)) {
          seen_.between_tokens_seconds.push_back(seconds_from(*last, now));
        }
      }
      last = now;
    };
    if (http_ == nullptr) {
      client_.generate(request, on_chunk, &cancellation_);
    } else {
      http_->generate(request, [&](const v1::GenerateResponse& message) {
        for (const v1::Chunk& chunk : message.chunks()) on_chunk(chunk);
      });
    }
  }

  const ThroughputOptions& options_;
  Counted& begun_;
  bool has_begun_ = false;  // had a token
  std::uint64_t seed_;
  const std::shared_ptr<grpc::Channel> channel_;
  const Client client_;
  const std::unique_ptr<ConnectClient> http_;  // null: over gRPC
  Cancellation cancellation_;
  std::vector<std::string> made_, ahead_;  // sessions
  std::int64_t tokens_ = 0;                // in the window
  Throughput seen_;
};

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

bool MessageWindow::note_message(Clock::time_point now) {
  if (edge_.load() != nullptr) {
    const std::lock_guard lock(mutex_);
    if (std::atomic<Clock::rep>* const edge = edge_.exchange(nullptr)) {
      set(*edge, now);
      changed_.notify_all();
    }
  }
  return holds(now);
}

void MessageWindow::give_up() {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

MessageWindow::Clock::time_point MessageWindow::wait_for_message(std::atomic<Clock::rep>& edge,
                                                                 Clock::duration longest) {
  std::unique_lock lock(mutex_);
  edge_ = &edge;
  changed_.wait_for(lock, longest, [&] { return given_up_ || edge_.load() == nullptr; });
  if (edge_.exchange(nullptr) != nullptr) set(edge, Clock::now());
  return Clock::time_point(Clock::duration(edge.load()));
}

void MessageWindow::set(std::atomic<Clock::rep>& edge, Clock::time_point at) {
  const Clock::rep time = at.time_since_epoch().count();
  edge = &edge == &end_ ? std::max(time, begin_.load() + 1) : time;
}

OwnServer::OwnServer(std::shared_ptr<const Transformer> model, const Options& options)
    : server_(options_of(options), clock_, {{"model", std::move(model)}}) {
  server_.start();
}

Throughput measure_throughput(const ThroughputOptions& options) {
  Counted started;
  std::vector<std::unique_ptr<StreamingClient>> clients;
  for (int i = 0; i < options.clients; ++i) {
    clients.push_back(std::make_unique<StreamingClient>(
        options, static_cast<std::uint64_t>(i) * 1'000'000, started));
  }
  for (const auto& client : clients) {
    if (!client->connect()) break;
    client->make_sessions();
  }
  const auto warm = Clock::now() + std::chrono::duration_cast<Clock::duration>(options.warm_up);
  const auto length = std::chrono::duration_cast<Clock::duration>(options.window);
  MessageWindow window;
  std::atomic<bool> failed{false};
  std::vector<std::exception_ptr> errors(clients.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        clients[i]->run(window);
      } catch (...) {
        errors[i] = std::current_exception();
        failed = true;
        for (int all = 0; all < options.clients; ++all) started.add_one();  // ends the wait
        window.give_up();
      }
    });
  }
  Throughput result;
  std::this_thread::sleep_until(warm);
  result.clients_begun = started.wait_for(options.clients, Clock::now() + kBeginTime);
  const auto begin = window.begin_with_message(kBeginTime);
  const ProcessUse before = use_of_process();
  if (!failed) std::this_thread::sleep_until(begin + length);
  const auto end = window.end_before_message(kBeginTime);
  const ProcessUse after = use_of_process();
  for (const auto& client : clients) client->stop();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (const auto& client : clients) client->delete_sessions();
  result.cpu_seconds = after.cpu_seconds - before.cpu_seconds;
  result.bytes_written = after.bytes_written - before.bytes_written;
  std::int64_t tokens = 0;
  for (const auto& client : clients) {
    tokens += client->tokens();
    append(result.first_token_seconds, client->seen().first_token_seconds);
    append(result.between_tokens_seconds, client->seen().between_tokens_seconds);
  }
  result.seconds = seconds_from(begin, end);
  result.tokens_per_second = static_cast<double>(tokens) / result.seconds;
  return result;
}

}  // namespace lintel::bench
