// SPDX-License-Identifier: Apache-2.0
// A TCP proxy between two programs of a test, which can be a bad network.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/redis_lab/sockets.h"

namespace lintel::testing {

// Passes connections on to a target, by a thread of its own. The client connects and sends
// requests; the target sends answers. All calls are thread-safe and have taken effect, for bytes
// that come after, when they return.
class TcpProxy {
 public:
  explicit TcpProxy(Endpoint target, Endpoint listen = {});
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  Endpoint endpoint() const { return endpoint_; }

  // A cut is one of the network: connections stay open, and what was sent arrives once it is
  // healed. Clients that connect meanwhile receive nothing.
  void cut();                                 // both ways
  void cut_requests();                        // requests of clients are held
  void cut_answers();                         // requests go through, what the target sends is held
  void cut_from(const std::string& address);  // both ways, for clients at this address alone
  void heal();                                // ends all of these, and refuse()
  void delay(std::chrono::milliseconds each_way);  // of what comes from now on; 0: none

  // Connections break, as when a machine goes: all there are are reset, and until heal() new ones,
  // too.
  void refuse();
  void reset();  // the existing ones; new ones are fine

  // The next request that has this text among its bytes goes through, its answer does not come:
  // once the target starts to answer, the client's connection is reset. Counted in lost_answers().
  // The text must be sent in one piece.
  void lose_answer_to(std::string text);
  std::int64_t lost_answers() const { return lost_answers_; }
  std::int64_t connections() const { return connections_; }  // taken so far

 private:
  struct Pipe;
  struct Pair;
  struct Rules {
    bool hold_requests = false, hold_answers = false, refuse = false;
    std::set<std::string> cut_sources;
    std::chrono::milliseconds delay{0};
    std::string lose;
    std::uint64_t resets = 0;
  };

  template <class Change>
  void change(Change how);  // of the rules; returns when the thread goes by them
  void run();
  void take_client();
  void read_from(Pair& pair, bool is_request);
  void write_to(Pair& pair, bool is_request);
  bool is_held(const Pair& pair, bool is_request) const;
  void break_client(Pair& pair);

  const Endpoint target_;
  Endpoint endpoint_;
  int listener_ = -1, wake_ = -1;
  std::vector<std::unique_ptr<Pair>> pairs_;  // the thread's
  Rules rules_;                               // the thread's
  std::mutex mutex_;                          // of wanted_
  Rules wanted_;
  std::atomic<std::uint64_t> changes_{0}, seen_changes_{0};
  std::atomic<std::int64_t> lost_answers_{0}, connections_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace lintel::testing
