// DurableCall, the states that are stored of it: at its end, and on its way where it is long.
#include <algorithm>
#include <limits>
#include <new>
#include <span>
#include <utility>

#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "server/sessions/persistence/durable_call.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {

void DurableCall::put_state(SessionLease& lease) {
  const SessionHistory::Extent extent = history_->extent();
  const SequenceState& sequence = lease.sequence();
  {
    MutexLock lock(mutex_);
    const std::int64_t last = row_.states.empty() ? 0 : row_.states.back().position;
    const bool drops_values =
        extent.base > decode_marks(row_.marks).value_or(StoredMarks()).oldest(row_);
    const bool is_worth_it =
        lease.transformer().constant_state() &&
        writer_.options().pays_to_park(extent.position - last, lease.memory_is_short());
    if (std::exchange(state_was_tried_, true) || sequence.next_position() != extent.position ||
        extent.position <= last || (!drops_values && !is_worth_it)) {
      return;
    }
  }
  try {
    std::vector<std::byte> bytes;
    bytes.reserve(sequence.saved_bytes());
    StateByteWriter writer(bytes);
    sequence.save(writer);
    SessionVault::StateRef ref{.position = extent.position};
    const VaultOutcome put = writer_.vault().put_state(lease.session_id(), bytes, &ref);
    zero_memory(std::span(bytes));
    if (put != VaultOutcome::kDone) return;
    writer_.count_state();
    MutexLock lock(mutex_);
    state_ = ref;
  } catch (const std::bad_alloc&) {  // it costs time only
  }
}

std::size_t DurableCall::checkpoint_bytes(const GenerationRequest& request) const {
  const std::int64_t most =
      call_.start + static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (most < next_checkpoint_) return 0;
  MutexLock lock(mutex_);
  return model_->transformer->sequence_bytes(0);
}

std::int64_t DurableCall::next_checkpoint() const {
  // A state that grows would be written over and over again; one that does not is a few hundred
  // times the values that need not be read again.
  if (!draws_ || !model_->transformer->constant_state()) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const std::int64_t last = row_.states.empty() ? 0 : row_.states.back().position;
  return std::max({last, checkpoint_at_, call_.start}) + writer_.options().park_tokens;
}

void DurableCall::at_rest(const SequenceState& sequence) noexcept {
  if (sequence.next_position() < next_checkpoint_.load(std::memory_order_relaxed)) return;
  {
    MutexLock lock(mutex_);
    const bool is_written = level_ != Durability::kCall || is_long_;
    if (!has_claim_ || failure_ || !is_written || checkpoint_at_ > 0) return;
  }
  try {
    checkpoint_.reserve(sequence.saved_bytes());
    StateByteWriter writer(checkpoint_);
    sequence.save(writer);
  } catch (const std::bad_alloc&) {  // it costs time only
    zero_memory(std::span(checkpoint_));
    checkpoint_.clear();
    return;
  }
  MutexLock lock(mutex_);
  checkpoint_at_ = sequence.next_position();
  next_checkpoint_ = next_checkpoint();
}

void DurableCall::collect_checkpoint(VaultBatch& batch) {
  SessionVault::SessionId id;
  std::int64_t position = 0;
  {
    MutexLock lock(mutex_);
    id = row_.id;
    position = checkpoint_at_;
  }
  const std::size_t before = batch.size();
  const std::optional<SessionVault::StateRef> put = put_checkpoint(id, position);
  MutexLock lock(mutex_);
  checkpoint_at_ = 0;
  const SessionHistory::Extent extent = history_->extent();
  const bool is_well = goes_on(extent);
  if (!is_well) fail(RequestOutcome::kInternal);
  if (is_well) {
    add_values(extent, batch);
    last_write_ = writer_.clock().now();
  }
  if (is_well && put) {
    SessionVault::Write write = next_write(SessionVault::Write::Kind::kState);
    write.before = write.after = extent.digest;
    write.position = extent.position;
    std::vector<SessionVault::StateRef> states = row_.states;
    add_state(states, *put, call_.start);
    batch.add(write, encode_change({.states = states}));
    writing_states_ = std::move(states);
  }
  if (batch.size() == before) writing_ = Writing::kNothing;
}

std::optional<SessionVault::StateRef> DurableCall::put_checkpoint(const SessionVault::SessionId& id,
                                                                  std::int64_t position) noexcept {
  SessionVault::StateRef ref{.position = position};
  VaultOutcome put = VaultOutcome::kUnavailable;
  try {
    put = writer_.vault().put_state(id, checkpoint_, &ref);
  } catch (const std::bad_alloc&) {
  }
  zero_memory(std::span(checkpoint_));
  checkpoint_.clear();
  if (put != VaultOutcome::kDone) return std::nullopt;
  writer_.count_state();
  return ref;
}

}  // namespace lintel
