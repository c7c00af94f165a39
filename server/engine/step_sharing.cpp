#include "server/engine/step_sharing.h"

#include <algorithm>

namespace lintel {

void StepSharing::begin(int rows, TimePoint now) {
  const int available = static_cast<int>(help_.available());
  const bool tries = step_threads_ == 0;
  const int threads = tries ? choice_.choose(rows, available) : std::min(step_threads_, available);
  const int wanted = tries ? choice_.wanted() : threads;
  const std::size_t missing = help_.want(worker_, static_cast<std::size_t>(wanted) - 1);
  if (missing > 0) call(missing, now);
  team().use(static_cast<std::size_t>(threads));
  threads_ = static_cast<int>(team().threads());
}

void StepSharing::end(Duration took) {
  if (step_threads_ == 0) choice_.note(threads_, took);
}

void StepSharing::call(std::size_t helpers, TimePoint now) {
  if (now < next_call_) return;
  const bool came_in_vain = now - next_call_ < pause_;  // the last one was not long ago
  pause_ = came_in_vain ? std::min(2 * pause_, kLongestPause) : kLeastPause;
  next_call_ = now + pause_;
  queue_.call_idle(helpers);
}

}  // namespace lintel
