// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <set>
#include <string>

#include "server/chat/reader/call_reader.h"
#include "server/chat/reader/json_call.h"
#include "server/chat/reader/literals.h"

namespace lintel {
namespace {

constexpr std::size_t kKeyOverhead = 64;  // of the set of keywords, each

class PythonicReader final : public CallReader {
 public:
  Progress step(char byte, Lookahead& /*input*/, CallSink& sink) override {
    const Progress progress = step_list(byte, sink);
    // A call that cannot be read after the first announcement is dropped.
    return progress == Progress::kNotACall && announced_ ? Progress::kDropRest : progress;
  }

 private:
  enum class State {
    kList,  // an optional bracket
    kItem,
    kName,
    kParenthesis,
    kKeyOrEnd,
    kKey,
    kEquals,
    kValue,
    kAfterValue,
    kJson,
    kAfterItem,
    kAfterList,
  };

  Progress step_list(char byte, CallSink& sink);
  Progress begin_item(char byte);
  Progress step_value(char byte, CallSink& sink);
  Progress after_value(char byte, CallSink& sink);
  Progress step_json(char byte, CallSink& sink);
  Progress open_parenthesis(CallSink& sink);
  void write_value(CallSink& sink);

  State state_ = State::kList;
  bool in_brackets_ = false;
  bool announced_ = false;
  NameText name_;  // of the function, then of a keyword
  std::set<std::string, std::less<>> keys_;
  std::size_t key_bytes_ = 0;
  std::optional<LiteralReader> literal_;
  std::string value_;
  std::optional<JsonCall> json_;
};

CallReader::Progress PythonicReader::begin_item(char byte) {
  if (byte == '{') {
    json_.emplace();
    state_ = State::kJson;
    return Progress::kMore;
  }
  name_.clear();
  state_ = State::kName;
  return name_.step(byte) ? Progress::kMore : Progress::kNotACall;
}

CallReader::Progress PythonicReader::open_parenthesis(CallSink& sink) {
  announced_ = true;
  sink.announce(name_.text());
  sink.arguments("{");
  keys_.clear();
  key_bytes_ = 0;
  state_ = State::kKeyOrEnd;
  return Progress::kMore;
}

void PythonicReader::write_value(CallSink& sink) {
  state_ = State::kAfterValue;
  if (keys_.contains(name_.text())) return;  // of a keyword that comes twice the first counts
  std::string piece = keys_.empty() ? "\"" : ", \"";
  append_escaped(name_.text(), piece);
  piece += "\": ";
  piece += value_;
  keys_.insert(name_.text());
  key_bytes_ += name_.text().size() + kKeyOverhead;
  sink.arguments(piece);
}

CallReader::Progress PythonicReader::after_value(char byte, CallSink& sink) {
  if (is_white_space(byte)) return Progress::kMore;
  if (byte == ')') {
    sink.arguments("}");
    sink.complete();
    state_ = State::kAfterItem;
    return Progress::kCallEnd;
  }
  state_ = State::kKeyOrEnd;
  return byte == ',' && key_bytes_ <= kMaxHeldBytes ? Progress::kMore : Progress::kDropRest;
}

CallReader::Progress PythonicReader::step_value(char byte, CallSink& sink) {
  switch (literal_->step(byte, value_)) {
    case LiteralReader::Progress::kMore:
      return Progress::kMore;
    case LiteralReader::Progress::kFailed:
      return Progress::kDropRest;
    case LiteralReader::Progress::kEnd:
      write_value(sink);
      return Progress::kMore;
    case LiteralReader::Progress::kEndBefore:
      break;
  }
  write_value(sink);
  return after_value(byte, sink);
}

CallReader::Progress PythonicReader::step_json(char byte, CallSink& sink) {
  const JsonCall::Progress progress = json_->step(byte, sink);
  announced_ = announced_ || json_->announced();
  if (progress == JsonCall::Progress::kFailed) return Progress::kNotACall;
  if (progress != JsonCall::Progress::kMore) sink.complete();
  if (progress != JsonCall::Progress::kEnd) return Progress::kMore;
  state_ = State::kAfterItem;
  return Progress::kCallEnd;
}

CallReader::Progress PythonicReader::step_list(char byte, CallSink& sink) {
  const bool blank = is_white_space(byte);
  switch (state_) {
    case State::kList:
      if (blank) return Progress::kMore;
      if (byte != '[') return begin_item(byte);
      in_brackets_ = true;
      state_ = State::kItem;
      return Progress::kMore;
    case State::kItem:
      return blank ? Progress::kMore : begin_item(byte);
    case State::kName:
      if (byte == '(') return open_parenthesis(sink);
      if (blank) {
        state_ = State::kParenthesis;
        return Progress::kMore;
      }
      return name_.step(byte) ? Progress::kMore : Progress::kNotACall;
    case State::kParenthesis:
      if (blank) return Progress::kMore;
      return byte == '(' ? open_parenthesis(sink) : Progress::kNotACall;
    case State::kKeyOrEnd:
      if (blank || byte == ')') return after_value(byte, sink);
      name_.clear();
      state_ = State::kKey;
      return name_.step(byte) ? Progress::kMore : Progress::kDropRest;
    case State::kKey:
      if (byte != '=' && !blank) {
        return name_.step(byte) ? Progress::kMore : Progress::kDropRest;
      }
      state_ = State::kEquals;
      [[fallthrough]];
    case State::kEquals:
      if (blank) return Progress::kMore;
      if (byte != '=') return Progress::kDropRest;
      value_.clear();
      literal_.emplace();
      state_ = State::kValue;
      return Progress::kMore;
    case State::kValue:
      return step_value(byte, sink);
    case State::kAfterValue:
      return after_value(byte, sink);
    case State::kJson:
      return step_json(byte, sink);
    case State::kAfterItem:
      if (blank) return Progress::kMore;
      state_ = byte == ',' ? State::kItem : State::kAfterList;
      return byte == ',' || (byte == ']' && in_brackets_) ? Progress::kMore : Progress::kDropRest;
    case State::kAfterList:
      return blank ? Progress::kMore : Progress::kDropRest;
  }
  return Progress::kDropRest;
}

}  // namespace

std::unique_ptr<CallReader> make_pythonic_reader() { return std::make_unique<PythonicReader>(); }

}  // namespace lintel
