// SPDX-License-Identifier: Apache-2.0
// A lintel-server process that faults are done to, and what it has to be like afterwards.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lintel/v1/generation.grpc.pb.h"
#include "lintel/v1/session.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// The results of a call of one sample.
struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<float> log2_probs;
  grpc::Status status;

  // The same tokens, bit for bit, of a call that ended well.
  bool operator==(const Answer& other) const {
    return status.ok() && other.status.ok() && tokens == other.tokens &&
           log2_probs == other.log2_probs;
  }
};

std::shared_ptr<grpc::Channel> new_channel(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& = grpc::InsecureChannelCredentials());

// A request of the model of tokens, with log-probabilities.
v1::GenerateRequest tokens_request(std::uint64_t seed, unsigned max_new_tokens);
// The same without an end: more tokens than anyone waits for.
v1::GenerateRequest endless_request();
Answer generate(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request);

// Resources of the process as the system sees it.
struct Usage {
  std::size_t rss_bytes = 0;
  int descriptors = 0;
};

// Serves the tiny model "tokens" by default, with two workers, on ports that the system picks. Its
// log goes to a file.
class ChaosServer {
 public:
  struct Options {
    std::vector<std::string> flags;
    std::vector<std::string> models;  // directories; none: "tokens"
    std::string max_new_tokens = "1000000000";
    bool http = false;                  // also serves HTTP, on http_port()
    std::string shell = "exec \"$@\"";  // /bin/sh's command to start the program, "$@"
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  };
  ChaosServer() : ChaosServer(Options()) {}
  explicit ChaosServer(const Options& options);
  ~ChaosServer();

  const std::string& address() const { return address_; }
  int port() const;
  int metrics_port() const { return metrics_port_; }
  int http_port() const { return http_port_; }
  pid_t pid() const { return process_->pid(); }
  // A connection that is there from the beginning.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  Usage usage() const;
  std::uint64_t cpu_ticks() const;  // used so far
  // The sum of a family's samples in /metrics whose labels hold `label`, or of all.
  double metric(const std::string& family, const std::string& label = "") const;
  std::string get(const std::string& path) const;  // over HTTP; empty when nothing answers
  std::string log() const;

  // The answer of a generation that nothing disturbs; made in the beginning.
  const Answer& reference() const { return reference_; }
  Answer generate_reference() const { return generate(channel_, reference_request()); }
  static v1::GenerateRequest reference_request() { return tokens_request(7, 60); }

  // Takes what the process uses now, and the sessions there are, for what it has to come back to.
  // To be called when the fault has been there once: pools and arenas have grown by then.
  void take_baseline();
  const Usage& baseline() const { return baseline_; }
  // Waits until memory is where it was at the baseline, but for what allocators keep.
  bool gives_memory_back() const;
  // Checks that no request is left, that memory and descriptors are back, that health, /healthz and
  // /readyz say so, and that a generation has the bits it had. Prints a line for the record:
  // `counts`, and what was used before and after.
  void check_recovered(const std::string& counts);
  bool serving() const;  // as gRPC health says, over a new connection

  // Its exit status, once it ends; and the same after SIGTERM.
  int wait() { return process_->wait(); }
  int stop();

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Process> process_;
  std::string address_;
  int metrics_port_ = 0, http_port_ = 0;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::shared_ptr<grpc::Channel> channel_;
  Answer reference_;
  Usage baseline_;
  double baseline_sessions_ = 0;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// A client that generates the reference again and again beside what others do, on a connection of
// its own.
class Neighbour {
 public:
  explicit Neighbour(const ChaosServer& server);
  ~Neighbour() { stop(); }
  void stop();  // and the counts stay

  int served() const { return served_; }
  int disturbed() const { return disturbed_; }  // of these: another answer than undisturbed

 private:
  std::atomic<bool> done_{false};
  std::atomic<int> served_{0}, disturbed_{0};
  std::thread thread_;
};

}  // namespace lintel::testing
