#include "server/scheduler/request_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace lintel {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::int64_t ticks(std::optional<TimePoint> time) {
  return time ? static_cast<std::int64_t>(time->time_since_epoch().count()) : kNever;
}

}  // namespace

RequestQueue::RequestQueue(std::size_t capacity, int num_workers, std::size_t capacity_bytes)
    : capacity_(capacity),
      capacity_bytes_(capacity_bytes),
      next_deadline_(kNever),
      running_rows_(static_cast<std::size_t>(std::max(num_workers, 1))) {}

RequestQueue::Push RequestQueue::push(std::unique_ptr<RunningRequest>& request) {
  Requests node(1);  // what memory it takes is asked for before anything is changed
  {
    MutexLock lock(mutex_);
    if (closed_) return Push::kClosed;
    if (queue_.size() >= capacity_) return Push::kFull;
    const std::size_t bytes = request->held_bytes();
    if (!queue_.empty() && bytes > capacity_bytes_ - std::min(queued_bytes_, capacity_bytes_)) {
      return Push::kFull;
    }
    const int rows = request->slots();
    node.front() = std::move(request);
    queue_.splice(queue_.end(), node);
    queued_rows_ += rows;
    queued_bytes_ += bytes;
    size_.store(queue_.size());
    next_deadline_.store(std::min(next_deadline_.load(), ticks(queue_.back()->deadline())));
    if (queue_.back()->control().cancelled.load()) may_hold_cancelled_.store(true);
    wakes_.fetch_add(1);
  }
  woken_.notify_all();
  return Push::kAccepted;
}

int RequestQueue::saving_worker() const {
  const auto emptiest = std::ranges::min_element(
      running_rows_, {}, [](const std::atomic<int>& rows) { return rows.load(); });
  return static_cast<int>(emptiest - running_rows_.begin());
}

std::unique_ptr<RunningRequest> RequestQueue::pop(int worker, int max_rows) {
  if (size_.load() == 0) return nullptr;
  std::unique_ptr<RunningRequest> request = take_next(worker, max_rows);
  if (request != nullptr) waiting_room_.tell();
  return request;
}

std::unique_ptr<RunningRequest> RequestQueue::take_next(int worker, int max_rows) {
  MutexLock lock(mutex_);
  std::atomic<int>& own_rows = running_rows_[static_cast<std::size_t>(worker)];
  int load = queued_rows_;
  for (const std::atomic<int>& rows : running_rows_) load += rows.load();
  const int num_workers = static_cast<int>(running_rows_.size());
  const int share = (load + num_workers - 1) / num_workers;
  if (own_rows.load() >= share) return nullptr;
  const int free_rows = max_rows - own_rows.load();
  const auto fits = [&](const auto& request) { return request->slots() <= free_rows; };
  auto next = queue_.begin();
  if (next != queue_.end() && !fits(*next)) {
    if (saving_worker() == worker) return nullptr;
    next = std::find_if(std::next(next), queue_.end(), fits);
  }
  if (next == queue_.end()) return nullptr;
  std::unique_ptr<RunningRequest> request = std::move(*next);
  queue_.erase(next);
  queued_rows_ -= request->slots();
  queued_bytes_ -= request->held_bytes();
  own_rows.fetch_add(request->slots());
  update_mirrors();
  return request;
}

RequestQueue::Requests RequestQueue::take_lost(TimePoint now) noexcept {
  Requests lost;
  if (size_.load() == 0) return lost;
  if (!may_hold_cancelled_.load() && ticks(now) < next_deadline_.load()) return lost;
  {
    MutexLock lock(mutex_);
    may_hold_cancelled_.store(false);  // before looking: a later cancel sets it again
    for (auto it = queue_.begin(); it != queue_.end();) {
      const auto next = std::next(it);
      if ((*it)->lost(now)) {
        queued_rows_ -= (*it)->slots();
        queued_bytes_ -= (*it)->held_bytes();
        lost.splice(lost.end(), queue_, it);
      }
      it = next;
    }
    update_mirrors();
  }
  if (!lost.empty()) waiting_room_.tell();
  return lost;
}

RequestQueue::Requests RequestQueue::take_all() noexcept {
  Requests all;
  MutexLock lock(mutex_);
  all.swap(queue_);
  queued_rows_ = 0;
  queued_bytes_ = 0;
  update_mirrors();
  return all;
}

void RequestQueue::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  waiting_room_.tell();
}

bool RequestQueue::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

void RequestQueue::update_mirrors() {
  std::int64_t earliest = kNever;
  for (const auto& request : queue_) earliest = std::min(earliest, ticks(request->deadline()));
  next_deadline_.store(earliest);
  size_.store(queue_.size());
}

std::optional<TimePoint> RequestQueue::next_deadline() const {
  const std::int64_t deadline = next_deadline_.load();
  if (deadline == kNever) return std::nullopt;
  return TimePoint(Duration(deadline));
}

void RequestQueue::note_cancel() {
  may_hold_cancelled_.store(true);
  wake();
}

void RequestQueue::wake() {
  {
    MutexLock lock(mutex_);
    wakes_.fetch_add(1);
  }
  woken_.notify_all();
}

void RequestQueue::call_idle(std::size_t workers) {
  {
    MutexLock lock(mutex_);
    wakes_.fetch_add(1);
  }
  for (; workers > 0; --workers) woken_.notify_one();
}

void RequestQueue::wait(std::uint64_t seen, std::optional<TimePoint> until, const Clock& clock) {
  const std::int64_t deadline = std::min(ticks(until), next_deadline_.load());
  MutexLock lock(mutex_);
  if (deadline == kNever) {
    while (wakes_.load() == seen) woken_.wait(mutex_);
  } else if (wakes_.load() == seen) {
    const std::int64_t left = deadline - ticks(clock.now());
    if (left > 0) woken_.wait_for(mutex_, Duration(left));
  }
}

}  // namespace lintel
