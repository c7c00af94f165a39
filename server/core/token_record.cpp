// SPDX-License-Identifier: Apache-2.0
#include "server/core/token_record.h"

#include <algorithm>

namespace lintel {
namespace {

// Bytes allocated for a text: a node of the table with its bucket, and a block for a text that does
// not fit into the string itself.
constexpr std::size_t kTextBytes = 80;
// Mean length of a vocabulary's texts.
constexpr std::size_t kMeanTextBytes = 16;

}  // namespace

void TokenRecord::add(std::int32_t id, std::string_view text, float log2_prob) {
  add_value(id, text, log2_prob);
  tops_.push_back(0);
}

void TokenRecord::add_top(std::int32_t id, std::string_view text, float log2_prob) {
  add_value(id, text, log2_prob);
  ++tops_.back();
}

void TokenRecord::add_value(std::int32_t id, std::string_view text, float log2_prob) {
  if (!text.empty() && texts_.try_emplace(id, text).second) text_bytes_ += text.size();
  values_.push_back({id, log2_prob});
}

std::string_view TokenRecord::text_of(std::int32_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? std::string_view() : found->second;
}

std::size_t TokenRecord::bytes() const {
  return values_.size() * sizeof(Value) + tops_.size() * sizeof(tops_.front()) +
         texts_.size() * kTextBytes + text_bytes_;
}

std::size_t TokenRecord::most_bytes(std::size_t tokens, std::size_t tops, std::size_t vocab_size) {
  const std::size_t values = tokens * (1 + tops);
  return tokens * sizeof(std::uint16_t) + values * sizeof(Value) +
         std::min(values, vocab_size) * (kTextBytes + kMeanTextBytes);
}

}  // namespace lintel
