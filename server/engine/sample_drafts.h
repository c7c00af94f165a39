// SampleDrafts: the tokens of one sample that are fed before their turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/engine/drafter.h"
#include "server/engine/request_context.h"

namespace lintel {

// Chooses drafts for a step: known tokens, and draft tokens between them. Used by the one thread
// that runs the request.
class SampleDrafts {
 public:
  // `context` outlives the object. Without begin() or fork() there are never any.
  explicit SampleDrafts(const RequestContext& context) : context_(context) {}

  // From now on there may be up to `most` in a step. `pending`: the sequence's.
  void begin(int most, std::optional<std::int32_t> pending);
  // The same, with what `first` has learnt.
  void fork(const SampleDrafts& first);
  // The next token of the sequence.
  void observe(std::int32_t value);
  void release() { drafter_.reset(); }

  // As DraftSource has it, for rows that begin with token `position`, in a sequence of at most
  // `end` tokens. REQUIRES: none are taken.
  bool propose(std::int64_t position, int rows, std::int64_t end);
  float probability() const { return probability_; }
  bool take();

  // Those taken for this step, in order.
  int size() const { return static_cast<int>(taken_.size()); }
  std::int32_t value(int i) const { return taken_[static_cast<std::size_t>(i)].guess.value; }
  int guesses() const;  // among them
  enum class Verdict { kKnown, kRight, kWrong };
  // What became of one: `value` came in its place. Learns from it.
  Verdict judge(int i, std::int32_t value);
  void clear() { taken_.clear(); }

 private:
  struct Draft {
    Drafter::Guess guess;
    bool is_known = false;  // given: not of the drafter
  };

  // Looks for a draft to have in hand.
  bool next();

  const RequestContext& context_;
  std::unique_ptr<Drafter> drafter_;  // null: no drafts
  int most_ = 0;
  std::vector<Draft> taken_;
  Draft in_hand_;
  std::int64_t position_ = 0;  // of in_hand_
  std::int64_t end_ = 0;       // no draft from this position on
  float probability_ = 0;
};

}  // namespace lintel
