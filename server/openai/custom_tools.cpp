// SPDX-License-Identifier: Apache-2.0
#include "server/openai/custom_tools.h"

#include <charconv>
#include <utility>

#include "server/chat/chat_output.h"
#include "server/chat/template/request_json.h"
#include "server/grammar/pattern.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kStartOfInput = R"({"input":")";
constexpr std::size_t kNameBegin = 2, kNameEnd = 7;  // within it: no space may be there
constexpr unsigned kNoCharacter = 0xFFFD;

void append_utf8(unsigned code, std::string& text) {
  const auto add = [&text](unsigned byte) { text += static_cast<char>(byte); };
  const auto add_rest = [&](int shift) { add(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    add(0xE0 | (code >> 12));
    add_rest(6);
  } else {
    add(0xF0 | (code >> 18));
    add_rest(12);
    add_rest(6);
  }
  add_rest(0);
}

bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

Json function_of_custom_tool(const Json& tool) {
  const Json format = tool.value("format", Json());
  std::string description;
  if (const auto found = tool.find("description"); found != tool.end() && found->is_string()) {
    description = *found;
  }
  Json input = {{"type", "string"}};
  bool is_strict = false;
  if (format.is_object() && format["type"] == "grammar") {
    const std::string syntax = format["syntax"], definition = format["definition"];
    if (!description.empty()) description += "\n\n";
    description += "`input` is a text of this " +
                   std::string(syntax == "regex" ? "regular expression" : "grammar (Lark)") +
                   ":\n" + definition;
    is_strict = syntax == "regex";
    if (is_strict) input["pattern"] = grammar::whole_pattern(definition);
  }
  Json function = {{"name", tool["name"]}};
  if (!description.empty()) function["description"] = std::move(description);
  function["parameters"] = {{"type", "object"},
                            {"properties", {{"input", std::move(input)}}},
                            {"required", Json::array({"input"})},
                            {"additionalProperties", false}};
  if (is_strict) function["strict"] = true;
  return function;
}

std::string custom_tool_arguments(const std::string& input) {
  return json_text({{"input", input}});
}

std::string CustomInput::push(std::string_view arguments) {
  std::string text;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    switch (at_) {
      case At::kStart:
        begun_ += arguments[i];
        if (read_start(arguments[i])) break;
        at_ = At::kOther;
        text = std::exchange(begun_, {});
        break;
      case At::kText:
        read_text(arguments[i], text);
        break;
      case At::kRest:
        read_rest(arguments[i]);
        break;
      case At::kOther:
        text += arguments.substr(i);
        return text;
    }
  }
  return text;
}

bool CustomInput::is_whole(std::string_view text) const {
  return at_ == At::kOther ? is_whole_json(text) : at_ == At::kRest && depth_ == 0;
}

bool CustomInput::read_start(char c) {
  const bool in_name = matched_ >= kNameBegin && matched_ <= kNameEnd;
  if (!in_name && is_json_space(c)) return true;
  if (c != kStartOfInput[matched_]) return false;
  if (++matched_ < kStartOfInput.size()) return true;
  at_ = At::kText;
  begun_.clear();
  return true;
}

void CustomInput::read_text(char c, std::string& text) {
  if (!escape_.empty()) {
    escape_ += c;
    const std::size_t size = escape_[1] == 'u' ? 6 : 2;
    if (escape_.size() == size) read_escape(text);
    return;
  }
  if (c == '\\') {
    escape_ = c;
    return;
  }
  drop_half_pair(text);
  if (c == '"') {
    at_ = At::kRest;
  } else {
    text += c;
  }
}

void CustomInput::read_escape(std::string& text) {
  const std::string escape = std::exchange(escape_, {});
  if (escape[1] != 'u') {
    drop_half_pair(text);
    constexpr std::string_view kNames = "bfnrt", kCharacters = "\b\f\n\r\t";
    const std::size_t named = kNames.find(escape[1]);
    text += named == std::string_view::npos ? escape[1] : kCharacters[named];
    return;
  }
  unsigned code = kNoCharacter;
  const char* const end = escape.data() + escape.size();
  if (std::from_chars(escape.data() + 2, end, code, 16).ptr != end) code = kNoCharacter;
  const bool is_low = code >= 0xDC00 && code < 0xE000;
  if (is_low && high_ != 0) {
    return append_utf8(0x10000 + ((std::exchange(high_, 0) - 0xD800) << 10) + (code - 0xDC00),
                       text);
  }
  drop_half_pair(text);
  if (code >= 0xD800 && code < 0xDC00) {
    high_ = code;
  } else {
    append_utf8(is_low ? kNoCharacter : code, text);
  }
}

void CustomInput::drop_half_pair(std::string& text) {
  if (std::exchange(high_, 0) != 0) append_utf8(kNoCharacter, text);
}

void CustomInput::read_rest(char c) {
  if (in_string_) {
    if (std::exchange(is_escaped_, false)) return;
    is_escaped_ = c == '\\';
    in_string_ = c != '"';
    return;
  }
  in_string_ = c == '"';
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
}

}  // namespace lintel
