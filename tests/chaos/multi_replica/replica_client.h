// SPDX-License-Identifier: Apache-2.0
// ReplicaClient: a client of two replicas, and the tokens that it received.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/lib/client.h"
#include "tests/chaos/multi_replica/token_line.h"

namespace lintel::testing {

// Errors, in words for people, and the times when they were seen. Thread-safe.
class Faults {
 public:
  void add(const std::string& text);
  void add(const std::optional<std::string>& text, const std::string& where);
  bool any() const;
  std::vector<std::string> texts() const;

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

// The events of a session, as its clients saw them. Thread-safe.
class Trace {
 public:
  void add(const std::string& text);  // with the time of day
  std::string text() const;           // the last 5,000, a line each

 private:
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;
};

struct ReplicaSession {
  std::string id;
  TokenLine line;
  Trace trace;
};

// Counts of all clients together.
struct ReplicaCounts {
  std::atomic<std::int64_t> calls{0}, tokens{0}, tries{0}, cut_in_stream{0};
  std::mutex mutex;
  std::map<std::string, int> refusals;   // by code and reason
  std::chrono::milliseconds longest{0};  // call
};

// One that connects again at once. deadline: of one try of a call.
Client client_of(const std::string& address, std::chrono::milliseconds deadline);

// One call after another on sessions drawn by chance, each repeated with either replica until it
// ends.
class ReplicaClient {
 public:
  ReplicaClient(int number, std::uint64_t seed, const std::vector<std::string>& addresses,
                std::vector<ReplicaSession>& sessions, Faults& faults, ReplicaCounts& counts);

  void fight(const std::atomic<bool>& over);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Returns whether it has ended as it should.
  bool call(ReplicaSession& session, TimePoint give_up);
  bool is_worth_it(TimePoint give_up) const;
  void take(ReplicaSession& session, const v1::GenerateRequest& request, const v1::Chunk& chunk,
            std::int64_t& next);

  const std::string name_;
  std::mt19937_64 random_;
  std::vector<ReplicaSession>& sessions_;
  Faults& faults_;
  ReplicaCounts& counts_;
  std::vector<Client> clients_;
  int calls_ = 0;
};

}  // namespace lintel::testing
