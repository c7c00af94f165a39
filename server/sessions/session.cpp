// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "model/core/state_bytes.h"
#include "server/sessions/session_manager.h"

namespace lintel {

Checkpoints::Checkpoints(const Policy& policy) : policy_(policy) {
  MutexLock lock(mutex_);
  states_.reserve(policy.keep);
}

std::int64_t Checkpoints::next_due() const {
  MutexLock lock(mutex_);
  const std::int64_t last = states_.empty() ? 0 : states_.back()->next_position();
  return (last / policy_.every + 1) * policy_.every;
}

std::size_t Checkpoints::least_missed(std::int64_t num_tokens) const {
  std::size_t least = 0;
  double least_loss = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : states_[i - 1]->next_position();
    const std::int64_t after =
        i + 1 == states_.size() ? num_tokens : states_[i + 1]->next_position();
    // The length of the gap without it, relative to the distance from which one goes back to it.
    const double loss =
        static_cast<double>(after - before) / static_cast<double>(num_tokens - before);
    if (loss >= least_loss) continue;
    least_loss = loss;
    least = i;
  }
  return least;
}

void Checkpoints::take(const SequenceState& sequence) {
  if (policy_.keep == 0 || sequence.next_position() == 0) return;
  State gone;
  {
    MutexLock lock(mutex_);
    if (!states_.empty() && states_.back()->next_position() >= sequence.next_position()) return;
    if (states_.size() == policy_.keep) {  // before the new one is made: `keep` were admitted
      const auto least =
          states_.begin() + static_cast<std::ptrdiff_t>(least_missed(sequence.next_position()));
      gone = std::move(*least);
      states_.erase(least);
    }
  }
  gone.reset();
  auto copy = std::make_shared<const SequenceState>(sequence.clone());
  MutexLock lock(mutex_);
  states_.push_back(std::move(copy));
}

Checkpoints::State Checkpoints::before(std::int64_t position) const {
  MutexLock lock(mutex_);
  const auto found = std::find_if(states_.rbegin(), states_.rend(), [&](const State& state) {
    return state->next_position() <= position;
  });
  return found == states_.rend() ? nullptr : *found;
}

std::optional<std::int64_t> Checkpoints::oldest(std::int64_t base) const {
  MutexLock lock(mutex_);
  for (const State& state : states_) {
    if (state->next_position() >= base) return state->next_position();
  }
  return std::nullopt;
}

void Checkpoints::cut(std::int64_t base, std::int64_t position) {
  std::vector<State> gone;
  MutexLock lock(mutex_);
  const auto within = [&](const State& state) {
    return base <= state->next_position() && state->next_position() <= position;
  };
  const auto end = std::stable_partition(states_.begin(), states_.end(), within);
  gone.assign(std::move_iterator(end), std::move_iterator(states_.end()));
  states_.erase(end, states_.end());
}

void Checkpoints::share(const Checkpoints& other, std::int64_t position) {
  if (policy_.keep == 0) return;
  std::vector<State> states;
  {
    MutexLock lock(other.mutex_);
    for (const State& state : other.states_) {
      if (state->next_position() <= position) states.push_back(state);
    }
  }
  MutexLock lock(mutex_);
  states_ = std::move(states);
  states_.reserve(policy_.keep);
}

NearestState::NearestState(const SessionRecord& record, const SequenceState* own, std::int64_t base,
                           std::int64_t position)
    : record_(record) {
  if (base == 0) num_tokens_ = 0;
  const auto is_nearer = [&](std::int64_t num_tokens) {
    return num_tokens > num_tokens_ && base <= num_tokens && num_tokens <= position;
  };
  if (record.options.initial != nullptr && is_nearer(record.options.initial->state_position)) {
    num_tokens_ = record.options.initial->state_position;
  }
  Checkpoints::State kept = record.checkpoints.before(position);
  if (kept != nullptr && is_nearer(kept->next_position())) {
    num_tokens_ = kept->next_position();
    sequence_ = kept.get();
    kept_ = std::move(kept);
  }
  // The session's own state is preferred to a copy.
  if (own != nullptr && (is_nearer(own->next_position()) || own->next_position() == num_tokens_)) {
    num_tokens_ = own->next_position();
    sequence_ = own;
  }
}

SequenceState NearestState::copy() const {
  if (sequence_ != nullptr) return sequence_->clone();
  SequenceState sequence = record_.model->new_sequence(weights_of(record_.adapter));
  if (num_tokens_ > 0) {
    StateByteReader reader(record_.options.initial->state);
    sequence.load(reader);
  }
  return sequence;
}

void NearestState::save(std::vector<std::byte>& to) const {
  to.reserve(to.size() + saved_bytes());
  if (sequence_ == nullptr) {
    const std::vector<std::byte>& initial = record_.options.initial->state;
    to.insert(to.end(), initial.begin(), initial.end());
  } else {
    StateByteWriter writer(to);
    sequence_->save(writer);
  }
}

void NearestState::save_pages(std::vector<std::byte>& to, std::vector<PageRun>& pages) const {
  if (sequence_ == nullptr) return save(to);
  sequence_->save_pages(/*from=*/0, to, pages);
}

std::size_t NearestState::saved_bytes() const {
  return sequence_ == nullptr ? record_.options.initial->state.size() : sequence_->saved_bytes();
}

void remember_tail(SequenceState& sequence, const SessionHistory& history) {
  std::string& tail = sequence.generated_tail;
  const std::string now = history.tail_at(sequence.next_position());
  // Overwritten in place, and a longer tail zeroed: nothing of it remains in freed memory.
  tail.resize(tail.capacity());
  zero_memory(std::span(tail));
  tail.reserve(std::max(tail.size(), now.size()));
  tail.assign(now);
}

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
  if (record_ == nullptr || record_->adapter == nullptr) return false;
  const ServedAdapter& adapter = *record_->adapter;
  return adapter.ended.load() || (adapter.retired.load() && waits_for_memory());
}
bool SessionLease::is_admitted() const { return record_->sequence.has_value(); }

bool SessionLease::waits_for_memory() const {
  return record_ != nullptr && record_->ticket && !record_->ticket->is_granted();
}

void SessionLease::wait_for_memory(const std::string& caller, MemoryWaiter& waiter) {
  manager_->line_.join(*record_->ticket, caller, owner(), waiter);
}

Duration SessionLease::most_wait() const { return manager_->options().max_queue_wait; }

void SessionLease::admit() { SessionManager::begin_one_shot(*record_); }

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
