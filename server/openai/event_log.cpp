// SPDX-License-Identifier: Apache-2.0
#include "server/openai/event_log.h"

#include <algorithm>
#include <utility>

namespace lintel {
namespace {

std::size_t bytes_of(const v1::ResponseEvent& event) {
  return sizeof(event) + 2 * sizeof(std::string) + event.type().size() + event.body().size();
}

}  // namespace

void EventLog::append(const v1::ResponseEvents& events, int first) {
  if (first >= events.events_size()) return;
  {
    const MutexLock lock(mutex_);
    for (int i = first; i < events.events_size(); ++i) {
      events_.push_back(events.events(i));
      bytes_ += bytes_of(events_.back());
    }
    for (; bytes_ > kMostBytes; ++dropped_) {
      bytes_ -= bytes_of(events_.front());
      events_.pop_front();
    }
  }
  notify();
}

void EventLog::close(std::string response) {
  {
    const MutexLock lock(mutex_);
    response_ = std::move(response);
    is_closed_ = true;
  }
  notify();
}

void EventLog::follow(std::weak_ptr<Follower> follower) {
  const MutexLock lock(mutex_);
  std::erase_if(followers_, [](const auto& each) { return each.expired(); });
  followers_.push_back(std::move(follower));
}

bool EventLog::has_dropped(std::int64_t from) const {
  const MutexLock lock(mutex_);
  return from < dropped_;
}

bool EventLog::read(std::int64_t from, int most, v1::ResponseEvents& events) const {
  const MutexLock lock(mutex_);
  if (from < dropped_) return false;
  const std::int64_t size = dropped_ + static_cast<std::int64_t>(events_.size());
  const std::int64_t end = std::min<std::int64_t>(from + most, size);
  for (std::int64_t at = from; at < end; ++at) {
    *events.add_events() = events_[static_cast<std::size_t>(at - dropped_)];
  }
  const bool is_last = is_closed_ && std::max(from, end) >= size;
  if (is_last) events.set_response(response_);
  return is_last;
}

void EventLog::notify() {
  std::vector<std::weak_ptr<Follower>> followers;
  {
    const MutexLock lock(mutex_);
    followers = followers_;
  }
  for (const auto& follower : followers) {
    if (const auto there = follower.lock()) there->on_more();
  }
}

}  // namespace lintel
