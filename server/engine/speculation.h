// Whether values are guessed and fed before they are drawn, and what a sample has to say to that.
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

// A sample that offers drafts for a step, one at a time: RowPlanner takes the one in hand, or
// leaves it and all that would follow.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Drafts for this step, after the sample's first `rows` rows, the last of which is sampled.
  // Returns whether there is one in hand.
  virtual bool begin_drafts(int rows) = 0;
  // How likely the draft in hand is right, and all before it. REQUIRES: the last call of
  // begin_drafts or take_draft returned true.
  virtual float draft_probability() const = 0;
  // It gets a row. Returns whether there is one more in hand.
  virtual bool take_draft() = 0;
};

}  // namespace lintel
