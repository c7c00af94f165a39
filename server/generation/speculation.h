// Whether values are guessed and fed before they are drawn.
#pragma once

namespace lintel {

// A step then yields several values of one sequence. What is drawn never depends on it.
enum class Speculation {
  kOff,
  kAuto,  // where it saves time: guesses likely enough, in steps of few rows
  kOn,    // every guess there is room for: for tests
};

// Whether the samples of a model guess at all: without a state, a row costs a whole prefix.
constexpr bool guesses(Speculation speculation, bool recomputes) {
  return speculation == Speculation::kOn || (speculation == Speculation::kAuto && !recomputes);
}

}  // namespace lintel
