// SPDX-License-Identifier: Apache-2.0
// Throughput of a server, and waiting times of clients that stream from it at the same time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/sequences.h"
#include "client/lib/channel.h"
#include "lintel/v1/session.pb.h"
#include "model/transformer.h"
#include "server/app/lintel_server.h"

namespace lintel::bench {

// A server in this process, on a loopback port of the system's choice.

class OwnServer {
 public:
  struct Options {
    int workers = 1;
    int rows = 16;  // of a worker's step
    Speculation speculation = Speculation::kAuto;
    bool http = false;                      // also over HTTP
    std::filesystem::path chat_template{};  // empty: the model has no chats
    std::filesystem::path session_store{};  // empty: sessions are in memory alone
  };

  OwnServer(std::shared_ptr<const Transformer> model, const Options& options);
  std::string address() const { return server_.address(); }
  std::string http_address() const { return server_.http_address(); }  // REQUIRES: with http

 private:
  const SteadyClock clock_;
  LintelServer server_;
};

struct ThroughputOptions {
  std::string address;  // HOST:PORT or unix:PATH
  bool http = false;    // over HTTP, in plain text, at HOST:PORT
  Tls tls;
  std::string token;      // see Client::Options
  std::string model;      // may be empty where one is served
  SequencePlan sequence;  // of every call
  bool chat = false;      // calls are chat completions; bytes of their answers are counted
  // Drawn every time, by a bias on its logit: a text that repeats. None: tokens of the model.
  std::optional<std::int32_t> only_token;
  int clients = 1;             // each with a connection of its own
  int tokens_per_message = 0;  // 0: the server coalesces
  // Each sequence is a session's, of this durability; absent: a call's alone.
  std::optional<v1::Durability> durability;
  std::chrono::duration<double> warm_up{0.5};
  std::chrono::duration<double> window{2};  // the measured time, at least
};

struct Throughput {
  double seconds = 0;  // length of the window
  double tokens_per_second = 0;
  int clients_begun = 0;                       // had a token when the window began
  std::vector<double> first_token_seconds;     // of calls that began in the window
  std::vector<double> between_tokens_seconds;  // between messages of a stream
  // Resources of this process in the window: its CPU, and the bytes it passed to write() and its
  // like, which are files, and 8 bytes for each time that a thread is woken. Sockets are not among
  // them.
  double cpu_seconds = 0;
  double bytes_written = 0;
};

// The time for which a client tries to connect. A first attempt may fail though the server listens:
// gRPC 1.51 asks for connect()'s errno after it has taken locks, and a process's first wait for one
// of them looks for a file of the kernel's that is not everywhere, which leaves ENOENT behind.
constexpr std::chrono::seconds kConnectTime{10};

// The time for which the window waits for clients that have had no token yet when the warm-up is
// over, and for the messages with which it begins and ends.
constexpr std::chrono::seconds kBeginTime{10};

// MessageWindow: the time whose messages count.

// A window that begins with a message and ends before one. A step of the server gives all streams a
// token at about the same time, so the window holds nearly whole steps. One of a fixed length, e.g.
// of eight steps and a half, would count eight or nine. Thread-safe.
class MessageWindow {
 public:
  using Clock = std::chrono::steady_clock;

  // The next message is the first one of the window, or the first one after it. Without any for
  // `longest` the edge is where the wait ends. Returns it.
  Clock::time_point begin_with_message(Clock::duration longest) {
    return wait_for_message(begin_, longest);
  }
  Clock::time_point end_before_message(Clock::duration longest) {
    return wait_for_message(end_, longest);
  }
  // Ends the waits: there will be no more messages.
  void give_up();
  // A message has come: whether the window holds it.
  bool note_message(Clock::time_point now);
  bool holds(Clock::time_point time) const {
    const Clock::rep at = time.time_since_epoch().count();
    return begin_.load() <= at && at < end_.load();
  }
  bool is_over() const { return Clock::now().time_since_epoch().count() >= end_.load(); }

 private:
  Clock::time_point wait_for_message(std::atomic<Clock::rep>& edge, Clock::duration longest);
  void set(std::atomic<Clock::rep>& edge, Clock::time_point at);

  static constexpr Clock::rep kNever = std::numeric_limits<Clock::rep>::max();
  std::atomic<Clock::rep> begin_{kNever}, end_{kNever};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool given_up_ = false;
  std::atomic<std::atomic<Clock::rep>*> edge_{nullptr};  // set by the next message; null: none
};

// Every client connects, before the window. Then it generates whole sequences, one call after the
// other, until the window is over; then what still runs is cancelled. The window begins after the
// warm-up, when every client has had a token. Throws CallError when a call fails,
// std::invalid_argument as make_channel.
Throughput measure_throughput(const ThroughputOptions& options);

}  // namespace lintel::bench
