// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>

#include "model/core/json_reader.h"
#include "server/chat/reader/call_reader.h"
#include "server/chat/reader/literals.h"

namespace lintel {
namespace {

constexpr int kMaxJsonDepth = 128;
constexpr std::size_t kParameterOverhead = 64;  // of the set of keys, each
constexpr std::size_t kMaxPadding = 64;         // blanks and quotes around a name

// Types of which an empty value is none: it is null where that is one of them, else left out.
constexpr TypeSet kNotEmpty = kNullType | kBooleanType | kIntegerType | kNumberType;

constexpr Tags kInBody =
    tag_bit(Tag::kParameter) | tag_bit(Tag::kEndFunction) | tag_bit(Tag::kEndToolCall);

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_white_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_white_space(text.back())) text.remove_suffix(1);
  return text;
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

bool is_json(std::string_view text) {
  class Sink final : public nlohmann::json_sax<nlohmann::json> {
   public:
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(std::size_t) override { return true; }
    bool key(string_t&) override { return true; }
    bool end_object() override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
      return false;
    }
  };
  Sink sink;
  JsonFailure failure;
  return read_json_events(text, JsonBounds{.max_depth = kMaxJsonDepth}, sink, failure);
}

// A list or mapping of Python as JSON. Empty: it is none.
std::string literal_as_json(std::string_view text) {
  LiteralReader reader;
  std::string json;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const LiteralReader::Progress progress = reader.step(text[i], json);
    if (progress == LiteralReader::Progress::kMore) continue;
    if (progress == LiteralReader::Progress::kEnd && i + 1 == text.size()) return json;
    break;
  }
  return {};
}

// The first character of what may be JSON and no text, where no type is known.
bool may_be_structured(char first) { return first == '{' || first == '['; }

// A value as JSON of one of the types, if `takes` agrees, else as a text.
template <typename Takes>
std::string as_json(std::string_view value, TypeSet types, const Takes& takes) {
  const std::string_view text = trimmed(value);
  if ((types & kNullType) != 0 && (text == "null" || text == "None") && takes("null")) {
    return "null";
  }
  if ((types & kBooleanType) != 0) {
    for (const std::string_view name : {"true", "false"}) {
      if (equals_ignoring_case(text, name) && takes(name)) return std::string(name);
    }
  }
  const bool is_number = ((types & kIntegerType) != 0 && is_json_number(text, true)) ||
                         ((types & kNumberType) != 0 && is_json_number(text, false));
  if (is_number && takes(text)) return std::string(text);
  const char first = text.empty() ? '\0' : text.front();
  const bool may_be_any = (types & kAnyType) != 0 && may_be_structured(first);
  const bool may_be_literal = ((types & kObjectType) != 0 && first == '{') ||
                              ((types & kArrayType) != 0 && (first == '[' || first == '('));
  if ((may_be_any || may_be_literal) && is_json(text)) {
    if (takes(text)) return std::string(text);
  } else if (may_be_literal) {
    if (std::string json = literal_as_json(text); !json.empty() && takes(json)) return json;
  }
  // A list or an object alone: its key has been written.
  if (text.empty() && (types & (kTextType | kAnyType)) == 0) {
    if ((types & kObjectType) != 0) return "{}";
    if ((types & kArrayType) != 0) return "[]";
  }
  std::string json = "\"";
  append_escaped(value, json);
  return json += '"';
}

// The name in <function=NAME> or <parameter=KEY>, without blanks and quotes around it. A key that
// the function declares is read as it stands.
class TagName {
 public:
  enum class Progress { kMore, kEnd, kFailed };

  static TagName function() { return TagName(true, nullptr); }
  // `declared`: those of the function; null: unknown.
  static TagName key(const ToolTypes::Parameters* declared) { return TagName(false, declared); }

  Progress step(char byte) {
    if (byte == '>' && declared_ != nullptr && declared_->contains(whole_)) {
      text_ = whole_;
      return Progress::kEnd;
    }
    whole_ += byte;
    if (declared_ != nullptr) {
      const auto next = declared_->lower_bound(whole_);
      if (next == declared_->end() || !next->first.starts_with(whole_)) declared_ = nullptr;
    }
    const Progress progress = is_other_ ? step_other(byte) : Progress::kFailed;
    if (progress != Progress::kFailed) return progress;
    is_other_ = false;
    return declared_ == nullptr ? Progress::kFailed : Progress::kMore;
  }
  const std::string& text() const { return text_; }

