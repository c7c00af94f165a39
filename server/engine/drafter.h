// Drafter: proposes draft tokens for a sequence from the tokens it had, to be fed before they are
// drawn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/config/config.h"

namespace lintel {

// Remembers for several contexts of the next token (those before it; in an image also those above)
// what came after them the last times, and how often that was so again. The context that is most
// likely to be right proposes the draft, by what it says and by how often what it said was so. A
// fixed amount of memory, made at construction; used by one thread at a time. A draft decides how
// fast tokens are produced, never which.
class Drafter {
 public:
  struct Guess {
    std::int32_t value = 0;
    float claimed = 0;      // how often its context was right about it; 0: a token like any other
    float probability = 0;  // the same, after the context's record of claims
    std::size_t context = 0;
  };

  explicit Drafter(const ModelConfig& config);
  Drafter(const Drafter&) = default;
  Drafter& operator=(const Drafter&) = default;
  ~Drafter();  // zeroes what it held

  // Upper bound of what one for such a model holds.
  static std::size_t bytes(const ModelConfig& config);

  // The next token of the sequence. Clears what was assumed. Cheap: only guess() learns from what
  // was observed, and RowPlanner asks for none in steps that have no room for drafts.
  void observe(std::int32_t value);
  // The draft token after those observed and assumed. REQUIRES: one was observed.
  Guess guess();
  // The next drafts follow this token as if the sequence had it. Returns whether there is room.
  bool assume(std::int32_t value);
  // Whether a draft token was accepted. The probability of later ones follows.
  void learn(const Guess& guess, bool right);

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
  // What followed a context. Counts in halves, so that a decayed one keeps its ratio.
  struct Entry {
    std::int32_t value = 0;
    std::uint16_t tag = 0;
    std::uint8_t hits = 0;
    std::uint8_t seen = 0;  // 0: empty
  };

  // The token `distance` before token `next`; -1 where there is none.
  std::int32_t back(std::uint64_t next, std::size_t distance) const;
  // Of a context of token `next`.
  std::uint64_t hash(std::uint64_t next, std::size_t context) const;
  static void count(Entry& entry, std::uint16_t tag, std::int32_t value);
  void learn_observed();

  std::vector<Context> contexts_;      // longest first
  std::vector<Entry> entries_;         // [contexts, kEntries]
  std::vector<std::int32_t> history_;  // a ring
  std::size_t longest_ = 0;            // distance of the contexts
  std::uint64_t observed_ = 0;
  std::uint64_t learnt_ = 0;  // of the observed: those before
  std::uint64_t assumed_ = 0;
};

}  // namespace lintel
