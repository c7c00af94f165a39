// SPDX-License-Identifier: Apache-2.0
#include "server/engine/request_queue.h"

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

RequestQueue::RequestQueue(std::size_t capacity, int num_workers, std::size_t capacity_bytes,
                           int least_share)
    : capacity_(capacity),
      capacity_bytes_(capacity_bytes),
      least_share_(least_share),
      next_deadline_(kNever),
      running_rows_(static_cast<std::size_t>(std::max(num_workers, 1))) {}

RequestQueue::~RequestQueue() { take_all(); }

CallerTurn::~CallerTurn() {
  if (queue_ != nullptr) queue_->leave(*this);
}

bool TurnOrder::operator()(const QueuedCaller* a, const QueuedCaller* b) const {
  return a->rows != b->rows ? a->rows < b->rows : a->last_turn < b->last_turn;
}

RequestQueue::Push RequestQueue::push(std::unique_ptr<SequenceGroup>& request) {
  Requests node(1);  // what memory it takes is asked for before anything is changed
  {
    MutexLock lock(mutex_);
    const bool is_held = request->waits_for_memory();
    if (closed_ || (is_held && drops_held_.load())) return Push::kClosed;
    if (size_.load() >= capacity_) return Push::kFull;
    const std::size_t bytes = request->held_bytes();
    if (size_.load() > 0 && bytes > capacity_bytes_ - std::min(queued_bytes_, capacity_bytes_)) {
      return Push::kFull;
    }
    QueuedCaller& caller = caller_named(request->caller());
    CallerTurn& turn = request->turn();
    turn.queue_ = this;
    turn.caller_ = &caller;
    ++caller.requests;
    if (!is_held) waiting_rows_ += request->slots();
    queued_bytes_ += bytes;
    next_deadline_.store(std::min(next_deadline_.load(), ticks(request->deadline())));
    if (request->control().cancelled.load()) may_hold_cancelled_.store(true);
    node.front() = std::move(request);
    set_aside(caller);
    Requests& line = is_held ? caller.held : caller.queued;
    line.splice(line.end(), node);
    put_back(caller);
    size_.fetch_add(1);
    (is_held ? num_held_ : num_waiting_).fetch_add(1);
    wakes_.fetch_add(1);
  }
  woken_.notify_all();
  return Push::kAccepted;
}

QueuedCaller& RequestQueue::caller_named(const std::string& name) {
  const auto [at, is_new] = callers_.try_emplace(name);
  QueuedCaller& caller = at->second;
  if (!is_new) return caller;
  try {
    caller.name = &at->first;
    caller.last_turn = last_turn_ + 1;
    caller.aside = waiting_.extract(waiting_.insert(&caller).first);
  } catch (...) {
    callers_.erase(at);
    throw;
  }
  ++last_turn_;
  num_callers_.store(callers_.size());
  return caller;
}

void RequestQueue::set_aside(QueuedCaller& caller) {
  if (caller.aside.empty()) caller.aside = waiting_.extract(&caller);
}

void RequestQueue::put_back(QueuedCaller& caller) {
  if (caller.waits()) waiting_.insert(std::move(caller.aside));
}

int RequestQueue::saving_worker() const {
  const auto emptiest = std::ranges::min_element(
      running_rows_, {}, [](const std::atomic<int>& rows) { return rows.load(); });
  return static_cast<int>(emptiest - running_rows_.begin());
}

int RequestQueue::share_of_load() const {
  int load = waiting_rows_;
  for (const std::atomic<int>& rows : running_rows_) load += rows.load();
  const int num_workers = static_cast<int>(running_rows_.size());
  return std::max((load + num_workers - 1) / num_workers, least_share_);
}

bool RequestQueue::fills_another(int worker, int max_rows) const {
  const int own = running_rows_[static_cast<std::size_t>(worker)].load();
  if (waiting_.empty()) return false;
  const int wanted = (*first_of(**waiting_.begin()).at)->slots();
  return std::ranges::any_of(running_rows_, [&](const std::atomic<int>& rows) {
    const int others = rows.load();
    return others > own && others < least_share_ && others + wanted <= max_rows;
  });
}

RequestQueue::Spot RequestQueue::first_of(QueuedCaller& caller) {
  Requests& line = caller.ran.empty() ? caller.queued : caller.ran;
  return {&caller, &line, line.begin()};
}

RequestQueue::Spot RequestQueue::find_next(int worker, int free_rows) {
  const auto fits = [&](const auto& request) { return request->slots() <= free_rows; };
  if (waiting_.empty() || free_rows <= 0) return {};
  const Spot first = first_of(**waiting_.begin());
  if (fits(*first.at)) return first;
  if (saving_worker() == worker) return {};
  for (QueuedCaller* const caller : waiting_) {
    for (Requests* const line : {&caller->ran, &caller->queued}) {
      const auto at = std::ranges::find_if(*line, fits);
      if (at != line->end()) return {caller, line, at};
    }
  }
  return {};
}

