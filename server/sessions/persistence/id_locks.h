// IdLocks: one thread at a time for each session.
#pragma once

#include <set>
#include <string>

#include "server/core/mutex.h"

namespace lintel {

// Thread-safe. For threads that may wait.
class IdLocks {
 public:
  class Hold {
   public:
    Hold(IdLocks& locks, const std::string& id) : locks_(locks) {
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
    IdLocks& locks_;
    std::set<std::string>::iterator held_;
  };

 private:
  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> held_ GUARDED_BY(mutex_);
};

}  // namespace lintel
