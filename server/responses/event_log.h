// SPDX-License-Identifier: Apache-2.0
// EventLog: the events of one response, for those that follow it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lintel/v1/response.pb.h"
#include "server/core/mutex.h"

namespace lintel {

// Filled by the call that generates, read by any number of others, from any event on. Thread-safe.
class EventLog {
 public:
  class Follower {
   public:
    virtual ~Follower() = default;
    // There is more, or the log is closed. By the thread that fills it, without a lock.
    virtual void on_more() = 0;
  };

  // Those of `events` from `first` on.
  void append(const v1::ResponseEvents& events, int first = 0) EXCLUDES(mutex_);
  // No more come. response: the whole as JSON; empty where there is none.
  void close(std::string response) EXCLUDES(mutex_);
  // It is notified from now on.
  void follow(std::weak_ptr<Follower> follower) EXCLUDES(mutex_);

  // Adds the events from number `from` on to `events`, at most so many. Returns whether these are
  // the last; then `events` has the response, too.
  bool read(std::int64_t from, int most, v1::ResponseEvents& events) const EXCLUDES(mutex_);

 private:
  void notify() EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::vector<v1::ResponseEvent> events_ GUARDED_BY(mutex_);
  std::string response_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<Follower>> followers_ GUARDED_BY(mutex_);
};

}  // namespace lintel
