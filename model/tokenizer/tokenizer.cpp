// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace lintel {

void TokenTexts::set(std::int32_t id, std::string_view bytes) {
  Place& place = places_[static_cast<std::size_t>(id)];
  assert(place.size == 0);
  place = {static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(bytes.size())};
  bytes_ += bytes;
  longest_ = std::max(longest_, bytes.size());
}

void TokenTexts::set_special(std::int32_t id, std::string text) {
  places_[static_cast<std::size_t>(id)] = {};
  special_[id] = std::move(text);
}

std::string_view TokenTexts::bytes_of(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= places_.size()) return {};
  const Place place = places_[static_cast<std::size_t>(id)];
  return std::string_view(bytes_).substr(place.begin, place.size);
}

std::string_view TokenTexts::text_of_special(std::int32_t id) const {
  const auto found = special_.find(id);
  return found == special_.end() ? std::string_view() : found->second;
}

Tokenizer::Tokenizer(Parts parts)
    : kind_(std::move(parts.kind)),
      texts_(std::move(parts.texts)),
      named_(std::move(parts.named)),
      eos_(std::move(parts.eos)),
      drops_first_space_(parts.drops_first_space) {}

std::optional<std::int32_t> Tokenizer::find_token(std::string_view text) const {
  const auto found = named_.find(text);
  return found == named_.end() ? std::nullopt : std::optional(found->second);
}

namespace {

TokenTexts all_bytes() {
  TokenTexts texts(256);
  for (std::int32_t id = 0; id < 256; ++id) {
    const char byte = static_cast<char>(id);
    texts.set(id, {&byte, 1});
  }
  return texts;
}

}  // namespace

ByteTokenizer::ByteTokenizer()
    : Tokenizer({.kind = "bytes", .texts = all_bytes(), .named = {}, .eos = {}}) {}

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text, const EncodeOptions&) const {
  std::vector<std::int32_t> ids(text.size());
  std::ranges::transform(text, ids.begin(), [](char c) { return static_cast<unsigned char>(c); });
  return ids;
}

}  // namespace lintel
