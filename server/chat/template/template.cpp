// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/template.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/interpreter.h"
#include "server/chat/template/lexer.h"
#include "server/chat/template/python_text.h"
#include "server/chat/template/request_json.h"
#include "server/chat/template/syntax.h"
#include "server/chat/template/values.h"

namespace lintel {

using jinja::Arena;
using jinja::Value;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kGivenVariables[] = {
    "messages",  "tools",     "documents", "add_generation_prompt",
    "bos_token", "eos_token", "pad_token", "unk_token"};
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
// transformers' mark; its last blank is missing if the template cuts white space off.
constexpr std::string_view kContinueMark = "CONTINUE_FINAL_MESSAGE_TAG ";

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const DecodedCharacter character = decode_character(text);
    if (character.code_point == DecodedCharacter::kInvalid) return false;
    text.remove_prefix(character.bytes);
  }
  return true;
}

// Values of JSON. Texts refer to the tree.
class JsonValues {
 public:
  explicit JsonValues(Arena& arena) : arena_(arena) {}

  Value value(const Json& tree, TextOrigin origin, int depth = 0) {
    if (depth > jinja::kMaxValueDepth) jinja::fail_bound("value depth", jinja::kMaxValueDepth);
    arena_.charge_steps(1);
    switch (tree.type()) {
      case Json::value_t::boolean:
        return Value::of(tree.get<bool>());
      case Json::value_t::number_integer:
        return Value::of(tree.get<std::int64_t>());
      case Json::value_t::number_unsigned: {
        const auto number = tree.get<std::uint64_t>();
        if (number <= std::uint64_t{INT64_MAX}) return Value::of(static_cast<std::int64_t>(number));
        return big(arena_.copy_text(std::to_string(number)));
      }
      case Json::value_t::number_float:
        return Value::of(tree.get<double>());
      case Json::value_t::string:
        return Value::of(arena_.text_of(tree.get_ref<const std::string&>(), origin));
      case Json::value_t::array: {
        Value* const items = arena_.make_array<Value>(tree.size());
        std::size_t i = 0;
        for (const Json& item : tree) items[i++] = value(item, origin, depth + 1);
        return Value::of(arena_.make(jinja::List{items, tree.size()}));
      }
      case Json::value_t::object:
        return object(tree, origin, depth, false);
      case Json::value_t::binary:
        if (const auto digits = big_integer_digits(tree)) return big(arena_.copy_text(*digits));
        return Value::none();
      default:
        return Value::none();
    }
  }

  // Texts of the assistant's messages are its own. `mark`: added to the last message's content.
  Value messages(const Json& tree, bool continues) {
    if (!tree.is_array()) jinja::fail("messages are not a list");
    Value* const items = arena_.make_array<Value>(tree.size());
    std::size_t i = 0;
    for (const Json& message : tree) {
      marks_ = continues && i + 1 == tree.size();
      const bool is_assistant =
          message.is_object() && message.contains("role") && message["role"] == "assistant";
      const TextOrigin origin = is_assistant ? TextOrigin::kAssistant : TextOrigin::kContent;
      items[i++] = message.is_object() ? object(message, origin, 0, true) : value(message, origin);
    }
    marks_ = false;
    return Value::of(arena_.make(jinja::List{items, tree.size()}));
  }

 private:
  static Value big(const jinja::Text* digits) {
    return Value::of(jinja::Kind::kBigInteger, &Value::text, digits);
  }

  Value object(const Json& tree, TextOrigin origin, int depth, bool is_message) {
    auto* const pairs = arena_.make_array<jinja::Pair>(tree.size());
    std::size_t i = 0;
    for (const auto& [key, member] : tree.items()) {
      pairs[i].key = Value::of(arena_.text_of(key, origin));
      pairs[i].value =
          is_message ? member_of_message(key, member, origin) : value(member, origin, depth + 1);
      ++i;
    }
    return Value::of(arena_.make(jinja::Mapping{pairs, tree.size()}));
  }

  Value member_of_message(const std::string& key, const Json& member, TextOrigin origin) {
    // Roles are few and checked: templates make control tokens of them.
    if (key == "role" && member.is_string()) {
      const auto& role = member.get_ref<const std::string&>();
      const bool is_known = std::ranges::find(kRoles, role) != std::end(kRoles);
      return value(member, is_known ? TextOrigin::kTemplate : origin, 1);
    }
    if (key == "content" && marks_) return marked_content(member, origin);
    return value(member, origin, 1);
  }

