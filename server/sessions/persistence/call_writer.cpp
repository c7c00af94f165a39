// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/call_writer.h"

#include <algorithm>
#include <future>
#include <memory>
#include <span>
#include <utility>

#include "server/core/threads.h"
#include "server/sessions/persistence/persistent_request.h"

namespace lintel {

void WriteBatch::add(SessionStorage::Write write, StorageBytes body) {
  bodies_.push_back(std::move(body));
  write.body = bodies_.back();
  writes_.push_back(std::move(write));
}

void WriteBatch::cut(std::size_t size) {
  writes_.resize(size);
  while (bodies_.size() > size) bodies_.pop_back();
}

void WriteBatch::commit(SessionStorage& storage, SessionStorage::Done done) {
  storage.commit(std::move(writes_), std::move(done));
}

SessionError WriteBatch::commit_and_wait(SessionStorage& storage) {
  std::promise<SessionError> promise;
  commit(storage, [&](std::span<const SessionError> outcomes) {
    const auto failed = std::ranges::find_if(
        outcomes, [](SessionError outcome) { return outcome != SessionError::kNone; });
    promise.set_value(failed == outcomes.end() ? SessionError::kNone : *failed);
  });
  return promise.get_future().get();
}

SessionRefusal refusal_of(SessionError outcome) {
  return {outcome == SessionError::kRolledBack ? SessionError::kFenced : outcome};
}

SessionRefusal refusal_of(const SessionStorage::Opened& opened) {
  SessionRefusal refusal = refusal_of(opened.outcome);
  refusal.holder = opened.holder;
  refusal.held_for = std::chrono::ceil<std::chrono::milliseconds>(opened.held_for);
  return refusal;
}

void PendingReleases::add(std::string id, Owner owner, const SessionStorage::Claim& claim) {
  book_->add({std::move(id), std::move(owner), claim});
}

void PendingReleases::give_back(SessionStorage& storage, const SessionStorage::Row& row,
                                const SessionStorage::Claim& claim) {
  const auto batch = std::make_shared<WriteBatch>();
  batch->add({.kind = SessionStorage::Write::Kind::kRelease,
              .id = row.id,
              .claim = claim,
              .before = row.digest,
              .after = row.digest,
              .position = row.position},
             {});
  const auto done = [book = book_, batch, lost = Lost{row.id, row.owner, claim}](
                        std::span<const SessionError> outcomes) {
    const SessionError outcome = outcomes.front();
    if (outcome == SessionError::kStoreFull || outcome == SessionError::kStoreAway) book->add(lost);
  };
  batch->commit(storage, done);
}

void PendingReleases::give_back(SessionStorage& storage) {
  std::vector<Lost> lost;
  {
    MutexLock lock(book_->mutex);
    lost.swap(book_->lost);
  }
  for (Lost& each : lost) {
    const Digest digest = storage.find(each.id, each.owner).row.digest;
    WriteBatch batch;
    batch.add({.kind = SessionStorage::Write::Kind::kRelease,
               .id = each.id,
               .claim = each.claim,
               .before = digest,
               .after = digest},
              {});
    const SessionError outcome = batch.commit_and_wait(storage);
    // A broken storage releases nothing before it is reopened, and then no session is held.
    if (outcome == SessionError::kStoreFull || outcome == SessionError::kStoreAway) {
      add(std::move(each.id), std::move(each.owner), each.claim);
    }
  }
}

namespace {

// The interval at which INPUT and CALL calls are checked for enough tokens.
constexpr Duration kLook = std::chrono::milliseconds(50);

// A commit in progress, and the calls whose writes it has.
struct CallBatch {
  WriteBatch batch;
  std::vector<std::pair<std::shared_ptr<PersistentRequest>, std::size_t>>
      calls;  // and the number of writes of each
};

}  // namespace

CallWriter::CallWriter(SessionStorage& storage, PendingReleases& lost, const Clock& clock,
                       const Options& options)
    : storage_(storage), lost_(lost), clock_(clock), options_(options) {
  if (options_.has_thread) thread_ = std::thread([this] { write_until_closed(); });
}

CallWriter::~CallWriter() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    woken_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    write_until_closed();
  }
}

void CallWriter::add(std::shared_ptr<PersistentRequest> call) {
  {
    MutexLock lock(mutex_);
    calls_.push_back(call);
    is_woken_ = true;
    woken_.notify_all();
  }
  write(Calls{std::move(call)}, /*all_tokens=*/true);
}

