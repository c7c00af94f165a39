// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <stdexcept>

namespace lintel {
namespace {

// Words are short: a search through all ranks beats a heap.
constexpr std::size_t kShortPiece = 48;

constexpr std::uint32_t kNoRank = PairRanks::kNone;

}  // namespace

BpeMerges::BpeMerges(std::size_t most_merges) : ranks_(most_merges) {
  joined_.reserve(most_merges);
}

bool BpeMerges::add(std::int32_t left, std::int32_t right, std::int32_t joined) {
  if (!ranks_.insert(left, right, static_cast<std::uint32_t>(joined_.size()))) return false;
  joined_.push_back(joined);
  return true;
}

void BpeMerges::encode(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& ids) const {
  if (tokens.size() <= kShortPiece) return encode_short(tokens, ids);
  encode_long(tokens, ids);
}

void BpeMerges::encode_short(std::span<const std::int32_t> tokens,
                             std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kShortPiece> left;
  std::array<std::uint32_t, kShortPiece> ranks;  // of each token and the next
  std::size_t count = tokens.size();
  std::ranges::copy(tokens, left.begin());
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = ranks_.rank_of(left[i], left[i + 1]);
  while (count > 1) {
    const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    const auto lowest = std::min_element(ranks.begin(), end);
    if (*lowest == kNoRank) break;
    const auto at = static_cast<std::size_t>(lowest - ranks.begin());
    left[at] = joined_[*lowest];
    std::copy(left.begin() + at + 2, left.begin() + count, left.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + count - 1, ranks.begin() + at);
    --count;
    if (at + 1 < count) ranks[at] = ranks_.rank_of(left[at], left[at + 1]);
    if (at > 0) ranks[at - 1] = ranks_.rank_of(left[at - 1], left[at]);
  }
  ids.insert(ids.end(), left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count));
}

// A linked list of tokens, and a heap of pairs. A pair in the heap is void when the token at its
// place has another rank by now.
void BpeMerges::encode_long(std::span<const std::int32_t> tokens,
                            std::vector<std::int32_t>& ids) const {
  struct Node {
    std::int32_t id;
    std::uint32_t rank;  // with the next one
    std::uint32_t before;
    std::uint32_t next;
  };
  constexpr std::uint32_t kEnd = 0xFFFFFFFF;
  if (tokens.size() >= kEnd) throw std::length_error("a text of 2^32 - 1 tokens or more");
  std::vector<Node> nodes(tokens.size());
  std::vector<std::uint64_t> pairs;  // rank, then place: the leftmost of equal ranks is first
  const auto pair_at = [&](std::uint32_t i) { return std::uint64_t{nodes[i].rank} << 32 | i; };
  const auto count = static_cast<std::uint32_t>(tokens.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool is_last = i + 1 == count;
    nodes[i] = {tokens[i], is_last ? kNoRank : ranks_.rank_of(tokens[i], tokens[i + 1]),
                i == 0 ? kEnd : i - 1, is_last ? kEnd : i + 1};
    if (nodes[i].rank != kNoRank) pairs.push_back(pair_at(i));
  }
  std::priority_queue heap(std::greater<>{}, std::move(pairs));
  const auto set_rank = [&](std::uint32_t i) {
    Node& node = nodes[i];
    node.rank = node.next == kEnd ? kNoRank : ranks_.rank_of(node.id, nodes[node.next].id);
    if (node.rank != kNoRank) heap.push(pair_at(i));
  };
  while (!heap.empty()) {
    const std::uint64_t pair = heap.top();
    heap.pop();
    const auto i = static_cast<std::uint32_t>(pair);
    Node& node = nodes[i];
    const auto rank = static_cast<std::uint32_t>(pair >> 32);
    if (node.rank != rank) continue;
    node.id = joined_[rank];
    Node& gone = nodes[node.next];
    node.next = gone.next;
    gone.rank = kNoRank;
    if (node.next != kEnd) nodes[node.next].before = i;
    set_rank(i);
    if (node.before != kEnd) set_rank(node.before);
  }
  for (std::uint32_t i = 0; i != kEnd; i = nodes[i].next) ids.push_back(nodes[i].id);
}

}  // namespace lintel
