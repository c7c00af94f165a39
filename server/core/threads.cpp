// SPDX-License-Identifier: Apache-2.0
#include "server/core/threads.h"

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

namespace lintel {

WorkThreads::WorkThreads(int threads, std::size_t most_queued) : most_queued_(most_queued) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work_until_closed(); });
  } catch (...) {  // those that run are joined before the object goes
    close();
    throw;
  }
}

WorkThreads::~WorkThreads() { close(); }

void WorkThreads::close() {
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

namespace {

// Microseconds of a period that all threads have together.
int cores_of(double quota, double period) {
  constexpr double kMost = 1 << 20;
  if (!(quota > 0.0) || !(period > 0.0)) return 0;
  const double cores = std::min(quota / period, kMost);
  const int whole = static_cast<int>(cores);
  return whole < cores ? whole + 1 : whole;
}

}  // namespace

// Linux, Documentation/admin-guide/cgroup-v2.rst ("cpu.max") and scheduler/sched-bwc.rst. A
// container sees its own group at the root.
int cores_of_quota(const std::filesystem::path& root) {
  double quota = 0.0, period = 0.0;
  if (std::ifstream file(root / "cpu.max"); file >> quota >> period) return cores_of(quota, period);
  std::ifstream quota_file(root / "cpu" / "cpu.cfs_quota_us");
  std::ifstream period_file(root / "cpu" / "cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period) return cores_of(quota, period);
  return 0;
}

int usable_cores() {
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int quota = cores_of_quota("/sys/fs/cgroup");
  return quota > 0 ? std::min(processors, quota) : processors;
}

}  // namespace lintel
