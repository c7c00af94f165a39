// SPDX-License-Identifier: Apache-2.0
// Clients that end badly: killed, gone silent, or never reading.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <memory>
#include <thread>

#include "tests/chaos/chaos_server.h"
#include "tests/chaos/sockets.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr std::string_view kGenerate = "/lintel.v1.GenerationService/Generate";

std::string new_session(const ChaosServer& server) {
  grpc::ClientContext context;
  v1::Session session;
  REQUIRE(v1::SessionService::NewStub(server.channel())->Create(&context, {}, &session).ok());
  return session.id();
}

grpc::Status delete_session(const ChaosServer& server, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteSessionRequest request;
  request.set_id(id);
  google::protobuf::Empty nothing;
  return v1::SessionService::NewStub(server.channel())->Delete(&context, request, &nothing);
}

// A connection in the middle of an endless stream.
Socket in_mid_stream(int port, const std::string& request) {
  Socket socket = Socket::connect(port);
  socket.write(http2::hello() + http2::call(1, kGenerate, request));
  if (!http2::read_until(socket, http2::kData)) throw std::runtime_error("no stream");
  return socket;
}

// A process in the middle of an endless stream, which it reads until it is killed.
pid_t process_in_mid_stream(int port, const std::string& request) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const std::string bytes = http2::hello() + http2::call(1, kGenerate, request);
  const pid_t pid = fork();
  if (pid == 0) {
    try {
      const Socket socket = Socket::connect(port);
      if (socket.try_write(bytes) && http2::read_until(socket, http2::kData)) {
        [[maybe_unused]] const ssize_t written = write(pipe_ends[1], "!", 1);
        while (!socket.read_some().empty()) {
        }
      }
    } catch (...) {
    }
    pause();
    _exit(0);
  }
  close(pipe_ends[1]);
  char byte = 0;
  const bool streams = read(pipe_ends[0], &byte, 1) == 1;
  close(pipe_ends[0]);
  REQUIRE(streams);
  return pid;
}

// Between clients and a server, until it falls silent: then it forwards nothing more, in neither
// direction, and closes nothing.
class SilencedRelay {
 public:
  explicit SilencedRelay(int server_port)
      : server_port_(server_port), listener_(Socket::listen()), thread_([this] { forward(); }) {}
  ~SilencedRelay() {
    fall_silent();
    thread_.join();
  }

  int port() const { return listener_.port(); }
  void fall_silent() { silent_ = true; }

 private:
  void forward() {
    while (!silent_) {
      std::vector<pollfd> files = {{listener_.fd(), POLLIN, 0}};
      for (const Socket& socket : sockets_) files.push_back({socket.fd(), POLLIN, 0});
      poll(files.data(), files.size(), /*milliseconds=*/20);
      for (std::size_t i = 1; i < files.size(); ++i) {
        if (files[i].revents == 0) continue;
        const std::string bytes = sockets_[i - 1].read_some();
        sockets_[(i - 1) ^ 1].try_write(bytes);  // its neighbour is the other end
      }
      if (files[0].revents == 0) continue;
      sockets_.push_back(listener_.accept());
      sockets_.push_back(Socket::connect(server_port_));
    }
  }