  Value marked_content(const Json& content, TextOrigin origin) {
    if (content.is_string()) return marked_text(content, origin);
    if (!content.is_array()) jinja::fail("continue_final_message: the last message has no text");
    std::size_t last = content.size();
    while (last > 0 && !(content[last - 1].is_object() && content[last - 1].contains("text") &&
                         content[last - 1]["text"].is_string())) {
      --last;
    }
    if (last == 0) jinja::fail("continue_final_message: the last message has no text");
    Value* const parts = arena_.make_array<Value>(content.size());
    for (std::size_t i = 0; i < content.size(); ++i) {
      if (i + 1 != last) {
        parts[i] = value(content[i], origin, 2);
        continue;
      }
      auto* const pairs = arena_.make_array<jinja::Pair>(content[i].size());
      std::size_t n = 0;
      for (const auto& [key, member] : content[i].items()) {
        pairs[n].key = Value::of(arena_.text_of(key, origin));
        pairs[n++].value = key == "text" ? marked_text(member, origin) : value(member, origin, 3);
      }
      parts[i] = Value::of(arena_.make(jinja::Mapping{pairs, n}));
    }
    return Value::of(arena_.make(jinja::List{parts, content.size()}));
  }

  Value marked_text(const Json& text, TextOrigin origin) {
    jinja::TextBuilder builder(arena_);
    builder.add(text.get_ref<const std::string&>(), origin);
    builder.add(kContinueMark, origin);
    return Value::of(builder.finish());
  }

  Arena& arena_;
  bool marks_ = false;
};

void cut_text(RenderedText& rendered, std::size_t size) {
  rendered.text.resize(size);
  while (!rendered.spans.empty() && rendered.spans.back().begin >= size) rendered.spans.pop_back();
  if (!rendered.spans.empty()) rendered.spans.back().end = size;
}

// Ends the text where the last message's content does.
void cut_at_mark(RenderedText& rendered) {
  const std::string_view word = kContinueMark.substr(0, kContinueMark.size() - 1);
  const std::size_t place = rendered.text.rfind(word);
  if (place == std::string::npos) {
    jinja::fail("continue_final_message: the template leaves the end of the last message out");
  }
  std::size_t size = place;
  if (!std::string_view(rendered.text).substr(place).starts_with(kContinueMark)) {
    size = jinja::skip_spaces_back(rendered.text, place);
  }
  cut_text(rendered, size);
}

}  // namespace

struct ChatTemplate::Program {
  std::string lines;  // the source as the tree refers to it
  jinja::Syntax syntax;
};

ChatTemplate::ChatTemplate(std::string source, SpecialTokenTexts special_tokens,
                           const TemplateLimits& limits)
    : source_(std::move(source)), special_tokens_(std::move(special_tokens)), limits_(limits) {
  if (!is_utf8(source_)) {
    throw TemplateError(TemplateError::Kind::kSyntax, 0, "the template is not UTF-8");
  }
  auto program = std::make_unique<Program>();
  program->lines = jinja::with_unix_lines(source_);
  program->syntax = jinja::parse_template(program->lines, limits_);
  program_ = std::move(program);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::has_variable(std::string_view name) const {
  return program_->syntax.names.contains(name);
}

RenderedText ChatTemplate::render(const RenderInput& input) const {
  Arena arena(limits_, input.budget);
  jinja::Interpreter interpreter(program_->syntax, arena, input.now);
  try {
    JsonValues values(arena);
    for (const auto& [name, text] : special_tokens_) {
      interpreter.set_variable(name, Value::of(arena.text_of(text)));
    }
    if (input.kwargs != nullptr && input.kwargs->is_object()) {
      for (const auto& [name, member] : input.kwargs->items()) {
        if (is_given_variable(name)) continue;
        interpreter.set_variable(name, values.value(member, TextOrigin::kContent));
      }
    }
    const auto optional = [&](const Json* tree) {
      return tree == nullptr ? Value::none() : values.value(*tree, TextOrigin::kContent);
    };
    interpreter.set_variable("tools", optional(input.tools));
    interpreter.set_variable("documents", optional(input.documents));
    interpreter.set_variable("add_generation_prompt", Value::of(input.add_generation_prompt));
    const Json none = Json::array();
    const Json& messages = input.messages == nullptr ? none : *input.messages;
    interpreter.set_variable("messages", values.messages(messages, input.continue_final_message));
    jinja::TextBuilder out(arena, limits_.output_bytes, "output_bytes");
    interpreter.run(out);
    RenderedText rendered = out.finish_render();
    if (input.continue_final_message) cut_at_mark(rendered);
    return rendered;
  } catch (const jinja::EvaluationError& error) {
    const bool is_bound = !error.bound().empty();
    throw TemplateError(is_bound ? TemplateError::Kind::kBound : TemplateError::Kind::kFailed,
                        interpreter.line(), error.what(), error.bound());
  }
}

bool is_given_variable(std::string_view name) {
  return std::ranges::find(kGivenVariables, name) != std::end(kGivenVariables);
}

LocalTime local_time(std::time_t time) {
  std::tm parts{};
  localtime_r(&time, &parts);
  LocalTime local;
  local.year = parts.tm_year + 1900;
  local.month = parts.tm_mon + 1;
  local.day = parts.tm_mday;
  local.hour = parts.tm_hour;
  local.minute = parts.tm_min;
  local.second = parts.tm_sec;
  local.zone = parts.tm_zone == nullptr ? "" : parts.tm_zone;
  return local;
}

}  // namespace lintel
