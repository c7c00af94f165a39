// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/vocabulary.h"

#include <algorithm>

namespace lintel::grammar {
namespace {

// A place within a character of UTF-8: the number of missing bytes, and the range of the next.
struct InCharacter {
  std::uint8_t missing = 0;
  std::uint8_t first = 0x80, last = 0xBF;
  bool is_broken = false;
};

InCharacter after(InCharacter at, unsigned char byte) {
  if (at.is_broken) return at;
  if (at.missing > 0) {
    if (byte < at.first || byte > at.last) return {.is_broken = true};
    return {.missing = static_cast<std::uint8_t>(at.missing - 1)};
  }
  if (byte < 0x80) return {};
  if (byte < 0xC2 || byte > 0xF4) return {.is_broken = true};
  InCharacter next{.missing = static_cast<std::uint8_t>(byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3)};
  if (byte == 0xE0) next.first = 0xA0;
  if (byte == 0xED) next.last = 0x9F;
  if (byte == 0xF0) next.first = 0x90;
  if (byte == 0xF4) next.last = 0x8F;
  return next;
}

}  // namespace

std::uint8_t content_of(unsigned char byte) {
  if (byte < 0x20) return kControls;
  if (byte >= 0x80) return kOtherCharacters;
  if (byte == '"') return kQuotes;
  if (byte == '\\') return kBackslashes;
  if (byte >= '0' && byte <= '9') return kDigits;
  const unsigned char lower = byte | 0x20;
  return lower >= 'a' && lower <= 'z' ? kLetters : kOtherAscii;
}

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, std::int32_t>> texts) {
  std::ranges::sort(texts);
  ids_.reserve(texts.size());
  std::vector<std::uint32_t> open;  // the nodes of the last text
  std::string_view last;
  const auto close_to = [&](std::size_t depth) {
    while (open.size() > depth) {
      nodes_[open.back()].skip = static_cast<std::uint32_t>(nodes_.size());
      open.pop_back();
    }
  };
  for (const auto& [text, id] : texts) {
    const auto common = std::ranges::mismatch(last, text).in2 - text.begin();
    close_to(static_cast<std::size_t>(common));
    while (open.size() < text.size()) {
      open.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<std::uint32_t>(ids_.size()),
                        static_cast<std::uint16_t>(open.size()),
                        static_cast<std::uint8_t>(text[open.size() - 1])});
    }
    ids_.push_back(id);
    longest_ = std::max(longest_, text.size());
    last = text;
  }
  close_to(0);
  nodes_.push_back({0, static_cast<std::uint32_t>(ids_.size()), 0, 0});
  summarize();
}

void ByteTrie::summarize() {
  summaries_.resize(size());
  characters_.reserve(ids_.size());
  std::vector<std::uint8_t> own(size());
  std::vector<InCharacter> places(longest_ + 1);  // by depth
  std::vector<std::uint32_t> last(longest_ + 1);  // node of that depth
  std::vector<std::uint32_t> parents(size());
  for (std::uint32_t node = 0; node < size(); ++node) {
    const InCharacter place = after(places[depth(node) - 1], byte(node));
    places[depth(node)] = place;
    last[depth(node)] = node;
    parents[node] = last[depth(node) - 1];
    own[node] = content_of(byte(node));
    if (place.is_broken) own[node] |= kBrokenCharacters;
    const int before = depth(node) > 1 ? summaries_[parents[node]].characters : 0;
    const bool begins = (byte(node) & 0xC0) != 0x80;
    summaries_[node].characters = static_cast<std::uint8_t>(before + (begins ? 1 : 0));
    characters_.insert(characters_.end(), ids(node).size(), summaries_[node].characters);
  }
  for (std::uint32_t node = size(); node-- > 0;) {
    if (depth(node) > 1) summaries_[parents[node]].content |= own[node] | summaries_[node].content;
  }
}

std::uint32_t ByteTrie::find(std::string_view text) const {
  std::uint32_t begin = 0, end = size(), found = size();
  for (const char c : text) {
    const auto wanted = static_cast<unsigned char>(c);
    while (begin < end && byte(begin) < wanted) begin = skip(begin);
    if (begin >= end || byte(begin) != wanted) return size();
    found = begin;
    end = skip(begin);
    ++begin;
  }
  return found;
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<std::int32_t> end_tokens,
                       std::size_t cached_bytes)
    : end_tokens_(std::move(end_tokens)), most_cached_(cached_bytes) {
  std::ranges::sort(end_tokens_);
  std::erase_if(end_tokens_, [&](std::int32_t id) {
    return id < 0 || static_cast<std::size_t>(id) >= tokens.size();
  });
  places_.resize(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    places_[id] = {static_cast<std::uint32_t>(text_.size()),
                   static_cast<std::uint32_t>(tokens[id].size())};
    text_ += tokens[id];
    longest_ = std::max(longest_, tokens[id].size());
  }
  std::vector<std::pair<std::string_view, std::int32_t>> texts;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (tokens[i].empty() || ends(id)) continue;
    texts.emplace_back(bytes_of(id), id);
    for (const char c : tokens[i]) spelt_bytes_.set(static_cast<unsigned char>(c));
  }
  trie_ = ByteTrie(std::move(texts));
}

std::string_view Vocabulary::bytes_of(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= places_.size()) return {};
  const Place& place = places_[static_cast<std::size_t>(id)];
  return std::string_view(text_).substr(place.begin, place.size);
}

bool Vocabulary::ends(std::int32_t id) const { return std::ranges::binary_search(end_tokens_, id); }

std::size_t Vocabulary::bytes() const {
  return sizeof(*this) + text_.size() + places_.size() * sizeof(Place) + trie_.bytes();
}

std::size_t Vocabulary::HashOfState::operator()(const LocalState& state) const {
  std::uint64_t hash = state.dfa * 0x9E3779B97F4A7C15u ^ state.state;
  hash = (hash ^ (std::uint64_t{state.needed} << 32 | state.left)) * 0xD6E8FEB86659FD93u;
  return static_cast<std::size_t>(hash ^ hash >> 32);
}

std::shared_ptr<const LocalMask> Vocabulary::find(const LocalState& state) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_state_.find(state);
  if (found == by_state_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->mask;
}

void Vocabulary::keep(const LocalState& state, std::shared_ptr<const LocalMask> mask) const {
  const std::lock_guard lock(mutex_);
  if (by_state_.contains(state)) return;
  cached_ += mask->bytes();
  kept_.push_front({state, std::move(mask)});
  by_state_.emplace(state, kept_.begin());
  while (cached_ > most_cached_ && !kept_.empty()) {
    cached_ -= kept_.back().mask->bytes();
    by_state_.erase(kept_.back().state);
    kept_.pop_back();
  }
}

std::size_t Vocabulary::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_;
}

std::shared_ptr<const Vocabulary> make_vocabulary(const Tokenizer& tokenizer, std::size_t num_ids,
                                                  std::span<const std::string> spelt) {
  std::vector<std::string> tokens(num_ids);
  for (std::size_t i = 0; i < num_ids; ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (id >= tokenizer.vocab_size()) break;
    if (!tokenizer.is_special(id)) {
      tokens[i] = tokenizer.bytes_of(id);
    } else if (const std::string_view text = tokenizer.text_of_special(id);
               std::ranges::find(spelt, text) != spelt.end()) {
      tokens[i] = text;
    }
  }
  const std::span<const std::int32_t> ends = tokenizer.eos();
  return std::make_shared<const Vocabulary>(std::move(tokens),
                                            std::vector<std::int32_t>(ends.begin(), ends.end()));
}

}  // namespace lintel::grammar
