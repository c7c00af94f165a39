// StepSharing: one worker's steps, shared with idle workers as far as that makes them faster.
#pragma once

#include <chrono>
#include <cstddef>

#include "server/core/clock.h"
#include "server/engine/idle_help.h"
#include "server/engine/request_queue.h"
#include "server/engine/thread_choice.h"

namespace lintel {

// Used by the worker's thread.
class StepSharing {
 public:
  // step_threads: at most so many threads share a step, and wherever they are idle; 0: as many as
  // make it faster. The others outlive this.
  StepSharing(IdleHelp& help, RequestQueue& queue, std::size_t worker, int step_threads)
      : help_(help), queue_(queue), worker_(worker), step_threads_(step_threads) {}

  Team& team() { return help_.team(worker_); }
  void set_leading(bool leads) { help_.set_leading(worker_, leads); }

  // Before and after a step of `rows` rows.
  void begin(int rows, TimePoint now);
  void end(Duration took);
  // Whether helpers were there for the step.
  bool is_shared() const { return threads_ > 1; }

 private:
  // Calling takes a system call and waking another thread: seldom, and ever more seldom while no
  // helper comes.
  static constexpr Duration kLeastPause = std::chrono::milliseconds(2);
  static constexpr Duration kLongestPause = std::chrono::milliseconds(256);

  void call(std::size_t helpers, TimePoint now);

  IdleHelp& help_;
  RequestQueue& queue_;
  const std::size_t worker_;
  const int step_threads_;
  ThreadChoice choice_;
  int threads_ = 1;  // of this step
  Duration pause_ = kLeastPause;
  TimePoint next_call_;
};

}  // namespace lintel
