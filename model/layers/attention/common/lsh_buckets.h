// SPDX-License-Identifier: Apache-2.0
// LshBuckets: who is near whom in attention by locality-sensitive hashing, kept as positions come.
//
// In each table the positions, sorted by (bucket, position), are cut into chunks; the neighbours of
// a position are its own chunk and the one before. The rank of a position is the number of
// positions in the buckets before its own plus its place there, so nothing is ever sorted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/tensor.h"

namespace lintel {

// The first and the last rank that is seen from `rank` among num_positions, the last exclusive.
struct LshChunks {
  LshChunks(std::size_t rank, std::size_t chunk_size, std::size_t num_positions) {
    const std::size_t own = rank / chunk_size * chunk_size;
    begin = own - std::min(own, chunk_size);
    end = std::min(own + chunk_size, num_positions);
  }
  std::size_t begin;
  std::size_t end;
};

// One thread at a time. Holds nothing but positions; zeroes them before their memory goes back.
class LshBuckets {
 public:
  struct Shape {
    std::size_t num_tables = 0;   // each with buckets of its own
    std::size_t num_buckets = 0;  // of a table
    std::size_t chunk_size = 0;
  };

  explicit LshBuckets(const Shape& shape)
      : shape_(shape), blocks_(kPageBlocks), buckets_(shape.num_tables * shape.num_buckets) {}
  ~LshBuckets() { zero_memory(std::span(buckets_)); }
  LshBuckets(const LshBuckets&) = delete;
  LshBuckets& operator=(const LshBuckets&) = delete;

  std::size_t bytes() const { return blocks_.bytes() + buckets_.size() * sizeof(Bucket); }
  // Upper bound of bytes() when every table has num_positions; SIZE_MAX where it cannot.
  static std::size_t most_bytes(const Shape& shape, std::size_t num_positions);

  void assign(const LshBuckets& other);  // which has the same shape
  void clear();

  // Puts a position into a bucket. REQUIRES: larger than all that the table holds.
  void append(std::size_t table, std::size_t bucket_index, std::int32_t position);

  // Takes back the last append of all. REQUIRES: its table and bucket; everything appended after it
  // is taken back already.
  void remove_last(std::size_t table, std::size_t bucket_index);
  // Frees what remove_last left unused.
  void shrink();

  // The bucket of every position from `since` on, of one table: that of position p is
  // of_positions[(p - since) * stride]. REQUIRES: the table holds each of them once.
  void list(std::size_t table, std::size_t since, std::size_t stride,
            std::int32_t* of_positions) const;

  // Calls visit(position) for the neighbours of the newest position of a bucket, in a table of
  // num_positions: from itself down to the lowest rank, then up from it. Takes time by the number
  // of buckets and of neighbours.
  template <typename Visit>
  void visit_neighbours(std::size_t table, std::size_t bucket_index, std::size_t num_positions,
                        Visit&& visit) const {
    const Bucket* const buckets = &buckets_[table * shape_.num_buckets];
    std::size_t rank = static_cast<std::size_t>(buckets[bucket_index].count) - 1;
    for (std::size_t b = 0; b < bucket_index; ++b) {
      rank += static_cast<std::size_t>(buckets[b].count);
    }
    const LshChunks seen(rank, shape_.chunk_size, num_positions);
    std::size_t down = rank + 1 - seen.begin;
    for (std::size_t b = bucket_index + 1; b-- > 0 && down > 0;) {
      down -= visit_last(buckets[b], down, visit);
    }
    std::size_t up = seen.end - rank - 1;
    for (std::size_t b = bucket_index + 1; up > 0; ++b) up -= visit_first(buckets[b], up, visit);
  }

 private:
  static constexpr std::size_t kPageBlocks = 64;

  // Some consecutive positions of a bucket, and the blocks around it in the bucket's list. A cache
  // line.
  struct Block {
    static constexpr std::int32_t kPositions = 14;
    std::int32_t positions[kPositions];
    std::int32_t before;
    std::int32_t after;
  };
  static_assert(sizeof(Block) == kAlignment);

  // A list of positions in ascending order. Of its blocks only the last may be partly filled.
  struct Bucket {
    std::int32_t count;  // positions
    std::int32_t first;  // blocks; valid where count > 0
    std::int32_t last;
  };

  Block& block(std::int32_t i) {
    const auto index = static_cast<std::size_t>(i);
    return blocks_.page(index / kPageBlocks)[index % kPageBlocks];
  }
  const Block& block(std::int32_t i) const {
    const auto index = static_cast<std::size_t>(i);
    return blocks_.page(index / kPageBlocks)[index % kPageBlocks];
  }

  // The last `most` positions of a bucket, downwards; returns how many there were.
  template <typename Visit>
  std::size_t visit_last(const Bucket& bucket, std::size_t most, Visit& visit) const {
    const std::size_t total = std::min(most, static_cast<std::size_t>(bucket.count));
    std::size_t left = total;
    std::int32_t at = bucket.last;
    std::int32_t slot = (bucket.count - 1) % Block::kPositions;
    while (left > 0) {
      const Block& here = block(at);
      for (; slot >= 0 && left > 0; --slot, --left) visit(here.positions[slot]);
      at = here.before;
      slot = Block::kPositions - 1;
    }
    return total;
  }

  // The first `most` positions of a bucket, upwards; returns how many there were.
  template <typename Visit>
  std::size_t visit_first(const Bucket& bucket, std::size_t most, Visit& visit) const {
    const std::size_t total = std::min(most, static_cast<std::size_t>(bucket.count));
    std::size_t left = total;
    for (std::int32_t at = bucket.first; left > 0;) {
      const Block& here = block(at);
      for (std::int32_t slot = 0; slot < Block::kPositions && left > 0; ++slot, --left) {
        visit(here.positions[slot]);
      }
      at = here.after;
    }
    return total;
  }

  const Shape shape_;
  PagedArray<Block> blocks_;     // of all buckets
  std::vector<Bucket> buckets_;  // [tables, buckets]
  std::int32_t num_blocks_ = 0;
};

// The same at once, for a full pass: positions by (bucket, position) by counting, and the rank of
// each. sorted, ranks: [buckets.size()]; begins: [number of buckets] of working memory.
void lsh_sort(std::span<const std::int32_t> buckets, std::int32_t* sorted, std::int32_t* ranks,
              std::span<std::int32_t> begins);

}  // namespace lintel