std::unique_ptr<SequenceGroup> RequestQueue::pop(int worker, int max_rows) {
  if (may_hold_granted_.load() && may_hold_granted_.exchange(false)) queue_granted();
  if (num_waiting_.load() == 0) return nullptr;
  std::unique_ptr<SequenceGroup> request = take_next(worker, max_rows);
  if (request != nullptr) waiting_room_.tell();
  return request;
}

std::unique_ptr<SequenceGroup> RequestQueue::take_next(int worker, int max_rows) {
  MutexLock lock(mutex_);
  std::atomic<int>& own_rows = running_rows_[static_cast<std::size_t>(worker)];
  if (own_rows.load() >= share_of_load() || fills_another(worker, max_rows)) return nullptr;
  const Spot next = find_next(worker, max_rows - own_rows.load());
  if (next.caller == nullptr) return nullptr;
  QueuedCaller& caller = *next.caller;
  std::unique_ptr<SequenceGroup> request = std::move(*next.at);
  const int rows = request->slots();
  set_aside(caller);
  spare_.splice(spare_.end(), *next.line, next.at);
  CallerTurn& turn = request->turn();
  turn.is_out_ = true;
  turn.rows_ = rows;
  caller.rows += rows;
  caller.last_turn = ++last_turn_;
  put_back(caller);
  waiting_rows_ -= rows;
  num_waiting_.fetch_sub(1);
  if (next.line == &caller.queued) {
    queued_bytes_ -= request->held_bytes();
    size_.fetch_sub(1);
  }
  own_rows.fetch_add(rows);
  if (request->deadline() && ticks(request->deadline()) == next_deadline_.load()) {
    update_deadline();
  }
  return request;
}

SequenceGroup* RequestQueue::who_yields(int worker, int max_rows,
                                        std::span<const std::unique_ptr<SequenceGroup>> running,
                                        TimePoint now) {
  if (num_waiting_.load() == 0 || num_callers_.load() < 2) return nullptr;
  MutexLock lock(mutex_);
  if (waiting_.empty()) return nullptr;
  const QueuedCaller& waits = **waiting_.begin();
  const int wanted = (*first_of(**waiting_.begin()).at)->slots();
  const int own_rows = running_rows_[static_cast<std::size_t>(worker)].load();
  // The waiting request can be popped, here or by a worker with less to do.
  if (wanted <= max_rows - own_rows || own_rows >= share_of_load()) return nullptr;
  if (wanted > 1 && saving_worker() != worker) return nullptr;
  for (const auto& request : running) {
    if (request->slots() == 0) continue;
    request->turn().caller_->last = nullptr;
    request->turn().caller_->reads = false;
  }
  int reading_rows = 0;  // of prompts that keep their rows until they are read
  for (const auto& request : running) {
    if (request->slots() == 0) continue;
    QueuedCaller& caller = *request->turn().caller_;
    if (!request->has_answered() && !caller.reads &&
        reading_rows + request->slots() <= max_rows / 2) {
      reading_rows += request->slots();
      caller.reads = true;
    } else {
      caller.last = request.get();
    }
  }
  SequenceGroup* yields = nullptr;
  int most = 0;
  for (const auto& request : running) {
    const CallerTurn& turn = request->turn();
    const QueuedCaller& caller = *turn.caller_;
    if (caller.last != request.get() || &caller == &waits || caller.rows <= most) continue;
    const int left = caller.rows - turn.rows_;
    const bool has_had_turn = now - request->has_rows_since() >= kTurn;
    if (caller.rows <= waits.rows || left < waits.rows + (has_had_turn ? 0 : wanted)) continue;
    most = caller.rows;
    yields = request.get();
  }
  return yields;
}

void RequestQueue::give_back(std::unique_ptr<SequenceGroup> request, Place place,
                             TimePoint now) noexcept {
  MutexLock lock(mutex_);
  CallerTurn& turn = request->turn();
  QueuedCaller& caller = *turn.caller_;
  set_aside(caller);
  caller.rows -= std::exchange(turn.rows_, 0);
  turn.is_out_ = false;
  waiting_rows_ += request->slots();
  next_deadline_.store(std::min(next_deadline_.load(), ticks(request->deadline())));
  if (request->lost(now)) may_hold_cancelled_.store(true);
  const auto node = spare_.begin();
  *node = std::move(request);
  caller.ran.splice(place == Place::kNext ? caller.ran.begin() : caller.ran.end(), spare_, node);
  if (place == Place::kNext) caller.last_turn = ++last_turn_;
  put_back(caller);
  num_waiting_.fetch_add(1);
}

