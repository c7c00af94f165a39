// SPDX-License-Identifier: Apache-2.0
#include "model/layers/attention/common/lsh_buckets.h"

#include <cassert>
#include <utility>

namespace lintel {

std::size_t LshBuckets::most_bytes(const Shape& shape, std::size_t num_positions) {
  // Most blocks are needed when as many buckets as possible have just started one.
  const std::size_t started = std::min(num_positions, shape.num_buckets);
  const std::size_t blocks =
      shape.num_tables * (started + (num_positions - started) / Block::kPositions);
  if (blocks > INT32_MAX) return SIZE_MAX;
  const std::size_t pages = (blocks + kPageBlocks - 1) / kPageBlocks;
  return PagedArray<Block>::bytes_of(pages, kPageBlocks) +
         shape.num_tables * shape.num_buckets * sizeof(Bucket);
}

void LshBuckets::assign(const LshBuckets& other) {
  blocks_.assign(other.blocks_);
  std::ranges::copy(other.buckets_, buckets_.begin());
  num_blocks_ = other.num_blocks_;
}

void LshBuckets::clear() {
  blocks_.clear();
  zero_memory(std::span(buckets_));
  num_blocks_ = 0;
}

void LshBuckets::append(std::size_t table, std::size_t bucket_index, std::int32_t position) {
  Bucket& bucket = buckets_[table * shape_.num_buckets + bucket_index];
  const std::int32_t slot = bucket.count % Block::kPositions;
  if (slot == 0) {
    blocks_.grow_to(static_cast<std::size_t>(num_blocks_) / kPageBlocks + 1);
    const std::int32_t added = num_blocks_++;
    if (bucket.count == 0) {
      bucket.first = added;
    } else {
      block(bucket.last).after = added;
      block(added).before = bucket.last;
    }
    bucket.last = added;
  }
  block(bucket.last).positions[slot] = position;
  ++bucket.count;
}

void LshBuckets::remove_last(std::size_t table, std::size_t bucket_index) {
  Bucket& bucket = buckets_[table * shape_.num_buckets + bucket_index];
  --bucket.count;
  const std::int32_t slot = bucket.count % Block::kPositions;
  Block& last = block(bucket.last);
  last.positions[slot] = 0;
  if (slot != 0) return;
  --num_blocks_;
  assert(bucket.last == num_blocks_);
  if (bucket.count == 0) {
    bucket = {};
  } else {
    bucket.last = last.before;
    block(bucket.last).after = 0;
  }
  last = {};
}

void LshBuckets::shrink() {
  blocks_.shrink_to((static_cast<std::size_t>(num_blocks_) + kPageBlocks - 1) / kPageBlocks);
}

void LshBuckets::list(std::size_t table, std::size_t since, std::size_t stride,
                      std::int32_t* of_positions) const {
  for (std::size_t b = 0; b < shape_.num_buckets; ++b) {
    // Descending from the end: those before `since` are not walked to.
    const Bucket& bucket = buckets_[table * shape_.num_buckets + b];
    std::int32_t at = bucket.last;
    for (std::int32_t i = bucket.count; i-- > 0;) {
      const std::int32_t slot = i % Block::kPositions;
      const auto position = static_cast<std::size_t>(block(at).positions[slot]);
      if (position < since) break;
      of_positions[(position - since) * stride] = static_cast<std::int32_t>(b);
      if (slot == 0) at = block(at).before;
    }
  }
}

void lsh_sort(std::span<const std::int32_t> buckets, std::int32_t* sorted, std::int32_t* ranks,
              std::span<std::int32_t> begins) {
  std::ranges::fill(begins, 0);
  for (const std::int32_t bucket : buckets) ++begins[static_cast<std::size_t>(bucket)];
  std::int32_t begin = 0;
  for (std::int32_t& count : begins) begin += std::exchange(count, begin);
  for (std::size_t t = 0; t < buckets.size(); ++t) {
    ranks[t] = begins[static_cast<std::size_t>(buckets[t])]++;
    sorted[ranks[t]] = static_cast<std::int32_t>(t);
  }
}

}  // namespace lintel