  const int server_port_;
  const Socket listener_;
  std::vector<Socket> sockets_;
  std::atomic<bool> silent_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace

TEST_CASE("a thousand clients are killed in mid-stream") {
  constexpr int kPrograms = 10, kProcesses = 40, kConnections = 50;  // of a wave of a hundred
  ChaosServer server;
  const std::string endless = endless_request().SerializeAsString();
  int killed = 0;
  std::vector<std::string> sessions;
  const auto wave = [&] {
    std::list<Process> programs;
    std::vector<pid_t> processes;
    std::vector<Socket> connections;
    for (int i = 0; i < kPrograms; ++i) {
      programs.emplace_back(std::vector<std::string>{
          LINTEL_CLI, "generate", "--address", server.address(), "--prompt-tokens", "3",
          "--max-new-tokens", "1000000000", "--format", "tokens"});
    }
    for (int i = 0; i < kConnections; ++i) {
      if (i % 10 != 0) {
        connections.push_back(in_mid_stream(server.port(), endless));
        continue;
      }
      v1::GenerateRequest in_session = endless_request();
      in_session.clear_model();
      in_session.set_session_id(sessions.emplace_back(new_session(server)));
      connections.push_back(in_mid_stream(server.port(), in_session.SerializeAsString()));
    }
    for (int i = 0; i < kProcesses; ++i) {
      processes.push_back(process_in_mid_stream(server.port(), endless));
    }
    for (Process& program : programs) program.read_out_until(",");
    for (Process& program : programs) program.send(SIGKILL);
    for (const pid_t process : processes) kill(process, SIGKILL);
    for (Socket& connection : connections) connection.reset();
    for (const pid_t process : processes) waitpid(process, nullptr, 0);
    killed += kPrograms + kProcesses + kConnections;
  };
  const auto clean_up = [&] {
    // Only what nothing uses can be deleted.
    for (const std::string& id : sessions) {
      CHECK(eventually([&] { return delete_session(server, id).ok(); }));
    }
    sessions.clear();
    CHECK(eventually([&] { return server.metric("lintel_streams") == 0; }));
  };
  wave();
  clean_up();
  server.take_baseline();
  for (int i = 0; i < 9; ++i) wave();
  clean_up();
  server.check_recovered(std::to_string(killed) + " clients killed in mid-stream");
  CHECK(killed == 1000);
  CHECK(server.stop() == 0);
}

TEST_CASE("clients that vanish silently are detected, and their memory is released",
          "[threat-49]") {
  ChaosServer server({.flags = {"--keepalive-time", "1s", "--keepalive-timeout", "1s"}});
  constexpr int kClients = 20;
  const auto vanish = [&] {
    SilencedRelay relay(server.port());
    struct Client {
      grpc::ClientContext context;
      std::shared_ptr<grpc::Channel> channel;
      std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    };
    std::list<Client> clients;
    std::vector<Socket> idle;  // connections without a call
    const std::string address = "127.0.0.1:" + std::to_string(relay.port());
    for (int i = 0; i < kClients; ++i) {
      Client& client = clients.emplace_back();
      client.channel = new_channel(address);
      client.reader = v1::GenerationService::NewStub(client.channel)
                          ->Generate(&client.context, endless_request());
      v1::GenerateResponse message;
      REQUIRE(client.reader->Read(&message));
      idle.push_back(Socket::connect(relay.port()));
      idle.back().write(http2::hello());
      REQUIRE(http2::read_until(idle.back(), http2::kSettings));
    }
    CHECK(eventually([&] { return server.metric("lintel_streams") == kClients; }));
    relay.fall_silent();
    // The sockets stay open on this side: the server learns of it by unanswered pings alone.
    CHECK(eventually([&] { return server.metric("lintel_streams") == 0; }));
    CHECK(eventually([&] { return server.metric("lintel_requests_running") == 0; }));
    CHECK(eventually([&] {
      return server.metric("lintel_session_bytes", "one_shot") == 0 &&
             server.usage().descriptors <= server.baseline().descriptors;
    }));
    for (Client& client : clients) client.context.TryCancel();
  };
  vanish();
  server.take_baseline();
  vanish();
  server.check_recovered(std::to_string(2 * kClients) + " half-open connections with a stream, " +
                         std::to_string(2 * kClients) + " without");
}

TEST_CASE("a client that never reads is paused, and affects no other") {
  // Pings would end such clients, too: here they do not come.
  ChaosServer server({.flags = {"--keepalive-time", "10m", "--keepalive-timeout", "10m"}});
  constexpr int kClients = 10;  // of each kind
  v1::GenerateRequest request = endless_request();
  request.set_top_log2_probs(20);  // much to send
  const std::string bytes = request.SerializeAsString();
  std::size_t most_rss = 0;
  const auto stop_reading = [&] {
    std::vector<Socket> clients;
    for (int i = 0; i < kClients; ++i) {
      // HTTP/2's flow control stops one kind of stream, the connection's buffers the other.
      for (const std::uint32_t window : {65535u, 0x7fffffffu}) {
        clients.push_back(Socket::connect(server.port(), /*receive_buffer_bytes=*/4096));
        clients.back().write(http2::hello(window) + http2::call(1, kGenerate, bytes));
      }
    }
    CHECK(eventually([&] { return server.metric("lintel_streams") == 2 * kClients; }));
    // All of them are paused once no more tokens come.
    CHECK(eventually([&] {
      const double before = server.metric("lintel_tokens_total", "generated");
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return before > 0 && server.metric("lintel_tokens_total", "generated") == before;
    }));
    for (int i = 0; i < 20; ++i) {
      CHECK(server.generate_reference() == server.reference());
      most_rss = std::max(most_rss, server.usage().rss_bytes);
    }
    CHECK(eventually([&] { return server.metric("lintel_streams") == 2 * kClients; }));
    for (Socket& client : clients) client.reset();
    CHECK(eventually([&] { return server.metric("lintel_streams") == 0; }));
  };
  stop_reading();
  server.take_baseline();
  most_rss = 0;
  stop_reading();
  // Each client has an outbox of 4,096 tokens with 20 alternatives, some 2 MB, besides gRPC's own
  // buffers.
  CHECK(most_rss <= server.baseline().rss_bytes + 2 * kClients * std::size_t{4 << 20});
  server.check_recovered(std::to_string(4 * kClients) + " clients that never read, at most " +
                         std::to_string(most_rss >> 20) + " MiB with 20 of them");
}

}  // namespace lintel::testing
