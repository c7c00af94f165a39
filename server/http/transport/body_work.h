// SPDX-License-Identifier: Apache-2.0
// BodyWork: reads request bodies, and begins what they ask for, without delaying other connections.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/core/json_reader.h"
#include "server/core/mutex.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// A short body is read by the thread that brings it, in a millisecond or so; a longer one by a
// thread of the object's, while HTTP's threads serve others. Those threads also begin the call that
// a long body becomes: rendering and tokenizing it takes longer than reading. Callers take turns:
// by their identity, or where they have none by the address of their connection. So a caller with
// many bodies delays another by one body for each thread. A body counts among
// HttpCounters::body_bytes, with what its reader charges to the budget. A reading ends when its
// client goes, and all do when the server drains.
//
// Thread-safe but for stop().
class BodyWork {
 public:
  static constexpr std::size_t kShortBytes = 32 << 10;

  // memory_bytes: the most that all bodies may hold, with those that are being received. `counters`
  // outlive the object.
  BodyWork(std::int64_t memory_bytes, HttpCounters& counters);
  ~BodyWork();  // stop(), for as long as it takes
  BodyWork(const BodyWork&) = delete;
  BodyWork& operator=(const BodyWork&) = delete;

  // Reads the body, and answers or begins the call that will. Returns an error if it did neither.
  using Read = std::function<grpc::Status(std::string body, JsonBudget& budget)>;
  // Answers with an error.
  using Refuse = std::function<void(const grpc::Status&)>;
  // Hands the exchange's body to `read`, now or later. `refuse` then answers with the error that it
  // returns, or with the exception that it throws, as a status.
  void read(const SharedExchange& exchange, Read read, Refuse refuse);

  // Runs `work` later, on a thread of the object's, in the turn of the request's caller; `bytes`
  // count as a body's until it has run. It gets UNAVAILABLE where the server drains by that time.
  // False: the object has stopped, and `work` does not run. `work` does not throw.
  using Work = std::function<void(const grpc::Status& status)>;
  bool run_in_turn(const HttpRequest& request, std::size_t bytes, Work work) EXCLUDES(mutex_);

  // Ends bodies that are being read and those that come later, with UNAVAILABLE. May be called from
  // any thread.
  void begin_drain() EXCLUDES(mutex_);
  // Ends what waits, and returns whether all has ended within `timeout`: reading ends soon, but
  // what a call begins with may take longer. If so, nothing runs afterwards. Idempotent; one
  // thread.
  bool stop(std::chrono::nanoseconds timeout) EXCLUDES(mutex_);

 private:
  class Budget;
  struct Reading {
    SharedExchange exchange;
    std::string body;
    Read read;
    Refuse refuse;
    std::shared_ptr<Budget> budget;
  };
  using Job = std::function<void()>;  // does not throw
  static constexpr int kThreads = 2;

  static void run(Reading reading) noexcept;
  // False, and nothing added, once stopped.
  bool add(std::string caller, Job job) EXCLUDES(mutex_);
  Job take() REQUIRES(mutex_);  // REQUIRES: there is one
  void work() EXCLUDES(mutex_);
  void end_threads() EXCLUDES(mutex_);

  const std::int64_t memory_bytes_;
  HttpCounters& counters_;
  std::atomic<bool> draining_{false};
  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar changed_, ended_;
  std::map<std::string, std::deque<Job>> jobs_ GUARDED_BY(mutex_);  // by caller; none is empty
  std::deque<std::string> turns_ GUARDED_BY(mutex_);                // of those callers
  int working_ GUARDED_BY(mutex_) = kThreads;                       // threads that have not ended
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
