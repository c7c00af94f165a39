// PositionPattern: which positions a head attends to, and how long each of them is needed. Sparse
// Transformer, Longformer and BigBird are softmax attention and differ in nothing else.
//
// h, t and s are a head, the position that attends, and one that it sees. P_h(t) is the set of
// positions that head h sees from t; t itself is always in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "model/base/tensor.h"

namespace lintel {

// How long a position's key and value are needed, and so where they are kept.
enum class Kept {
  kFirst,   // one of the first of the sequence: for ever
  kRecent,  // until as many came after it
  kRow      // in a row, which a head has for as long as the sequence lasts
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

  // P_h(t) in ascending order, cut into parts that do not overlap: the i-th of them. Empty behind
  // the last.
  virtual std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const = 0;

  // So many positions from 0 on are kept as kFirst.
  virtual std::size_t num_first() const { return 0; }
  // So many are kept as kRecent, the last ones of those that are not kFirst.
  virtual std::size_t num_recent() const { return 0; }
  // The first of them that position n or a later one may still see, where n have been fed.
  virtual std::size_t recent_from(std::size_t n) const { return n; }

  // Rows that n positions have left. A position that makes rows makes them as it is fed, from what
  // is kept as kRecent then, or from itself.
  virtual std::size_t num_rows(std::size_t /*n*/) const { return 0; }
  virtual bool has_rows() const { return false; }
  // The position whose key and value of head h a row holds, and the row of a position that has one.
  virtual std::size_t position_of(std::size_t /*h*/, std::size_t row) const { return row; }
  virtual std::size_t row_of(std::size_t /*h*/, std::size_t s) const { return s; }
};

// Which part of a sparse transformer's pattern a head has.
struct SparseParts {
  bool even_local = true;  // heads 0, 2, ..
  bool even_far = true;
  bool odd_local = true;
  bool odd_far = true;

  bool is_local(std::size_t h) const { return h % 2 == 0 ? even_local : odd_local; }
  bool is_far(std::size_t h) const { return h % 2 == 0 ? even_far : odd_far; }
  bool any_far(std::size_t n_heads) const { return even_far || (n_heads > 1 && odd_far); }
};

// Child et al. 2019, strided: the last `stride` positions, and every stride-th before. max_length:
// as of LayerDims.
std::unique_ptr<PositionPattern> strided_pattern(std::size_t n_heads, SparseParts parts,
                                                 std::size_t stride, std::size_t max_length);

// Child et al. 2019, fixed: the own block of `stride` positions, and of every block the `columns`
// last ones, or with several groups those of group h mod column_groups, counted from the end.
std::unique_ptr<PositionPattern> fixed_pattern(std::size_t n_heads, SparseParts parts,
                                               std::size_t stride, std::size_t columns,
                                               std::size_t column_groups, std::size_t max_length);

// Beltagy et al. 2020: a window of so many positions, dilations[h] apart, and the first positions,
// which see all before them and are seen by all.
std::unique_ptr<PositionPattern> longformer_pattern(std::size_t window,
                                                    std::span<const std::int64_t> dilations,
                                                    std::size_t global_tokens,
                                                    std::size_t max_length);

// Zaheer et al. 2020: the last window_blocks blocks, the own one included, the first global_blocks,
// and those that random_blocks [H, blocks, random] names for the row's own block; -1 names none.
struct BlockPattern {
  std::size_t block_size = 0;
  std::size_t window_blocks = 0;
  std::size_t global_blocks = 0;
};
std::unique_ptr<PositionPattern> bigbird_pattern(std::size_t n_heads, const BlockPattern& blocks,
                                                 std::span<const float> random_blocks,
                                                 std::size_t random);

}  // namespace lintel