void CallWriter::wake() {
  MutexLock lock(mutex_);
  is_woken_ = true;
  woken_.notify_all();
}

void CallWriter::wake_for_tokens() {
  if (has_tokens_.exchange(true)) return;
  MutexLock lock(mutex_);
  woken_.notify_all();
}

void CallWriter::write() {
  Calls calls;
  {
    MutexLock lock(mutex_);
    calls = calls_;
  }
  write(calls, /*all_tokens=*/true);
}

void CallWriter::write(const Calls& calls, bool all_tokens) {
  const auto on_its_way = std::make_shared<CallBatch>();
  on_its_way->calls.reserve(calls.size());
  for (const std::shared_ptr<PersistentRequest>& call : calls) {
    const std::size_t before = on_its_way->batch.size();
    catch_exceptions([&] { call->collect(on_its_way->batch, all_tokens); },
                     [&] {
                       on_its_way->batch.cut(before);
                       call->not_collected();
                     });
    const std::size_t count = on_its_way->batch.size() - before;
    if (count > 0) on_its_way->calls.emplace_back(call, count);
  }
  if (on_its_way->batch.empty()) return;
  const auto done = [on_its_way](std::span<const SessionError> outcomes) {
    std::size_t first = 0;
    for (const auto& [call, count] : on_its_way->calls) {
      // Writes that are collected again although they stand already succeed.
      const bool is_told = survives(ServerThread::kCallWriter, [&, &call = call, &count = count] {
        call->written(outcomes.subspan(first, count));
      });
      if (!is_told) survives(ServerThread::kCallWriter, [&call = call] { call->not_collected(); });
      first += count;
    }
  };
  catch_exceptions([&] { on_its_way->batch.commit(storage_, done); },
                   [&] {
                     for (const auto& [call, count] : on_its_way->calls) call->not_collected();
                   });
}

void CallWriter::hand_over() {
  hands_over_ = true;  // first: a call that is submitted meanwhile is seen by one of both
  Calls calls;
  {
    MutexLock lock(mutex_);
    calls = calls_;
  }
  for (const std::shared_ptr<PersistentRequest>& call : calls) call->hand_over();
}

void CallWriter::remove(const PersistentRequest& call) {
  std::shared_ptr<PersistentRequest> gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(calls_, &call, &std::shared_ptr<PersistentRequest>::get);
  if (found == calls_.end()) return;
  gone = std::move(*found);
  calls_.erase(found);
  woken_.notify_all();
}

Duration CallWriter::gather_time(std::size_t streams) const {
  constexpr std::size_t kStreamsOfAnInterval = 16;
  constexpr std::size_t kMostIntervals = 4;
  if (streams <= 1) return Duration::zero();
  return options_.interval *
         std::clamp(streams / kStreamsOfAnInterval, std::size_t{1}, kMostIntervals);
}

void CallWriter::wait(TimePoint began, std::size_t streams) {
  using Steady = std::chrono::steady_clock;
  TimePoint due = TimePoint::max();
  for (const std::shared_ptr<PersistentRequest>& call : calls_) {
    const Duration pause =
        call->is_urgent() ? options_.interval : std::min(kLook, options_.lazy_interval);
    due = std::min(due, Steady::now() + pause);
  }
  const TimePoint tokens_due = streams > 1 ? began + options_.interval : began;
  while (!is_woken_ && !(closing_ && calls_.empty())) {
    const TimePoint next = has_tokens_ ? std::min(due, tokens_due) : due;
    const Duration left = next - Steady::now();
    if (left <= Duration::zero()) return;
    if (next == TimePoint::max()) {
      woken_.wait(mutex_);
    } else {
      woken_.wait_for(mutex_, left);
    }
  }
}

void CallWriter::write_until_closed() {
  TimePoint tokens_written{};
  while (true) {
    const TimePoint began = std::chrono::steady_clock::now();
    std::size_t streams = 0;
    survives(ServerThread::kCallWriter, [&] {
      Calls calls;
      {
        MutexLock lock(mutex_);
        calls = calls_;
      }
      streams = static_cast<std::size_t>(std::ranges::count(
          calls, Durability::kToken, [](const auto& call) { return call->durability(); }));
      const bool all_tokens = began - tokens_written >= gather_time(streams);
      if (all_tokens) tokens_written = began;
      has_tokens_ = !all_tokens;  // the others wait for the next interval
      write(calls, all_tokens);
    });
    MutexLock lock(mutex_);
    if (closing_ && calls_.empty()) return;
    wait(began, streams);
    is_woken_ = false;
  }
}

}  // namespace lintel
