#include "server/core/work_threads.h"

#include <utility>

#include "server/core/thread_failures.h"

namespace lintel {

WorkThreads::WorkThreads(int threads, std::size_t most_queued) : most_queued_(most_queued) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work_until_closed(); });
}

WorkThreads::~WorkThreads() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool WorkThreads::run(std::function<void()> work) {
  if (threads_.empty()) {
    work();
    return true;
  }
  MutexLock lock(mutex_);
  if (queue_.size() >= most_queued_) return false;
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return true;
}

std::size_t WorkThreads::queued() const {
  MutexLock lock(mutex_);
  return queue_.size();
}

void WorkThreads::work_until_closed() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closing_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    survives(ServerThread::kStoreWork, work);
    work = nullptr;  // what it held goes before the next comes
  }
}

}  // namespace lintel