void RequestQueue::change_rows(CallerTurn& turn, int rows) {
  QueuedCaller& caller = *turn.caller_;
  set_aside(caller);
  caller.rows += rows - std::exchange(turn.rows_, rows);
  put_back(caller);
}

void RequestQueue::set_rows(SequenceGroup& request, int rows) noexcept {
  CallerTurn& turn = request.turn();
  if (turn.rows_ == rows) return;  // no other thread writes it while the request is out
  MutexLock lock(mutex_);
  change_rows(turn, rows);
}

void RequestQueue::leave(CallerTurn& turn) noexcept {
  MutexLock lock(mutex_);
  change_rows(turn, 0);
  if (turn.is_out_) spare_.pop_front();
  if (--turn.caller_->requests > 0) return;
  callers_.erase(callers_.find(*turn.caller_->name));
  num_callers_.store(callers_.size());
}

int RequestQueue::move_lost(Requests& line, TimePoint now, Requests& lost) {
  const bool drops_held = drops_held_.load();
  int rows = 0;
  for (auto it = line.begin(); it != line.end();) {
    const auto next = std::next(it);
    std::optional<RequestOutcome> outcome = (*it)->lost(now);
    if (!outcome && drops_held && (*it)->waits_for_memory()) outcome = RequestOutcome::kShutdown;
    if (outcome) {
      // The outcome stays: the end of a request before it may still give it memory.
      (*it)->set_lost(*outcome);
      rows += (*it)->slots();
      lost.splice(lost.end(), line, it);
    }
    it = next;
  }
  return rows;
}

void RequestQueue::on_memory() noexcept {
  may_hold_granted_.store(true);
  wake();
}

void RequestQueue::drop_held() {
  {
    MutexLock lock(mutex_);
    drops_held_.store(true);
    may_hold_cancelled_.store(true);
  }
  wake();
}

void RequestQueue::queue_granted() {
  MutexLock lock(mutex_);
  for (auto& [name, caller] : callers_) {
    if (caller.held.empty()) continue;
    set_aside(caller);
    for (auto it = caller.held.begin(); it != caller.held.end();) {
      const auto request = it++;
      if ((*request)->waits_for_memory()) continue;
      waiting_rows_ += (*request)->slots();
      num_held_.fetch_sub(1);
      num_waiting_.fetch_add(1);
      caller.queued.splice(caller.queued.end(), caller.held, request);
    }
    put_back(caller);
  }
}

RequestQueue::Requests RequestQueue::take_lost(TimePoint now) noexcept {
  Requests lost;
  if (num_waiting_.load() + num_held_.load() == 0) return lost;
  if (!may_hold_cancelled_.load() && ticks(now) < next_deadline_.load()) return lost;
  {
    MutexLock lock(mutex_);
    may_hold_cancelled_.store(false);  // before looking: a later cancel sets it again
    for (auto& [name, caller] : callers_) {
      Requests queued, held, ran;
      waiting_rows_ -= move_lost(caller.queued, now, queued) + move_lost(caller.ran, now, ran);
      move_lost(caller.held, now, held);
      num_waiting_.fetch_sub(queued.size() + ran.size());
      num_held_.fetch_sub(held.size());
      queued.splice(queued.end(), held);
      for (const auto& request : queued) queued_bytes_ -= request->held_bytes();
      size_.fetch_sub(queued.size());
      lost.splice(lost.end(), ran);
      lost.splice(lost.end(), queued);
      if (!caller.waits()) set_aside(caller);
    }
    update_deadline();
  }
  if (!lost.empty()) waiting_room_.tell();
  return lost;
}

RequestQueue::Requests RequestQueue::take_all() noexcept {
  Requests all;
  MutexLock lock(mutex_);
  for (auto& [name, caller] : callers_) {
    set_aside(caller);
    for (Requests* const line : {&caller.ran, &caller.queued, &caller.held}) {
      all.splice(all.end(), *line);
    }
  }
  waiting_rows_ = 0;
  queued_bytes_ = 0;
  size_.store(0);
  num_waiting_.store(0);
  num_held_.store(0);
  update_deadline();
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

void RequestQueue::update_deadline() {
  std::int64_t earliest = kNever;
  for (const auto& [name, caller] : callers_) {
    for (const Requests* const line : {&caller.ran, &caller.queued, &caller.held}) {
      for (const auto& request : *line) earliest = std::min(earliest, ticks(request->deadline()));
    }
  }
  next_deadline_.store(earliest);
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
