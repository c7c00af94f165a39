// SPDX-License-Identifier: Apache-2.0
// Mutex, MutexLock and CondVar: the standard ones, annotated so that clang checks who holds what.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>

// Clang's thread-safety attributes (-Wthread-safety); nothing under other compilers. Abseil, which
// gRPC brings along, defines some of the same names with the same meaning: the first one stands.

#if defined(__clang__)
#define LINTEL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LINTEL_THREAD_ATTRIBUTE(x)
#endif

#ifndef CAPABILITY
#define CAPABILITY(x) LINTEL_THREAD_ATTRIBUTE(capability(x))
#endif
#ifndef SCOPED_CAPABILITY
#define SCOPED_CAPABILITY LINTEL_THREAD_ATTRIBUTE(scoped_lockable)
#endif
#ifndef GUARDED_BY
#define GUARDED_BY(x) LINTEL_THREAD_ATTRIBUTE(guarded_by(x))
#endif
#ifndef PT_GUARDED_BY
#define PT_GUARDED_BY(x) LINTEL_THREAD_ATTRIBUTE(pt_guarded_by(x))
#endif
#ifndef REQUIRES
#define REQUIRES(...) LINTEL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#endif
#ifndef EXCLUDES
#define EXCLUDES(...) LINTEL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#endif
#ifndef ACQUIRE
#define ACQUIRE(...) LINTEL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#endif
#ifndef RELEASE
#define RELEASE(...) LINTEL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#endif
#ifndef NO_THREAD_SAFETY_ANALYSIS
#define NO_THREAD_SAFETY_ANALYSIS LINTEL_THREAD_ATTRIBUTE(no_thread_safety_analysis)
#endif

namespace lintel {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits may end early: callers loop on what they wait for.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void wait_for(Mutex& mutex, std::chrono::nanoseconds timeout) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, timeout);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// KeyedMutex: one thread at a time for each session.

// Thread-safe. For threads that may wait.
class KeyedMutex {
 public:
  class Hold {
   public:
    Hold(KeyedMutex& locks, const std::string& id) : locks_(locks) {
      MutexLock lock(locks_.mutex_);
      while (locks_.held_.contains(id)) locks_.changed_.wait(locks_.mutex_);
      held_ = locks_.held_.insert(id).first;
    }
    ~Hold() {
      MutexLock lock(locks_.mutex_);
      locks_.held_.erase(held_);
      locks_.changed_.notify_all();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    KeyedMutex& locks_;
    std::set<std::string>::iterator held_;
  };

 private:
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> held_ GUARDED_BY(mutex_);
};

}  // namespace lintel
