// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/text_stream.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace lintel {
namespace {

std::vector<std::size_t> borders_of_stop(const std::string& string) {
  std::vector<std::size_t> borders(string.size() + 1, 0);
  for (std::size_t n = 1, border = 0; n < string.size(); ++n) {
    while (border > 0 && string[n] != string[border]) border = borders[border];
    if (string[n] == string[border]) ++border;
    borders[n + 1] = border;
  }
  return borders;
}

}  // namespace

StopFilter::StopFilter(std::vector<std::string> strings)
    : strings_(std::move(strings)), matched_(strings_.size(), 0) {
  for (const std::string& string : strings_) {
    assert(!string.empty());
    borders_.push_back(borders_of_stop(string));
  }
}

std::size_t StopFilter::advance(std::size_t i, char byte) const {
  const std::string& string = strings_[i];
  std::size_t matched = matched_[i];
  while (matched > 0 && string[matched] != byte) matched = borders_[i][matched];
  return string[matched] == byte ? matched + 1 : 0;
}

bool StopFilter::push(std::string_view bytes, std::string& out) {
  assert(!stopped_by_);
  if (strings_.empty()) {
    out += bytes;
    return false;
  }
  for (const char byte : bytes) {
    waiting_ += byte;
    std::size_t undecided = 0;
    for (std::size_t i = 0; i < strings_.size(); ++i) {
      matched_[i] = advance(i, byte);
      undecided = std::max(undecided, matched_[i]);
      if (matched_[i] < strings_[i].size()) continue;
      if (!stopped_by_ || strings_[i].size() > strings_[*stopped_by_].size()) stopped_by_ = i;
    }
    if (stopped_by_) {
      out.append(waiting_, 0, waiting_.size() - strings_[*stopped_by_].size());
      waiting_.clear();
      return true;
    }
    out.append(waiting_, 0, waiting_.size() - undecided);
    waiting_.erase(0, waiting_.size() - undecided);
  }
  return false;
}

void StopFilter::finish(std::string& out) {
  out += waiting_;
  waiting_.clear();
}

TextStream::TextStream(const Tokenizer& tokenizer, bool begins_text, std::vector<std::string> stop)
    : tokenizer_(&tokenizer),
      drops_space_(begins_text && tokenizer.drops_first_space()),
      stop_(std::move(stop)) {}

std::string TextStream::push(std::int32_t id) {
  std::string text;
  std::string_view bytes = tokenizer_->bytes_of(id);
  if (stop_.stopped_by() || bytes.empty()) return text;
  if (std::exchange(drops_space_, false) && bytes.front() == ' ') bytes.remove_prefix(1);
  std::string passed;
  const bool stopped = stop_.push(bytes, passed);
  characters_.push(passed, text);
  if (stopped) characters_.finish(text);
  return text;
}

std::string TextStream::finish() {
  std::string rest;
  std::string text;
  stop_.finish(rest);
  characters_.push(rest, text);
  characters_.finish(text);
  return text;
}

std::string to_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                    bool begins_text) {
  TextStream stream(tokenizer, begins_text);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  return text += stream.finish();
}

}  // namespace lintel
