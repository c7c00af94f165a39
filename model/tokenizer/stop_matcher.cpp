// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/stop_matcher.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace lintel {
namespace {

std::vector<std::size_t> borders_of(const std::string& string) {
  std::vector<std::size_t> borders(string.size() + 1, 0);
  std::size_t border = 0;
  for (std::size_t i = 1; i < string.size(); ++i) {
    while (border > 0 && string[i] != string[border]) border = borders[border];
    if (string[i] == string[border]) ++border;
    borders[i + 1] = border;
  }
  return borders;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  borders_.reserve(strings_.size());
  for (const std::string& string : strings_) {
    assert(!string.empty());
    borders_.push_back(borders_of(string));
  }
}

std::size_t StopStrings::advance(std::size_t i, std::size_t matched, char byte) const {
  const std::string& string = strings_[i];
  if (matched == string.size()) matched = borders_[i][matched];
  while (matched > 0 && string[matched] != byte) matched = borders_[i][matched];
  return string[matched] == byte ? matched + 1 : 0;
}

StopMatcher::StopMatcher(const StopStrings& strings)
    : strings_(&strings), matched_(strings.size(), 0) {}

void StopMatcher::replay(std::string_view text) {
  for (const char byte : text) push(byte);
}

std::optional<std::size_t> StopMatcher::push(char byte) {
  std::optional<std::size_t> longest;
  for (std::size_t i = 0; i < matched_.size(); ++i) {
    matched_[i] = strings_->advance(i, matched_[i], byte);
    const std::size_t length = (*strings_)[i].size();
    if (matched_[i] == length && (!longest || length > (*strings_)[*longest].size())) longest = i;
  }
  return longest;
}

std::size_t StopMatcher::undecided() const {
  return matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end());
}

void StopMatcher::reset() { std::fill(matched_.begin(), matched_.end(), 0); }

}  // namespace lintel
