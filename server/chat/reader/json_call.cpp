// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/json_call.h"

#include <utility>

namespace lintel {
namespace {

constexpr std::size_t kMaxKeyBytes = 16;  // longer than any that counts

bool is_scalar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '+' || c == '.';
}

}  // namespace

void JsonCall::announce(CallSink& sink) {
  announced_ = true;
  sink.announce(name_.text());
}

JsonCall::Progress JsonCall::end_key() {
  member_ = Member::kOther;
  if (key_ == "name" && name_.empty()) member_ = Member::kName;
  if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    member_ = Member::kArguments;
  }
  state_ = State::kColon;
  return Progress::kMore;
}

JsonCall::Progress JsonCall::begin_value(char byte, CallSink& sink) {
  if (is_white_space(byte)) return Progress::kMore;
  quoted_ = QuotedText();
  span_ = JsonSpan();
  piece_.clear();
  if (byte == '"') {
    if (member_ == Member::kArguments) has_arguments_ = true;
    state_ = member_ == Member::kName ? State::kName : State::kText;
    return Progress::kMore;
  }
  if (member_ == Member::kName || (member_ == Member::kArguments && byte != '{')) {
    return Progress::kFailed;
  }
  if (byte == '{' || byte == '[') {
    state_ = State::kSpan;
    if (member_ == Member::kArguments) {
      has_arguments_ = true;
      if (!name_.empty()) announce(sink);
      return add_arguments(byte, sink);
    }
    span_.step(byte, piece_);
    return Progress::kMore;
  }
  if (!is_scalar(byte)) return Progress::kFailed;
  state_ = State::kScalar;
  return Progress::kMore;
}

JsonCall::Progress JsonCall::add_arguments(char byte, CallSink& sink) {
  piece_.clear();
  const bool ended = span_.step(byte, piece_);
  if (announced_) {
    sink.arguments(piece_);
  } else {
    held_ += piece_;
    if (held_.size() > kMaxHeldBytes) return Progress::kFailed;
  }
  return ended ? end_arguments() : Progress::kMore;
}

JsonCall::Progress JsonCall::end_arguments() {
  complete_ = true;
  state_ = State::kAfterValue;
  return announced_ ? Progress::kWritten : Progress::kMore;
}

// A text of a member that does not count, or the arguments as a text.
JsonCall::Progress JsonCall::step_text(char byte, CallSink& sink) {
  piece_.clear();
  const bool ended = quoted_.step(byte, piece_);
  if (member_ == Member::kOther) {
    if (ended) state_ = State::kAfterValue;
    return Progress::kMore;
  }
  for (const char c : piece_) {
    if (held_.empty() && is_white_space(c)) continue;
    if (held_.empty()) {
      if (c != '{') return Progress::kFailed;
      if (!name_.empty()) announce(sink);
    }
    held_ += c;
  }
  if (held_.size() > kMaxHeldBytes) return Progress::kFailed;
  if (!ended) return Progress::kMore;
  if (held_.empty()) return Progress::kFailed;
  std::string arguments;
  bool complete = false;
  for (std::size_t i = 0; i < held_.size() && !complete; ++i) {
    complete = span_.step(held_[i], arguments);
  }
  held_.clear();
  if (announced_) {
    sink.arguments(arguments);
  } else {
    held_ = std::move(arguments);
  }
  return complete ? end_arguments() : Progress::kFailed;
}

JsonCall::Progress JsonCall::end_object(CallSink& sink) {
  if (name_.empty()) return Progress::kFailed;
  if (!announced_) {
    announce(sink);
    sink.arguments("{}");
  }
  return Progress::kEnd;
}

JsonCall::Progress JsonCall::step(char byte, CallSink& sink) {
  switch (state_) {
    case State::kKeyOrEnd:
      if (is_white_space(byte)) return Progress::kMore;
      if (byte == '}') return end_object(sink);
      if (byte != '"') return Progress::kFailed;
      quoted_ = QuotedText();
      key_.clear();
      state_ = State::kKey;
      return Progress::kMore;
    case State::kKey:
      piece_.clear();
      if (quoted_.step(byte, piece_)) return end_key();
      if (key_.size() < kMaxKeyBytes) key_ += piece_;
      return Progress::kMore;
    case State::kColon:
      if (is_white_space(byte)) return Progress::kMore;
      state_ = State::kValue;
      return byte == ':' ? Progress::kMore : Progress::kFailed;
    case State::kValue:
      return begin_value(byte, sink);
    case State::kName: {
      piece_.clear();
      const bool ended = quoted_.step(byte, piece_);
      for (const char c : piece_) {
        if (!name_.step(c)) return Progress::kFailed;
      }
      if (!ended) return Progress::kMore;
      if (name_.empty()) return Progress::kFailed;
      state_ = State::kAfterValue;
      if (!complete_) return Progress::kMore;
      announce(sink);
      sink.arguments(held_);
      held_ = {};
      return Progress::kWritten;
    }
    case State::kText:
      return step_text(byte, sink);
    case State::kSpan:
      if (member_ == Member::kArguments) return add_arguments(byte, sink);
      piece_.clear();
      if (span_.step(byte, piece_)) state_ = State::kAfterValue;
      return Progress::kMore;
    case State::kScalar:
      if (is_scalar(byte)) return Progress::kMore;
      [[fallthrough]];
    case State::kAfterValue:
      if (is_white_space(byte)) return Progress::kMore;
      if (byte == '}') return end_object(sink);
      state_ = State::kKeyOrEnd;
      return byte == ',' ? Progress::kMore : Progress::kFailed;
  }
  return Progress::kFailed;
}

}  // namespace lintel
