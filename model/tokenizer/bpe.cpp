// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <stdexcept>

namespace lintel {
namespace {

// Words are short: a search through all ranks beats a heap.
constexpr std::size_t kShortPiece = 48;
// Tokens of a window of a long piece; how many at its end are encoded again in the next one.
constexpr std::size_t kWindow = 1024;
constexpr std::size_t kMargin = 64;

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

// A piece as a linked list of tokens, and a heap of pairs. A pair in the heap is void when the
// token at its place has another rank by now.
class BpeMerges::LongPiece {
 public:
  explicit LongPiece(const BpeMerges& merges) : merges_(merges) {}

  // REQUIRES: one token or more.
  void join(std::span<const std::int32_t> tokens) {
    fill(tokens);
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, std::greater<>{});
      const std::uint64_t pair = heap_.back();
      heap_.pop_back();
      const auto at = static_cast<std::uint32_t>(pair);
      const auto rank = static_cast<std::uint32_t>(pair >> 32);
      if (nodes_[at].rank == rank) join_at(at, rank);
    }
  }
  // Results of join(): the token that begins with the piece's token `at`, and the place where the
  // next one begins. The first one begins at 0, and none where the piece ends.
  std::int32_t id(std::uint32_t at) const { return nodes_[at].id; }
  std::uint32_t next(std::uint32_t at) const { return nodes_[at].next; }

 private:
  struct Node {
    std::int32_t id;
    std::uint32_t rank;  // with the next one
    std::uint32_t before;
    std::uint32_t next;
  };

  void fill(std::span<const std::int32_t> tokens) {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    nodes_.resize(tokens.size() + 1);
    heap_.reserve(2 * tokens.size());
    nodes_[count] = {kNoToken, kNoRank, 0, 0};
    for (std::uint32_t i = 0; i < count; ++i) nodes_[i] = {tokens[i], kNoRank, i - 1, i + 1};
    for (std::uint32_t i = 0; i + 1 < count; ++i) {
      nodes_[i].rank = merges_.ranks_.rank_of(tokens[i], tokens[i + 1]);
      if (nodes_[i].rank != kNoRank) heap_.push_back(pair_at(i));
    }
    std::ranges::make_heap(heap_, std::greater<>{});
  }
  // Rank, then place: the leftmost of equal ranks is first.
  std::uint64_t pair_at(std::uint32_t i) const { return std::uint64_t{nodes_[i].rank} << 32 | i; }
  void set_rank(std::uint32_t i) {
    Node& node = nodes_[i];
    node.rank = merges_.ranks_.rank_of(node.id, nodes_[node.next].id);
    if (node.rank == kNoRank) return;
    heap_.push_back(pair_at(i));
    std::ranges::push_heap(heap_, std::greater<>{});
  }
  void join_at(std::uint32_t at, std::uint32_t rank) {
    Node& node = nodes_[at];
    node.id = merges_.joined_[rank];
    Node& gone = nodes_[node.next];
    node.next = gone.next;
    gone.rank = kNoRank;
    nodes_[node.next].before = at;
    set_rank(at);
    if (at > 0) set_rank(node.before);
  }

  static constexpr std::int32_t kNoToken = -1;  // joined with none

  const BpeMerges& merges_;
  std::vector<Node> nodes_;  // and one after the last
  std::vector<std::uint64_t> heap_;
};

// Encodes in windows whose lists and heaps fit into a cache. Cuts between them are proved, as
// joining is local: if no merge crosses the border of two neighbouring tokens when these two are
// joined by themselves, for all neighbours, none crosses a border in the whole text. The first one
// that did would be the best pair of its two neighbours at that time; before it the same merges
// were done in them as are done when they are by themselves, which would cross their border, too.
// The tokens of one window are proved by it; at a cut the tokens of both sides are joined by
// themselves.
void BpeMerges::encode_long(std::span<const std::int32_t> tokens,
                            std::vector<std::int32_t>& ids) const {
  if (tokens.size() >= 0xFFFFFFFF) throw std::length_error("a text of 2^32 - 1 tokens or more");
  struct Cut {
    std::size_t at = 0;    // all before it is encoded
    std::size_t last = 0;  // the beginning of the token before it
    std::size_t num_ids = 0;
  };
  std::vector<Cut> cuts{{.num_ids = ids.size()}};
  LongPiece piece(*this);
  std::size_t size = kWindow;
  while (cuts.back().at < tokens.size()) {
    const Cut cut = cuts.back();
    const std::size_t length = std::min(tokens.size() - cut.at, size);
    const bool is_rest = cut.at + length == tokens.size();
    piece.join(tokens.subspan(cut.at, length));
    const std::size_t first = piece.next(0);
    // The text after the window may change its last tokens: they are not kept.
    const std::size_t most = is_rest ? length : length - kMargin;
    std::uint32_t last = 0;
    std::uint32_t next = 0;
    while (next != length && piece.next(next) <= most) {
      ids.push_back(piece.id(next));
      last = next;
      next = piece.next(next);
    }
    if (!is_rest && next < length / 2) {
      ids.resize(cut.num_ids);
      size *= 4;
      continue;
    }
    if (cut.at > 0) {
      const auto before = static_cast<std::uint32_t>(cut.at - cut.last);
      piece.join(tokens.subspan(cut.last, before + first));
      if (piece.next(0) != before || piece.next(before) != before + first) {
        // From an earlier cut, in a window so large that all of this stays O(n log n).
        do {
          cuts.pop_back();
        } while (cuts.back().at > 0 && cut.at - cuts.back().at < size);
        ids.resize(cuts.back().num_ids);
        size = 4 * (cut.at + length - cuts.back().at);
        continue;
      }
    }
    cuts.push_back({cut.at + next, cut.at + last, ids.size()});
    size = kWindow;
  }
}

}  // namespace lintel
