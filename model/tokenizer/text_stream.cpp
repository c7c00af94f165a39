// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/text_stream.h"

#include <cassert>
#include <utility>

namespace lintel {

StopFilter::StopFilter(std::vector<std::string> strings)
    : strings_(std::make_shared<const StopStrings>(std::move(strings))), matcher_(*strings_) {}

bool StopFilter::push(std::string_view bytes, std::string& out, bool may_match) {
  assert(!stopped_by_);
  if (strings_->empty()) {
    out += bytes;
    return false;
  }
  for (const char byte : bytes) {
    waiting_ += byte;
    const std::optional<std::size_t> matched = matcher_.push(byte);
    if (matched && may_match) {
      stopped_by_ = matched;
      out.append(waiting_, 0, waiting_.size() - (*strings_)[*stopped_by_].size());
      waiting_.clear();
      return true;
    }
    const std::size_t decided = waiting_.size() - matcher_.undecided();
    out.append(waiting_, 0, decided);
    waiting_.erase(0, decided);
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
