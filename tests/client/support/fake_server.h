// SPDX-License-Identifier: Apache-2.0
// A server of lintel.v1 without a model: its tokens are a function of seed and position, and it
// fails as a test sets it. To be scored, ids have to be of the vocabulary.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/lib/client.h"

namespace lintel::testing {

// The fake server's token at a position with a seed, and the probability it reports.
std::int32_t fake_token(std::uint64_t seed, std::int64_t position, std::int32_t vocab_size = 256);
float fake_log2_prob(std::uint64_t seed, std::int64_t position);

class FakeServer {
 public:
  FakeServer();  // serves on a port of its own
  ~FakeServer();

  const std::string& address() const { return address_; }
  Client client(std::chrono::milliseconds deadline = std::chrono::seconds(20)) const;

  // All calls end and all connections close; then none can be made until restart(). Not for
  // handlers.
  void stop();
  // On the same port.
  void restart();

  // Its behaviour. Set before the calls it concerns.
  v1::Model model;                      // an image model of 6x5, start token 0
  std::vector<v1::Model> others;        // loaded beside it: then it has to be named
  std::vector<v1::Model> unloaded;      // known, and not loaded: NOT_FOUND by name
  std::optional<grpc::Status> failure;  // of every call but health
  int full_for_calls = 0;               // this many Generate and Score calls find a full queue
  bool hang = false;                    // Generate sends one chunk and waits for cancellation
  bool hang_health = false;             // so does Check, which sends nothing
  int finish_before_hanging = 0;        // this many Generate calls end before one hangs
  int values_before_hanging = 1;        // a token is a chunk
  bool end_before_hanging = false;      // the sample ends; the stream alone hangs
  std::deque<grpc::Status> refusals;    // of the next Generate calls, one each
  v1::Session session;                  // the sessions' values beside their defaults
  v1::FinishReason finish_reason = v1::FINISH_REASON_LENGTH;
  bool end_early = false;         // streams end with OK before everything was sent
  std::int32_t first_token = -1;  // >= 0: sent in place of the first sampled token
  std::int64_t window = 0;        // of calls, as their ends tell it
  std::int64_t window_restarts = 0;
  bool serving = true;

  // Requests that it saw.
  std::vector<v1::GenerateRequest> generate_requests() const;
  std::vector<v1::ScoreRequest> score_requests() const;
  // Calls about copies of sessions and named states: "Fork id: \"abc\" count: 2".
  std::vector<std::string> copy_requests() const;
  int session_gets() const;
  std::chrono::system_clock::time_point last_deadline() const;
  struct Seen {  // of the last call
    std::string model, token, affinity;
  };
  Seen last_seen() const;
  void wait_until_hanging();    // a Generate call has sent its chunk
  void wait_until_cancelled();  // and noticed that the client has gone

 private:
  struct Services;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_ = "127.0.0.1:0";
};

}  // namespace lintel::testing
