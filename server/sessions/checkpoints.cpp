#include "server/sessions/checkpoints.h"

#include <algorithm>
#include <limits>
#include <utility>

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

std::size_t Checkpoints::least_missed(std::int64_t num_values) const {
  std::size_t least = 0;
  double least_loss = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : states_[i - 1]->next_position();
    const std::int64_t after =
        i + 1 == states_.size() ? num_values : states_[i + 1]->next_position();
    // Without it there is a gap; how long, against how far one has to go back to feel it.
    const double loss =
        static_cast<double>(after - before) / static_cast<double>(num_values - before);
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
    if (states_.size() == policy_.keep) {  // before there is a new one: it was admitted for so many
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

}  // namespace lintel
