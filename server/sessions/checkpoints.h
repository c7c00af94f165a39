// Checkpoints: states of a session on its way, to go back to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/transformer.h"
#include "server/core/mutex.h"
#include "server/core/thread_annotations.h"

namespace lintel {

// At most `keep` states, which sessions with the same past share. Where there would be more, the
// one whose loss costs least is dropped: going back d values means reading about d again.
// Thread-safe; states are copied and freed without its mutex.
class Checkpoints {
 public:
  struct Policy {
    std::int64_t every = 0;  // a state every so many values; 0: only where it is asked for
    std::size_t keep = 0;    // 0: none
  };
  using State = std::shared_ptr<const SequenceState>;

  explicit Checkpoints(const Policy& policy);

  const Policy& policy() const { return policy_; }
  // Whether a sequence that has so many values by now is to be kept.
  bool is_due(std::int64_t num_values) const EXCLUDES(mutex_) {
    return policy_.keep > 0 && policy_.every > 0 && num_values >= next_due();
  }
  // Keeps a copy, unless there is one of as many values. May throw std::bad_alloc.
  void take(const SequenceState& sequence) EXCLUDES(mutex_);

  // The latest with at most `position` values; null: none.
  State before(std::int64_t position) const EXCLUDES(mutex_);
  // The least values of one that has at least `base`.
  std::optional<std::int64_t> oldest(std::int64_t base) const EXCLUDES(mutex_);
  // Those with at most `position` values, and at least `base`.
  void cut(std::int64_t base, std::int64_t position) EXCLUDES(mutex_);
  // Takes those of another that have at most `position` values. REQUIRES: empty.
  void share(const Checkpoints& other, std::int64_t position) EXCLUDES(mutex_);

 private:
  std::int64_t next_due() const EXCLUDES(mutex_);
  // Which goes when one with num_values comes.
  std::size_t least_missed(std::int64_t num_values) const REQUIRES(mutex_);

  const Policy policy_;
  mutable Mutex mutex_;
  std::vector<State> states_ GUARDED_BY(mutex_);  // ascending by values
};

}  // namespace lintel
