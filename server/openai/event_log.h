// SPDX-License-Identifier: Apache-2.0
// EventLog: the events of one response, for its followers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "lintel/v1/response.pb.h"
#include "server/core/mutex.h"

namespace lintel {

// Filled by the call that generates, read by any number of others. Has the last events, up to
// kMostBytes of them: a reader of earlier ones repeats them from the stored response when that is
// over (RepeatedEvents). Thread-safe.
class EventLog {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{2} << 20;

  class Follower {
   public:
    virtual ~Follower() = default;
    // Called when there are more events, or the log is closed, by the thread that fills it, without
    // a lock.
    virtual void on_more() = 0;
  };

  // Appends the elements of `events` from `first` on.
  void append(const v1::ResponseEvents& events, int first = 0) EXCLUDES(mutex_);
  // Closes the log: no more events come. response: the whole one as JSON; empty if there is none.
  void close(std::string response) EXCLUDES(mutex_);
  // Notifies the follower from now on.
  void follow(std::weak_ptr<Follower> follower) EXCLUDES(mutex_);

  // True if event number `from` came and was dropped.
  bool has_dropped(std::int64_t from) const EXCLUDES(mutex_);
  // Adds the events from number `from` on to `events`, at most `most`; none if that one was
  // dropped. Returns true if these are the last; then `events` has the response, too.
  bool read(std::int64_t from, int most, v1::ResponseEvents& events) const EXCLUDES(mutex_);

 private:
  void notify() EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::deque<v1::ResponseEvent> events_ GUARDED_BY(mutex_);
  std::int64_t dropped_ GUARDED_BY(mutex_) = 0;  // number of dropped events
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;     // of the kept events
  std::string response_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<Follower>> followers_ GUARDED_BY(mutex_);
};

}  // namespace lintel