 private:
  TagName(bool function, const ToolTypes::Parameters* declared)
      : function_(function), declared_(declared) {}

  // Reads a byte of a name that is not declared.
  Progress step_other(char byte) {
    if (byte == '>') return text_.empty() ? Progress::kFailed : Progress::kEnd;
    if (is_white_space(byte) || byte == '"' || byte == '\'') {
      pending_ += byte;
      return pending_.size() <= kMaxPadding ? Progress::kMore : Progress::kFailed;
    }
    if (text_.empty()) pending_.clear();
    if (byte == '<' || (function_ && !pending_.empty())) return Progress::kFailed;
    text_ += pending_;
    pending_.clear();
    if (function_ && !name_.step(byte)) return Progress::kFailed;
    if ((byte & 0xC0) != 0x80) ++characters_;
    text_ += byte;
    return characters_ <= kMaxNameCharacters ? Progress::kMore : Progress::kFailed;
  }

  bool function_;
  const ToolTypes::Parameters* declared_;  // null: the name is none of them
  bool is_other_ = true;                   // it may be a name that is not declared
  NameText name_;
  std::string whole_;
  std::string text_;
  std::string pending_;  // blanks and quotes, which count if the name continues
  std::size_t characters_ = 0;
};

class XmlReader final : public CallReader {
 public:
  XmlReader(const ToolTypes* tools, bool bare)
      : tools_(tools), state_(bare ? State::kFunctionName : State::kBegin) {}

  Progress step(char byte, Lookahead& input, CallSink& sink) override;
  void finish(Lookahead& input, CallSink& sink) override;

 private:
  enum class State {
    kBegin,     // white space before <function=
    kFunction,  // in <function=
    kFunctionName,
    kBody,  // between parameters: dropped
    kBodyTag,
    kKey,
    kValueBegin,  // a line feed is dropped
    kValueBeginCr,
    kValue,
    // Possible ends of a value, marked at their first byte.
    kValueCr,
    kValueLf,
    kValueTag,
    kAfterParameter,  // white space after </parameter>
    kAfterParameterTag,
    kAfterFunction,  // white space after </function>
    kAfterFunctionTag,
    kNextKey,  // after a line feed and <parameter=
  };

  Progress step_body_tag(char byte, Lookahead& input, CallSink& sink);
  Progress step_value_end(char byte, Lookahead& input, CallSink& sink);
  Progress take_value_tag(Lookahead& input, CallSink& sink);
  Progress close(CallSink& sink, Progress progress);
  void begin_value(CallSink& sink);
  void write_key(CallSink& sink);
  void begin_tag(State state, Tags tags);
  void add_value(std::string_view text, CallSink& sink);
  void end_value(CallSink& sink);
  void not_an_end(Lookahead& input, CallSink& sink);

  const ToolTypes* tools_;
  std::string function_;
  const ToolTypes::Parameters* parameters_ = nullptr;  // of the function; null if unknown
  State state_;
  TagMatcher tag_;
  TagName name_ = TagName::function();
  bool after_line_feed_ = false;  // kValueTag: <parameter= may end the value
  std::set<std::string, std::less<>> keys_;
  std::size_t key_bytes_ = 0;
  bool repeated_ = false;  // the key has come before: its value is dropped
  bool is_first_ = true;   // no member is written
  bool is_blank_ = true;   // the value is white space so far
  bool waits_ = false;     // the key is not written until the value is more than white space
  bool streams_ = false;   // the value is a text, written as it comes
  std::string key_;
  TypeSet types_ = 0;
  std::string value_;  // of one that comes whole
  std::string piece_;
};

void XmlReader::begin_tag(State state, Tags tags) {
  tag_.begin(tags);
  state_ = state;
}

CallReader::Progress XmlReader::close(CallSink& sink, Progress progress) {
  if (key_bytes_ > kMaxHeldBytes) return progress;
  sink.arguments("}");
  sink.complete();
  return progress;
}

void XmlReader::begin_value(CallSink& sink) {
  state_ = State::kValueBegin;
  key_ = name_.text();
  repeated_ = key_bytes_ > kMaxHeldBytes || keys_.contains(key_);
  if (repeated_) return;
  types_ = tools_ == nullptr ? 0 : tools_->types(function_, key_);
  streams_ = (types_ & ~kTextType) == 0;
  value_.clear();
  keys_.insert(key_);
  key_bytes_ += key_.size() + kParameterOverhead;
  is_blank_ = true;
  waits_ = (types_ & kNotEmpty) != 0 && (types_ & (kTextType | kAnyType)) == 0;
  if (!waits_) write_key(sink);
}

