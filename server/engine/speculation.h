// Speculation: whether draft tokens are fed before they are drawn, and what a sample offers for it.
#pragma once

namespace lintel {

// A step then yields several tokens of one sequence. What is drawn never depends on it.
enum class Speculation {
  kOff,
  kAuto,  // where it saves time: likely drafts, in steps of few rows
  kOn,    // every draft there is room for: for tests
};

// Whether the samples of a model draft at all: without a state, a row costs a whole prefix.
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
