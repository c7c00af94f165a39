// SPDX-License-Identifier: Apache-2.0
// ActiveCalls: counts running streams, and refuses new ones once closed.
#pragma once

#include <atomic>
#include <chrono>
#include <utility>

#include "server/core/mutex.h"

namespace lintel {

// Thread-safe.
class ActiveCalls {
 public:
  // Counts a call in. False, and nothing counted, once closed.
  bool enter() {
    MutexLock lock(mutex_);
    if (closed_) return false;
    ++count_;
    mirror_.store(count_, std::memory_order_relaxed);
    return true;
  }

  void leave() {
    MutexLock lock(mutex_);
    if (--count_ == 0) none_left_.notify_all();
    mirror_.store(count_, std::memory_order_relaxed);
  }

  // Counts an open call that may be inactive, as a stream of requests is between them: a drain does
  // not wait for it, but the server ends only after it.
  void hold() {
    MutexLock lock(mutex_);
    ++held_;
  }

  void release() {
    MutexLock lock(mutex_);
    if (--held_ == 0) none_left_.notify_all();
  }

  // Refuses new calls from now on. Running calls continue.
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }

  // The number of running calls. Takes no lock.
  int count() const { return mirror_.load(std::memory_order_relaxed); }

  // Waits until no call is left, or for `timeout`. True if none is left. `also_held`: waits for
  // held calls, too.
  bool wait_until_none(std::chrono::nanoseconds timeout, bool also_held = false) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mutex_);
    while (count_ > 0 || (also_held && held_ > 0)) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) return false;
      none_left_.wait_for(mutex_, left);
    }
    return true;
  }

 private:
  mutable Mutex mutex_;
  CondVar none_left_;
  int count_ GUARDED_BY(mutex_) = 0;
  std::atomic<int> mirror_{0};  // of count_
  int held_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Counts a call in while it lives. Move-only.
class ActiveCall {
 public:
  ActiveCall() = default;  // none
  // False, and nothing counted, once closed. `calls` outlives the object.
  explicit ActiveCall(ActiveCalls& calls) : calls_(calls.enter() ? &calls : nullptr) {}
  ActiveCall(ActiveCall&& other) noexcept : calls_(std::exchange(other.calls_, nullptr)) {}
  ActiveCall& operator=(ActiveCall&& other) noexcept {
    std::swap(calls_, other.calls_);
    other.leave();
    return *this;
  }
  ~ActiveCall() { leave(); }

  explicit operator bool() const { return calls_ != nullptr; }
  void leave() {
    if (ActiveCalls* const calls = std::exchange(calls_, nullptr)) calls->leave();
  }

 private:
  ActiveCalls* calls_ = nullptr;
};

}  // namespace lintel