void XmlReader::write_key(CallSink& sink) {
  waits_ = false;
  piece_ = std::exchange(is_first_, false) ? "\"" : ", \"";
  append_escaped(key_, piece_);
  piece_ += streams_ ? "\": \"" : "\": ";
  sink.arguments(piece_);
}

void XmlReader::add_value(std::string_view text, CallSink& sink) {
  if (repeated_) return;
  if (streams_) {
    piece_.clear();
    append_escaped(text, piece_);
    sink.arguments(piece_);
    return;
  }
  value_ += text;
  if (is_blank_) {
    const auto first = std::ranges::find_if_not(text, is_white_space);
    if (first == text.end()) {
      if (value_.size() <= kMaxHeldBytes) return;
    } else {
      is_blank_ = false;
      streams_ = types_ == kAnyType && !may_be_structured(*first);
    }
    if (waits_) write_key(sink);
  }
  if (!streams_ && value_.size() <= kMaxHeldBytes) return;
  streams_ = true;  // a text, or too long for anything else
  sink.arguments("\"");
  add_value(std::exchange(value_, {}), sink);
}

void XmlReader::end_value(CallSink& sink) {
  if (repeated_) return;
  if (waits_) {
    if ((types_ & kNullType) == 0) return;
    write_key(sink);
    value_ = "null";
  }
  if (streams_) return sink.arguments("\"");
  const bool may_be_text = (types_ & (kTextType | kAnyType)) != 0;
  sink.arguments(as_json(value_, types_, [&](std::string_view json) {
    if (!may_be_text) return true;
    JsonFailure failure;
    const auto tree = read_json_tree(json, JsonBounds{.max_depth = kMaxJsonDepth}, failure);
    return !tree || tools_->takes(function_, key_, *tree);
  }));
}

// The first byte of what might have been the end is a part of the value.
void XmlReader::not_an_end(Lookahead& input, CallSink& sink) {
  const char first = input.marked_byte();
  add_value(std::string_view(&first, 1), sink);
  input.rewind();
  state_ = State::kValue;
}

CallReader::Progress XmlReader::step_body_tag(char byte, Lookahead& input, CallSink& sink) {
  const TagMatcher::Result result = tag_.step(byte);
  if (result == TagMatcher::Result::kMore) return Progress::kMore;
  if (result == TagMatcher::Result::kNone) {
    input.rewind();
    state_ = State::kBody;
    return Progress::kMore;
  }
  input.release();
  if (tag_.matched() == Tag::kEndFunction) return close(sink, Progress::kFunctionEnd);
  if (tag_.matched() == Tag::kEndToolCall) return close(sink, Progress::kSectionEnd);
  name_ = TagName::key(parameters_);
  state_ = State::kKey;
  return Progress::kMore;
}

CallReader::Progress XmlReader::take_value_tag(Lookahead& input, CallSink& sink) {
  const Tag tag = tag_.matched();
  if (state_ == State::kValueTag) {
    if (tag == Tag::kParameter) {
      name_ = TagName::key(parameters_);
      state_ = State::kNextKey;
    } else {
      state_ = tag == Tag::kEndParameter ? State::kAfterParameter : State::kAfterFunction;
    }
    return Progress::kMore;
  }
  input.release();
  end_value(sink);
  if (state_ == State::kAfterFunctionTag || tag == Tag::kEndToolCall) {
    return close(sink, Progress::kSectionEnd);
  }
  if (tag == Tag::kEndFunction) return close(sink, Progress::kFunctionEnd);
  name_ = TagName::key(parameters_);
  state_ = State::kKey;
  return Progress::kMore;
}

