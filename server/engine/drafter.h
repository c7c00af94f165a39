// SPDX-License-Identifier: Apache-2.0
// Drafter: proposes draft tokens for a sequence from the tokens it had, to be fed before they are
// drawn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/config/config.h"
#include "model/transformer.h"
#include "server/engine/request.h"

namespace lintel {

class DraftHeadPlan;  // server/engine/row_planner.h

// Speculation: whether draft tokens are fed before they are drawn, and what a sample offers for it.

// A step then yields several tokens of one sequence. What is drawn never depends on it.
enum class Speculation {
  kOff,
  kAuto,  // where it saves time: likely drafts, in steps of few rows
  kOn,    // every draft there is room for: for tests
};

// True if the samples of a model draft at all: without a state, a row costs a whole prefix.
constexpr bool uses_drafts(Speculation speculation, bool recomputes) {
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
  // The probability that the draft in hand, and all before it, are right. REQUIRES: the last call
  // of begin_drafts or take_draft returned true.
  virtual float draft_probability() const = 0;
  // Takes the draft in hand, which gets a row. Returns whether there is one more in hand.
  virtual bool take_draft() = 0;
};

// Remembers for several contexts of the next token (those before it; in an image also those above)
// what came after them the last times, and how often that was so again. The context that is most
// likely to be right proposes the draft, by what it says and by how often what it said was so. A
// fixed amount of memory, made at construction; used by one thread at a time. A draft decides how
// fast tokens are produced, never which.
class Drafter {
 public:
  struct DraftToken {
    std::int32_t token = 0;
    float claimed = 0;      // how often its context was right about it; 0: a token like any other
    float probability = 0;  // the same, after the context's record of claims
    std::size_t context = 0;
  };

  explicit Drafter(const ModelConfig& config);
  Drafter(const Drafter&) = default;
  Drafter& operator=(const Drafter&) = default;
  ~Drafter();  // zeroes what it held

  // Upper bound of the bytes of a drafter for such a model.
  static std::size_t bytes(const ModelConfig& config);

  // The next token of the sequence. Clears what was assumed. Cheap: only next_draft() learns from
  // what was observed, and RowPlanner asks for none in steps that have no room for drafts.
  void observe(std::int32_t token);
  // The draft token after those observed and assumed. REQUIRES: one was observed.
  DraftToken next_draft();
  // The next drafts follow this token as if the sequence had it. Returns whether there is room.
  bool assume(std::int32_t token);
  // Learns whether a draft token was accepted, which changes the probability of later ones.
  void learn(const DraftToken& draft, bool right);

 private:
  // The tokens this far back from the next one, and how its drafts turned out, with older ones
  // weighing less.
  struct Context {
    float trust() const;

    std::array<std::uint16_t, 6> back{};
    std::size_t length = 0;
    float expected_right = 0;
    float right = 0;
  };
  // The token that followed a context. Counts in halves, so that a decayed one keeps its ratio.
  struct Entry {
    std::int32_t token = 0;
    std::uint16_t tag = 0;
    std::uint8_t hits = 0;
    std::uint8_t seen = 0;  // 0: empty
  };

  // The token `distance` before token `next`; -1 where there is none.
  std::int32_t back(std::uint64_t next, std::size_t distance) const;
  // The hash of a context of token `next`.
  std::uint64_t hash(std::uint64_t next, std::size_t context) const;
  static void count(Entry& entry, std::uint16_t tag, std::int32_t token);
  void learn_observed();

  std::vector<Context> contexts_;      // longest first
  std::size_t num_entries_ = 0;        // of a context
  std::size_t most_to_learn_ = 0;      // observed tokens that wait
  std::vector<Entry> entries_;         // [contexts, num_entries]
  std::vector<std::int32_t> history_;  // a ring
  std::size_t longest_ = 0;            // distance of the contexts
  std::uint64_t observed_ = 0;
  std::uint64_t learnt_ = 0;  // of the observed: those before
  std::uint64_t assumed_ = 0;
};

// SampleDrafts: the tokens of one sample that are fed before their turn.

// Chooses drafts for a step: known tokens, and between them draft tokens of the drafter or, where
// it is more often right, of the model's draft head. Used by the one thread that runs the request.
class SampleDrafts {
 public:
  // `context` outlives the object. Without begin() or fork() there are never any.
  explicit SampleDrafts(const RequestContext& context) : context_(context) {}
  // Upper bound of the bytes of an object for such a model.
  static std::size_t bytes(const Transformer& model);

