// SPDX-License-Identifier: Apache-2.0
// Vocabulary: the tokens of a model as a trie of bytes, and masks that every grammar shares.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "server/grammar/dfa.h"

namespace lintel::grammar {

// Kinds of bytes, as bits. An automaton that stays in its state for all that a subtree of the
// vocabulary holds need not walk it.
enum Content : std::uint8_t {
  kControls = 1,
  kQuotes = 2,
  kBackslashes = 4,
  kDigits = 8,
  kLetters = 16,
  kOtherAscii = 32,
  kOtherCharacters = 64,    // of several bytes; a text may end within one
  kBrokenCharacters = 128,  // not UTF-8
};

// The content of a byte of text; bytes from 128 on are kOtherCharacters.
std::uint8_t content_of(unsigned char byte);

// Texts with an id each, as a trie in depth-first order: a text follows its beginnings, and the
// nodes below node i are i + 1 to skip(i) - 1. There is no node for the empty text. Immutable.
class ByteTrie {
 public:
  ByteTrie() = default;
  // Sorts `texts`; none is empty.
  explicit ByteTrie(std::vector<std::pair<std::string_view, std::int32_t>> texts);

  std::uint32_t size() const {
    return nodes_.empty() ? 0 : static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  unsigned char byte(std::uint32_t node) const { return nodes_[node].byte; }
  std::size_t depth(std::uint32_t node) const { return nodes_[node].depth; }  // from 1
  std::uint32_t skip(std::uint32_t node) const { return nodes_[node].skip; }
  // The ids of texts that end at a node.
  std::span<const std::int32_t> ids(std::uint32_t node) const { return ids(node, node + 1); }
  std::size_t longest() const { return longest_; }  // depth of a node
  // The ids of texts that end at nodes `begin` to `end` - 1.
  std::span<const std::int32_t> ids(std::uint32_t begin, std::uint32_t end) const {
    return {ids_.data() + nodes_[begin].first_id, nodes_[end].first_id - nodes_[begin].first_id};
  }
  // The content of texts below a node, from there: a set of Content.
  std::uint8_t content_below(std::uint32_t node) const { return summaries_[node].content; }
  // Characters up to and with a node, and of each text of ids(begin, end). They mean nothing for
  // texts that are not UTF-8. REQUIRES: has_counts().
  std::size_t characters_to(std::uint32_t node) const { return summaries_[node].characters; }
  std::span<const std::uint8_t> characters(std::uint32_t begin, std::uint32_t end) const {
    return std::span(characters_)
        .subspan(nodes_[begin].first_id, nodes_[end].first_id - nodes_[begin].first_id);
  }
  bool has_counts() const { return longest_ < 256; }
  // The node of `text` as seen from the root; size(): there is none.
  std::uint32_t find(std::string_view text) const;
  std::size_t bytes() const {
    return nodes_.size() * (sizeof(Node) + sizeof(Summary)) + ids_.size() * (sizeof(int) + 1);
  }

 private:
  struct Node {
    std::uint32_t skip = 0;
    std::uint32_t first_id = 0;
    std::uint16_t depth = 0;
    std::uint8_t byte = 0;
  };
  struct Summary {
    std::uint8_t content = 0;
    std::uint8_t characters = 0;
  };
  void summarize();

  std::vector<Node> nodes_;  // and one behind the last
  std::vector<Summary> summaries_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> characters_;  // of each id's text
  std::size_t longest_ = 0;
};

// A set of ids, as words of 64 bits: id i is bit i % 64 of word i / 64.
using MaskWords = std::vector<std::uint64_t>;

// The part of a mask that depends on one state of an automaton alone. Immutable.
struct LocalMask {
  MaskWords inside;  // tokens that end within the automaton, or just as it accepts
  ByteTrie rests;    // of the others, what follows once it accepts
  // The automaton may end almost anywhere: there are too many rests, and none is listed.
  bool ends_anywhere = false;
  std::size_t bytes() const { return inside.size() * sizeof(inside[0]) + rests.bytes(); }
};

// A state of an automaton, and how many characters it still needs and may have.
struct LocalState {
  std::uint64_t dfa = 0;
  Dfa::State state = 0;
  std::uint32_t needed = 0;
  std::uint32_t left = kUnbounded;
  bool operator==(const LocalState&) const = default;
};

// Immutable but for the masks it keeps; shared by the threads of a model.
class Vocabulary {
 public:
  // `tokens`: the bytes of each id; an empty one is in no text. `end_tokens` end a text, their
  // bytes are not used. `cached_bytes` bounds the masks that are kept.
  Vocabulary(std::vector<std::string> tokens, std::vector<std::int32_t> end_tokens,
             std::size_t cached_bytes = std::size_t{64} << 20);

  // Ids a mask has bits for.
  std::size_t size() const { return places_.size(); }
  std::size_t mask_words() const { return (size() + 63) / 64; }
  std::string_view bytes_of(std::int32_t id) const;
  bool ends(std::int32_t id) const;
  std::span<const std::int32_t> end_tokens() const { return end_tokens_; }
  std::size_t longest() const { return longest_; }  // bytes of a token
  // Bytes that some token has.
  const std::bitset<256>& spelt_bytes() const { return spelt_bytes_; }
  const ByteTrie& trie() const { return trie_; }
  std::size_t bytes() const;

  // Null: it is not kept.
  std::shared_ptr<const LocalMask> find(const LocalState& state) const;
  void keep(const LocalState& state, std::shared_ptr<const LocalMask> mask) const;
  std::size_t cached_bytes() const;

 private:
  struct HashOfState {
    std::size_t operator()(const LocalState& state) const;
  };
  struct Kept {
    LocalState state;
    std::shared_ptr<const LocalMask> mask;
  };
  struct Place {
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
  };

  std::string text_;  // of all tokens
  std::vector<Place> places_;
  std::vector<std::int32_t> end_tokens_;  // ascending
  std::size_t longest_ = 0;
  std::bitset<256> spelt_bytes_;
  ByteTrie trie_;

  const std::size_t most_cached_;
  mutable std::mutex mutex_;
  mutable std::list<Kept> kept_;  // the last used first
  mutable std::unordered_map<LocalState, std::list<Kept>::iterator, HashOfState> by_state_;
  mutable std::size_t cached_ = 0;
};

// The vocabulary of a model with `num_ids` rows. Special tokens are in no text, but for those that
// `spelt` names by their texts: tags that the model has as special tokens.
std::shared_ptr<const Vocabulary> make_vocabulary(const Tokenizer& tokenizer, std::size_t num_ids,
                                                  std::span<const std::string> spelt = {});

}  // namespace lintel::grammar