CallReader::Progress XmlReader::step_value_end(char byte, Lookahead& input, CallSink& sink) {
  switch (state_) {
    case State::kValueCr:
      if (byte == '\n') {
        state_ = State::kValueLf;
        return Progress::kMore;
      }
      break;
    case State::kValueLf:
      if (byte == '<') {
        begin_tag(State::kValueTag, tag_bit(Tag::kEndParameter) | tag_bit(Tag::kEndFunction) |
                                        tag_bit(Tag::kParameter));
        return Progress::kMore;
      }
      break;
    case State::kAfterParameter:
      if (is_white_space(byte) && input.marked_bytes() <= kMaxWaitingBytes) return Progress::kMore;
      if (byte == '<') {
        begin_tag(State::kAfterParameterTag, kInBody);
        return Progress::kMore;
      }
      break;
    case State::kAfterFunction:
      if (is_white_space(byte) && input.marked_bytes() <= kMaxWaitingBytes) return Progress::kMore;
      if (byte == '<') {
        begin_tag(State::kAfterFunctionTag, tag_bit(Tag::kEndToolCall));
        return Progress::kMore;
      }
      break;
    case State::kNextKey: {
      const TagName::Progress progress = name_.step(byte);
      if (progress == TagName::Progress::kMore) return Progress::kMore;
      if (progress == TagName::Progress::kEnd && parameters_ != nullptr &&
          parameters_->contains(name_.text())) {
        input.release();
        end_value(sink);
        begin_value(sink);
        return Progress::kMore;
      }
      break;
    }
    default: {  // in a tag
      const TagMatcher::Result result = tag_.step(byte);
      if (result == TagMatcher::Result::kMore) return Progress::kMore;
      if (result == TagMatcher::Result::kMatched) return take_value_tag(input, sink);
    }
  }
  not_an_end(input, sink);
  return Progress::kMore;
}

CallReader::Progress XmlReader::step(char byte, Lookahead& input, CallSink& sink) {
  switch (state_) {
    case State::kBegin:
      if (is_white_space(byte)) return Progress::kMore;
      begin_tag(State::kFunction, tag_bit(Tag::kFunction));
      return byte == '<' ? Progress::kMore : Progress::kNotACall;
    case State::kFunction:
      switch (tag_.step(byte)) {
        case TagMatcher::Result::kMore:
          break;
        case TagMatcher::Result::kNone:
          return Progress::kNotACall;
        case TagMatcher::Result::kMatched:
          state_ = State::kFunctionName;
      }
      return Progress::kMore;
    case State::kFunctionName: {
      const TagName::Progress progress = name_.step(byte);
      if (progress == TagName::Progress::kFailed) return Progress::kNotACall;
      if (progress == TagName::Progress::kMore) return Progress::kMore;
      sink.announce(name_.text());
      sink.arguments("{");
      function_ = name_.text();
      parameters_ = tools_ == nullptr ? nullptr : tools_->find(function_);
      state_ = State::kBody;
      return Progress::kMore;
    }
    case State::kBody:
      if (byte == '<') {
        input.mark();
        begin_tag(State::kBodyTag, kInBody);
      }
      return Progress::kMore;
    case State::kBodyTag:
      return step_body_tag(byte, input, sink);
    case State::kKey: {
      const TagName::Progress progress = name_.step(byte);
      if (progress == TagName::Progress::kEnd) begin_value(sink);
      if (progress != TagName::Progress::kFailed) return Progress::kMore;
      state_ = State::kBody;
      return step(byte, input, sink);  // it may begin a tag
    }
    case State::kValueBegin:
      state_ = State::kValue;
      if (byte == '\n') return Progress::kMore;
      if (byte != '\r') return step(byte, input, sink);
      input.mark();
      state_ = State::kValueBeginCr;
      return Progress::kMore;
    case State::kValueBeginCr:
      if (byte == '\n') {
        input.release();
        state_ = State::kValue;
      } else {
        not_an_end(input, sink);
      }
      return Progress::kMore;
    case State::kValue:
      if (byte != '\r' && byte != '\n' && byte != '<') {
        add_value(std::string_view(&byte, 1), sink);
        return Progress::kMore;
      }
      input.mark();
      if (byte == '<') {
        begin_tag(State::kValueTag, tag_bit(Tag::kEndParameter) | tag_bit(Tag::kEndFunction));
      } else {
        state_ = byte == '\r' ? State::kValueCr : State::kValueLf;
      }
      return Progress::kMore;
    default:
      return step_value_end(byte, input, sink);
  }
}

void XmlReader::finish(Lookahead& input, CallSink& sink) {
  // Held bytes are a part of the value, but for white space after </parameter>.
  while (input.marked() && state_ != State::kBodyTag) {
    if (state_ == State::kAfterParameter) {
      end_value(sink);
      return;
    }
    not_an_end(input, sink);
    while (!input.empty()) {
      const char byte = input.next();
      step(byte, input, sink);
    }
  }
}

}  // namespace

std::unique_ptr<CallReader> make_xml_reader(const ToolTypes* tools, bool bare) {
  return std::make_unique<XmlReader>(tools, bare);
}

}  // namespace lintel
