// PositionPattern: which positions a head attends to, and how long each of them is needed. Sparse
// Transformer, Longformer and BigBird are softmax attention and differ in nothing else.
//
// h, t and s are a head, the position that attends, and one that it sees. P_h(t) is the set of
// positions that head h sees from t; t itself is always in it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace lintel {

// How long a position's key and value are needed, and so where they are kept.
enum class Kept {
  kFirst,   // of the first num_first(): for ever, in memory that is there from the beginning
  kRecent,  // until num_recent() more have come, in a ring
  kRow      // for ever, in memory that grows by rows
};

// Positions of P_h(t): `count` runs of `length` consecutive ones, `period` >= length apart from
// beginning to beginning. All are kept alike; the rows of runs are consecutive within a run, and
// equally far apart from run to run.
struct PositionRuns {
  Kept kept = Kept::kRow;
  std::size_t first = 0;
  std::size_t length = 1;
  std::size_t period = 1;
  std::size_t count = 1;
};

// Const and shareable between threads. No function allocates.
class PositionPattern {
 public:
  virtual ~PositionPattern() = default;

  // P_h(t) in ascending order, cut into parts that do not overlap: the i-th of them. Empty after
  // the last.
  virtual std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const = 0;

  // Positions 0 .. num_first() - 1 are kept as kFirst, and of the others the last num_recent() as
  // kRecent.
  virtual std::size_t num_first() const { return 0; }
  virtual std::size_t num_recent() const { return 0; }
  // The first position that is kept as kRecent and that n or a later one may see, where n have been
  // fed.
  virtual std::size_t recent_from(std::size_t n) const { return n; }

  // Rows that n positions leave. They are made as a position is fed, of itself or of those that are
  // kept as kRecent until then.
  virtual std::size_t num_rows(std::size_t /*n*/) const { return 0; }
  virtual bool has_rows() const { return false; }  // num_rows() grows without end
  // The position whose key and value of head h a row holds, and the row of a position that has one.
  virtual std::size_t position_of(std::size_t /*h*/, std::size_t row) const { return row; }
  virtual std::size_t row_of(std::size_t /*h*/, std::size_t s) const { return s; }
};

// Consecutive positions first .. end - 1.
inline PositionRuns run_of(Kept kept, std::size_t first, std::size_t end) {
  return {.kept = kept, .first = first, .length = end - first, .period = end - first};
}

// No more positions are kept than can be fed. max_length: as of LayerDims.
inline std::size_t at_most(std::size_t positions, std::size_t max_length) {
  return max_length == 0 ? positions : std::min(positions, max_length);
}

// P_h(t) where it has three parts at most: what PositionPattern::part looks in.
class PatternParts {
 public:
  void add(const PositionRuns& runs) {
    if (runs.count > 0 && runs.length > 0) parts_[size_++] = runs;
  }
  std::optional<PositionRuns> part(std::size_t i) const {
    return i < size_ ? std::optional(parts_[i]) : std::nullopt;
  }

 private:
  std::array<PositionRuns, 3> parts_;
  std::size_t size_ = 0;
};

}  // namespace lintel
