// NearestState: where a session's state can be taken up again on the way to a position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/sessions/session_record.h"

namespace lintel {

// The state with the most values of those at hand that have no more than a position wants: the
// session's own, one that was kept, the one it began with, or an empty one. Refers to the record,
// whose lease or history keeps it from going.
class NearestState {
 public:
  // own: the session's sequence, where it may be read; else null. base: first value of the history.
  NearestState(const SessionRecord& record, const SequenceState* own, std::int64_t base,
               std::int64_t position);

  // Whether there is one from which the history leads to the position.
  explicit operator bool() const { return num_values_ >= 0; }
  std::int64_t num_values() const { return num_values_; }
  bool is_empty() const { return num_values_ == 0; }
  bool is(const SequenceState& sequence) const { return sequence_ == &sequence; }
  SequenceState copy() const;
  // Appends it as SequenceState::save writes it. REQUIRES: not empty.
  void save(std::vector<std::byte>& to) const;
  std::size_t saved_bytes() const;  // that save() appends

 private:
  const SessionRecord& record_;
  std::int64_t num_values_ = -1;
  const SequenceState* sequence_ = nullptr;  // null: empty, or what the session began with
  Checkpoints::State kept_;
};

// A sequence whose values were cut has the tail of those that are left.
void remember_tail(SequenceState& sequence, const SessionHistory& history);

}  // namespace lintel