  // Allows up to `most` drafts in a step from now on. `pending`: the sequence's.
  void begin(int most, std::optional<std::int32_t> pending);
  // The same, with what `first` has learnt, which outlives the object.
  void fork(const SampleDrafts& first);
  // The next token of the sequence.
  void observe(std::int32_t token);
  void release() {
    drafter_.reset();
    stop_head();
  }
  bool has_begun() const { return drafter_ != nullptr; }

  // Called before each step, of which the sample has had no row yet. reads_prompt: the draft head
  // is to read those rows of a prompt that it may still need.
  void begin_step(bool reads_prompt);
  bool reads_prompt() const { return reads_prompt_; }
  // The token at `position` came after the next of the step's rows that an output or the draft
  // head needs; is_read: the head alone. The plan learns which of the head's draft tokens were
  // right; null: there is none.
  void follow(std::int64_t position, std::int32_t token, bool is_read, DraftHeadPlan* plan);
  // Makes the request to the draft head after the step, for `ahead` tokens, which become this
  // sample's. False: there is none, as there is no row to read, or none of a prompt and no token to
  // ask for. Throws std::bad_alloc.
  bool ask_head(std::size_t first_hidden, int ahead, const DraftHeadPlan& plan,
                DraftRequest& request);
  // Forgets what the head was asked and has read.
  void stop_head();

  // Implements DraftSource for rows that begin with token `position`, in a sequence of at most
  // `end` tokens. REQUIRES: none are taken.
  bool propose(std::int64_t position, int rows, std::int64_t end);
  float probability() const { return probability_; }
  bool take();

  // Drafts taken for this step, in order.
  int size() const { return static_cast<int>(taken_.size()); }
  std::int32_t token(int i) const { return taken_[static_cast<std::size_t>(i)].proposal.token; }
  int num_drafted() const;  // among them
  enum class Verdict { kKnown, kRight, kWrong };
  // Judges a draft by `token`, which came in its place, and learns from it.
  Verdict judge(int i, std::int32_t token);
  void clear() { taken_.clear(); }

 private:
  struct Draft {
    Drafter::DraftToken proposal;
    bool is_known = false;  // given: not of the drafter
  };

  // Looks for a draft to have in hand.
  bool next();

  // The draft token in hand, of the drafter or the head.
  Drafter::DraftToken draft();
  void reserve();
  // Takes the draft head's state of the sample that this one was forked from, unless that sample
  // has gone on.
  void take_forked_state();

  const RequestContext& context_;
  std::unique_ptr<Drafter> drafter_;  // null: no drafts
  // The last tokens of the step without a gap, from followed_at_ on, each after a row that an
  // output or the draft head needs.
  std::vector<std::int32_t> followed_;
  std::int64_t followed_at_ = 0;
  std::size_t followed_hidden_ = 0;  // of the sample's such rows, before the first of these tokens
  std::size_t hidden_ = 0;           // such rows of the sample in this step
  bool reads_prompt_ = false;
  bool has_read_prompt_ = false;  // in this step
  // The state of the draft head up to head_at_, and the tokens that it expects from there on.
  std::optional<DraftState> head_state_;
  const SampleDrafts* forked_from_ = nullptr;  // whose state it takes when the head is next asked
  std::int64_t forked_length_ = 0;             // of that state
  std::int64_t head_at_ = 0;
  std::vector<std::int32_t> head_;
  std::vector<float> head_probabilities_;
  std::size_t head_right_ = 0;  // tokens of head_ that came, from the first on
  bool takes_head_ = false;     // the drafts of this step are its tokens so far
  int most_ = 0;
  std::vector<Draft> taken_;
  Draft in_hand_;
  std::int64_t position_ = 0;  // of in_hand_
  std::int64_t end_ = 0;       // no draft from this position on
  float probability_ = 0;
};

}  // namespace lintel
