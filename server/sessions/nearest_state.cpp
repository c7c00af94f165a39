#include "server/sessions/nearest_state.h"

#include <algorithm>
#include <cstring>

#include "model/core/state_bytes.h"

namespace lintel {

NearestState::NearestState(const SessionRecord& record, const SequenceState* own, std::int64_t base,
                           std::int64_t position)
    : record_(record) {
  if (base == 0) num_values_ = 0;
  const auto is_nearer = [&](std::int64_t num_values) {
    return num_values > num_values_ && base <= num_values && num_values <= position;
  };
  if (record.options.initial != nullptr && is_nearer(record.options.initial->state_position)) {
    num_values_ = record.options.initial->state_position;
  }
  Checkpoints::State kept = record.checkpoints.before(position);
  if (kept != nullptr && is_nearer(kept->next_position())) {
    num_values_ = kept->next_position();
    sequence_ = kept.get();
    kept_ = std::move(kept);
  }
  // Rather than a copy.
  if (own != nullptr && (is_nearer(own->next_position()) || own->next_position() == num_values_)) {
    num_values_ = own->next_position();
    sequence_ = own;
  }
}

SequenceState NearestState::copy() const {
  if (sequence_ != nullptr) return sequence_->clone();
  SequenceState sequence = record_.model->new_sequence(weights_of(record_.adapter));
  if (num_values_ > 0) {
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

std::size_t NearestState::saved_bytes() const {
  return sequence_ == nullptr ? record_.options.initial->state.size() : sequence_->saved_bytes();
}

void remember_tail(SequenceState& sequence, const SessionHistory& history) {
  std::string& tail = sequence.generated_tail;
  const std::string now = history.tail_at(sequence.next_position());
  // In place, and what was longer zeroed: nothing of it shows in the memory's next owner.
  tail.resize(tail.capacity());
  zero_memory(std::span(tail));
  tail.reserve(std::max(tail.size(), now.size()));
  tail.assign(now);
}

}  // namespace lintel
