// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/call_finder.h"

#include <algorithm>

namespace lintel::grammar {
namespace {

constexpr std::size_t kMostSpace = 64;  // more than a grammar of calls takes
constexpr std::size_t kMostNameBytes = 256;
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kFunctionTag = "<function=";

std::string_view tag_of(ToolDialect dialect) {
  return dialect == ToolDialect::kPythonic ? "<|tool_call_start|>" : "<tool_call>";
}

bool is_space(char c) { return kSpace.find(c) != std::string_view::npos; }

std::string_view without_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

// White space that every grammar of calls takes: none, a blank, or a line end and a short indent.
bool is_short_space(std::string_view space) {
  constexpr std::size_t kMostIndent = 8;
  if (space.empty() || space == " ") return true;
  return space[0] == '\n' && space.size() <= 1 + kMostIndent &&
         space.find_first_not_of(' ', 1) == std::string_view::npos;
}

// True if `text` and `tag` may overlap: one ends with a beginning or the whole of the other's end.
bool may_end_tag(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() ? tag.ends_with(text) : text.ends_with(tag);
}

}  // namespace

CallFinder::Match CallFinder::match() const {
  const std::string_view text = pending_;
  if (dialect_ == ToolDialect::kXml && pending_begins_line_ && kFunctionTag.starts_with(text)) {
    return text.size() == kFunctionTag.size() ? Match::kWhole : Match::kPart;
  }
  const std::string_view tag = tag_of(dialect_);
  if (tag.starts_with(text)) return Match::kPart;
  if (!text.starts_with(tag)) return Match::kNone;
  const std::string_view rest = without_space(text.substr(tag.size()));
  if (rest.empty()) return Match::kPart;
  switch (dialect_) {
    case ToolDialect::kHermes:
      return rest == "{" ? Match::kWhole : Match::kNone;
    case ToolDialect::kXml:
      if (!kFunctionTag.starts_with(rest)) return Match::kNone;
      return rest.size() == kFunctionTag.size() ? Match::kWhole : Match::kPart;
    case ToolDialect::kPythonic:
      break;
  }
  if (rest == "[" || rest == "{") return Match::kWhole;
  const std::size_t name = std::min(rest.find_first_of(kNotInNames), rest.size());
  if (name == 0 || name > kMostNameBytes) return Match::kNone;
  const std::string_view after = without_space(rest.substr(name));
  if (after.empty()) return Match::kPart;
  return after == "(" ? Match::kWhole : Match::kNone;
}

bool CallFinder::step(char byte) {
  const bool begins_line = begins_line_;
  begins_line_ = byte == '\n';
  if (pending_.empty()) {
    if (byte != '<') return false;
    pending_begins_line_ = begins_line;
  }
  const std::size_t space = pending_.size() - (pending_.find_last_not_of(kSpace) + 1);
  if (is_space(byte) && space >= kMostSpace) {
    pending_.back() = byte;
    return false;
  }
  pending_ += byte;
  for (;;) {
    const Match found = match();
    if (found != Match::kNone) return found == Match::kWhole;
    const std::size_t next = pending_.find('<', 1);
    if (next == std::string::npos) break;
    pending_begins_line_ = pending_[next - 1] == '\n';
    pending_.erase(0, next);
  }
  pending_.clear();
  return false;
}

std::string CallFinder::text() const {
  const std::string_view tag = tag_of(dialect_);
  const bool is_bare = pending_.size() > 1 && kFunctionTag.starts_with(pending_);
  if (is_bare) return std::string(tag) + pending_;
  if (!pending_.starts_with(tag)) return pending_;
  const std::string_view after = std::string_view(pending_).substr(tag.size());
  const std::string_view head = without_space(after);
  const std::string_view space = after.substr(0, after.size() - head.size());
  std::string call(tag);
  call += is_short_space(space) ? space : "\n";
  call += head;
  return call;
}

bool CallFinder::may_begin_in(ToolDialect dialect, std::string_view token, bool whole) {
  const std::string_view tag = tag_of(dialect);
  if (dialect == ToolDialect::kXml) {
    for (std::size_t at = token.find('='); at != std::string_view::npos;
         at = token.find('=', at + 1)) {
      const std::string_view before = token.substr(0, at + 1);
      if (whole ? before.ends_with(kFunctionTag) : may_end_tag(before, kFunctionTag)) return true;
    }
    return false;
  }
  const std::string_view ends = dialect == ToolDialect::kHermes ? "{" : "{[(";
  for (std::size_t at = token.find_first_of(ends); at != std::string_view::npos;
       at = token.find_first_of(ends, at + 1)) {
    if (whole) {
      if (token.substr(0, at).find(tag) != std::string_view::npos) return true;
      continue;
    }
    if (token[at] == '(') return true;  // after a name, which may be of several tokens
    const std::string_view before = token.substr(0, at);
    if (may_end_tag(before.substr(0, before.find_last_not_of(kSpace) + 1), tag)) return true;
  }
  return false;
}

}  // namespace lintel::grammar
