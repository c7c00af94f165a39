// SPDX-License-Identifier: Apache-2.0
// StepSharing: one worker's steps, shared with idle workers as far as that makes them faster.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "model/core/step_thread_pool.h"
#include "server/core/clock.h"
#include "server/engine/request_queue.h"

namespace lintel {

// IntraOpParallelism: workers without requests help those that have some with their steps.

// Each worker leads a team (model/core/step_thread_pool.h), which the idle ones join. A helper
// looks for work all the time while it belongs to a team, for a step has dozens of parts and waking
// up takes as long as some of them. It leaves when its leader has no requests any more, or wants
// fewer helpers, and may sleep then. Thread-safe.
class IntraOpParallelism {
 public:
  // workers: threads that may help or lead. cores: the number of cores for all workers of the
  // process: no more threads than that compute at a time.
  IntraOpParallelism(std::size_t workers, std::size_t cores);
  ~IntraOpParallelism();
  IntraOpParallelism(const IntraOpParallelism&) = delete;
  IntraOpParallelism& operator=(const IntraOpParallelism&) = delete;

  // ---- Of the worker itself.

  StepThreadPool& team(std::size_t worker) { return *teams_[worker].team; }
  // Notes whether the worker has requests.
  void set_leading(std::size_t worker, bool leads);
  // Threads that may share its step, itself included: what is idle, by the number of those who
  // lead.
  std::size_t available() const;
  // Asks for so many helpers. Returns how many of them have to be called.
  std::size_t want(std::size_t worker, std::size_t helpers);

  // ---- Of an idle worker.

  // Helps the worker that lacks helpers most, until `stop` says that there is something else to do
  // or it has helped for a millisecond, and then returns true; false when no worker wants help.
  bool help(std::size_t worker, const std::function<bool()>& stop, const Clock& clock);

 private:
  struct Led {
    std::unique_ptr<StepThreadPool> team = std::make_unique<StepThreadPool>();
    std::atomic<std::size_t> wanted{0};  // helpers
    std::atomic<std::size_t> here{0};
    bool leads = false;  // of the worker's own thread
  };

  Led* most_in_need();
  enum class Left { kNobodyWants, kStopped };
  static Left help_one(Led& led, std::size_t seat, const std::function<bool()>& stop,
                       const Clock& clock);

  const std::size_t cores_;
  std::vector<Led> teams_;
  std::atomic<std::size_t> leading_{0};
};

// ThreadCountTuner: how many threads are to share a step, by what steps have taken.

// Finds by trial how many threads are worth their cores, which depends on the model, the rows, the
// caches and other users of the cores. Now and then some steps run with twice or half as many
// threads, in turn with as many steps as before, and the faster number stays; but twice as many
// have to save a tenth of the time, for they take twice the cores. A number that stays the same is
// tried ever more seldom.
//
// The bits of a step do not depend on its threads, so the choice may depend on clocks.
class ThreadCountTuner {
 public:
  // starts_with_all: steps share all threads until a try shows that fewer do.
  explicit ThreadCountTuner(bool starts_with_all = false) : starts_with_all_(starts_with_all) {}

  // The number for a step of `rows` rows, a power of two, at most `available`.
  int choose(int rows, int available);
  // The number of threads to have ready for this and the next steps: more than are to share it
  // while more are tried, and if others of the last steps had more. Called once a step.
  int wanted();
  // Notes the time of the step that choose() was just asked for, and which `threads` shared.
  void note(int threads, Duration took);

  // Steps of a try: as many as this of either number, in turns of kTurn. Long steps have as many as
  // take kTryTime, in shorter turns: half of a try runs with the number that may be the worse one.
  static constexpr int kTurn = 8;
  static constexpr std::size_t kSamples = 32;
  static constexpr std::size_t kFewestSamples = 4;
  static constexpr Duration kTryTime = std::chrono::milliseconds(32);
  static constexpr int kStepsOfPatience = 64;  // with helpers that a step does not need
  static constexpr int kFirstPause = 32;       // steps before the first try
  static constexpr int kLongestPause = 8'192;

 private:
  // Steps with one number of threads.
  struct Samples {
    std::array<Duration, kSamples> took;
    std::size_t count = 0;
  };
  // Steps with about as many rows.
  struct Class {
    int threads = 1;  // what has proved best
    int tried = 0;    // the number that is tried now; 0: none
    int until_try = kFirstPause;
    int pause = kFirstPause;
    bool more_next = true;           // what to try next
    int steps = 0;                   // of the try, of both numbers
    std::size_t samples = kSamples;  // of either number, in a try
    bool is_known = false;           // a step has been timed
    Samples own, other;

    int turn() const { return std::min(kTurn, static_cast<int>(samples) + 1); }
  };

  static std::size_t class_of(int rows);
  static void begin_try(Class& of, int available);
  static void judge(Class& of);
  static bool in_turn_of_other(const Class& of) { return of.steps / of.turn() % 2 == 1; }

  const bool starts_with_all_;
  std::array<Class, 8> classes_;
  std::size_t current_ = 0;  // class
  int asked_ = 1;            // what choose() said
  int wanted_ = 1;
  int until_fewer_ = 0;  // steps
};

// Used by the worker's thread.
class StepSharing {
 public:
  // step_threads: the most threads that share a step, whenever they are idle; 0: as many as make it
  // faster; is_large: the model's steps are faster with more, as they read its weights from memory.
  // The others outlive this.
  StepSharing(IntraOpParallelism& help, RequestQueue& queue, std::size_t worker, int step_threads,
              bool is_large)
      : help_(help),
        queue_(queue),
        worker_(worker),
        step_threads_(step_threads),
        choice_(/*starts_with_all=*/is_large) {}

  StepThreadPool& team() { return help_.team(worker_); }
  void set_leading(bool leads) { help_.set_leading(worker_, leads); }

  // Called before and after a step of `rows` rows.
  void begin(int rows, TimePoint now);
  void end(Duration took);
  // True if helpers were there for the step.
  bool is_shared() const { return threads_ > 1; }

 private:
  // Pauses between calls of helpers, which take a system call and wake another thread: seldom, and
  // ever more seldom while no helper comes.
  static constexpr Duration kLeastPause = std::chrono::milliseconds(2);
  static constexpr Duration kLongestPause = std::chrono::milliseconds(256);

  void call(std::size_t helpers, TimePoint now);

  IntraOpParallelism& help_;
  RequestQueue& queue_;
  const std::size_t worker_;
  const int step_threads_;
  ThreadCountTuner choice_;
  int threads_ = 1;  // of this step
  Duration pause_ = kLeastPause;
  TimePoint next_call_;
};

}  // namespace lintel
