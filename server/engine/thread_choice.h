// ThreadChoice: how many threads are to share a step, by what steps have taken.
#pragma once

#include <array>
#include <cstddef>

#include "server/core/clock.h"

namespace lintel {

// Whether a second thread is worth its core depends on the model, the rows, the caches and on who
// else wants the core, and no table knows that. So it is tried: now and then some steps run with
// twice or half as many threads, in turn with as many steps as before, and the faster one stays;
// but twice as many have to save a tenth of the time, for they take twice the cores. What stays as
// it is is tried ever more seldom.
//
// The bits of a step do not depend on its threads, so the choice may depend on clocks.
class ThreadChoice {
 public:
  // The number for a step of `rows` rows, a power of two, at most `available`.
  int choose(int rows, int available);
  // How many are to be there for it and the next ones: more than are to share it while more are
  // tried, and where others of the last steps had more. Once a step.
  int wanted();
  // What a step of as many rows took that choose() was just asked for, and which `threads` shared.
  void note(int threads, Duration took);

  // Steps of a try: as many as this of either number, in turns of kTurn.
  static constexpr int kTurn = 8;
  static constexpr std::size_t kSamples = 32;
  static constexpr int kStepsOfPatience = 64;  // with helpers that a step does not need
  static constexpr int kFirstPause = 32;       // steps before the first try
  static constexpr int kLongestPause = 8'192;

 private:
  // Steps with one number of threads.
  struct Samples {
    std::array<Duration, kSamples> took;
    std::size_t count = 0;
  };
  // Of steps with about as many rows.
  struct Class {
    int threads = 1;  // what has proved best
    int tried = 0;    // the number that is tried now; 0: none
    int until_try = kFirstPause;
    int pause = kFirstPause;
    bool more_next = true;  // what to try next
    int steps = 0;          // of the try, of both numbers
    Samples own, other;
  };

  static std::size_t class_of(int rows);
  static void begin_try(Class& of, int available);
  static void judge(Class& of);
  static bool in_turn_of_other(const Class& of) { return of.steps / kTurn % 2 == 1; }

  std::array<Class, 8> classes_;
  std::size_t current_ = 0;  // class
  int asked_ = 1;            // what choose() said
  int wanted_ = 1;
  int until_fewer_ = 0;  // steps
};

}  // namespace lintel
