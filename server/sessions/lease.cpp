// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/lease.h"

#include <algorithm>
#include <new>
#include <utility>

#include "server/sessions/session_manager.h"
#include "server/sessions/session_record.h"

namespace lintel {

SessionLease::SessionLease(SessionManager* store, std::shared_ptr<SessionRecord> record)
    : manager_(store), record_(std::move(record)) {}

SessionLease::SessionLease(SessionLease&& other) noexcept
    : manager_(std::exchange(other.manager_, nullptr)), record_(std::move(other.record_)) {}

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  if (this != &other) {
    give_back();
    manager_ = std::exchange(other.manager_, nullptr);
    record_ = std::move(other.record_);
  }
  return *this;
}

SessionLease::~SessionLease() { give_back(); }

void SessionLease::give_back() noexcept {
  if (record_ == nullptr) return;
  if (const std::shared_ptr<LeaseKeeper> keeper = std::move(record_->keeper)) {
    keeper->keep(SessionLease(manager_, std::move(record_)));
  } else {
    manager_->give_back(std::move(record_));
  }
  record_ = nullptr;
}

SessionPin& SessionPin::operator=(SessionPin&& other) noexcept {
  if (this != &other) {
    release();
    manager_ = std::exchange(other.manager_, nullptr);
    record_ = std::move(other.record_);
  }
  return *this;
}

void SessionPin::release() noexcept {
  if (record_ == nullptr) return;
  manager_->unpin(*record_);
  record_.reset();
}

bool SessionPin::is_current() const { return manager_->is_current(*record_); }

const std::string& SessionLease::session_id() const { return record_->id; }
const std::string& SessionLease::model() const { return record_->model_name; }
const std::string& SessionLease::owner() const { return record_->reservation.owner(); }
Durability SessionLease::durability() const { return record_->options.durability; }
const Transformer& SessionLease::transformer() const { return *record_->model; }
const SharedAdapter& SessionLease::adapter() const { return record_->adapter; }
bool SessionLease::adapter_ended() const {
  return record_ != nullptr && record_->adapter != nullptr && record_->adapter->ended.load();
}
SequenceState& SessionLease::sequence() { return *record_->sequence; }
SessionHistory* SessionLease::history() const { return record_->history.get(); }

Replay SessionLease::replay(std::int64_t recent_wanted) const {
  Replay replay;
  if (record_->history == nullptr) return replay;
  const std::int64_t held = record_->sequence->next_position();
  const SessionHistory::Extent extent = record_->history->extent();
  if (held < extent.position) {
    replay.tokens = record_->history->tokens(held, extent.position);
    replay.tail = record_->history->tail_at(extent.position);
  }
  if (const std::int64_t recent = std::max(window(), recent_wanted); recent > 0) {
    const std::int64_t first = std::max({held - recent, extent.base, std::int64_t{0}});
    if (first < held) replay.recent = record_->history->tokens(first, held);
  }
  return replay;
}

std::int64_t SessionLease::num_tokens() const {
  const std::int64_t held = record_->sequence->next_position();
  return record_->history == nullptr ? held : std::max(held, record_->history->position());
}

std::int64_t SessionLease::window() const { return record_->options.window; }

bool SessionLease::is_foreign() const {
  // Only the holder of the lease changes it.
  return num_tokens() > 0 && num_tokens() <= record_->foreign_tokens;
}

void SessionLease::keep_checkpoint() noexcept {
  const SequenceState& sequence = *record_->sequence;
  if (record_->keeper != nullptr) record_->keeper->at_rest(sequence);
  if (!record_->checkpoints.is_due(sequence.next_position())) return;
  try {
    record_->checkpoints.take(sequence);
  } catch (const std::bad_alloc&) {
  }
}

std::int64_t SessionLease::max_tokens() const { return record_->max_tokens; }

void SessionLease::hold(std::size_t call_bytes) {
  record_->of_call.emplace(manager_->memory_.take(record_->reservation.owner(), call_bytes));
}

bool SessionLease::memory_is_short() const {
  return manager_->memory_.is_short(record_->reservation.owner());
}

void SessionLease::discard() { record_->discarded = true; }  // read by the store at the give-back
bool SessionLease::discarded() const { return record_->discarded; }

void SessionLease::keep_with(std::shared_ptr<LeaseKeeper> keeper) {
  record_->keeper = std::move(keeper);
}

void SessionLease::end_call() noexcept { SessionManager::end_call(*record_); }

}  // namespace lintel
