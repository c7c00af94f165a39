// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_format.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "server/chat/template/request_json.h"
#include "server/grammar/gbnf.h"
#include "server/openai/members.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

std::string read_format_text(const Json& value, std::string& text) {
  if (!value.is_string()) return "is not a text";
  text = value.get<std::string>();
  return "";
}

// Ignores the members that are not among `known`, unless they misspell one. at: of the object, with
// its dot.
std::string pass_others(const Json& object, const std::string& at,
                        std::initializer_list<std::string_view> known, IgnoredMembers& ignored) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string wrong = pass_unknown(at, name, value, 0, known, ignored);
    if (!wrong.empty()) return "has '" + clip(name) + "', which " + wrong;
  }
  return "";
}

std::string read_response_format(const Json& value, api::AnswerFormat& format,
                                 IgnoredMembers& ignored) {
  using Format = api::AnswerFormat::Format;
  const Json type = value.is_object() ? value.value("type", Json()) : Json();
  constexpr const char* kAt = "response_format.";
  if (type == "text") return pass_others(value, kAt, {"type"}, ignored);
  if (type == "json_object") {
    const Json schema = value.value("schema", Json());
    format.format = Format::kJsonObject;
    format.format_text = schema.is_null() ? R"({"type": "object"})" : json_text(schema);
    if (!schema.is_null()) format.format_member = "response_format.schema";
    return pass_others(value, kAt, {"type", "schema"}, ignored);
  }
  if (type != "json_schema") return "is not of type text, json_object or json_schema";
  const Json named = value.value("json_schema", Json());
  const Json schema = named.is_object() ? named.value("schema", Json()) : Json();
  if (schema.is_null()) return "has no json_schema.schema";
  for (const std::string& wrong :
       {pass_others(value, kAt, {"type", "json_schema"}, ignored),
        pass_others(named, "response_format.json_schema.",
                    {"name", "description", "schema", "strict"}, ignored)}) {
    if (!wrong.empty()) return wrong;
  }
  format.format = Format::kJsonSchema;
  format.format_text = json_text(schema);
  format.format_member = "response_format.json_schema.schema";
  format.strict_schema = named.value("strict", Json()) == true;
  return "";
}

std::string read_grammar(const Json& value, api::AnswerFormat& format) {
  format.format = api::AnswerFormat::Format::kGrammar;
  return read_format_text(value, format.format_text);
}

// Reads texts as a grammar in GBNF of one of them.
std::string read_choices(const Json& value, api::AnswerFormat& format) {
  if (!value.is_array() || value.empty()) return "is not a list of texts";
  std::string rules = "root ::= ";
  const char* separator = "";
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      return "has an item that is no text, or an empty one";
    }
    rules += std::exchange(separator, " | ");
    rules += grammar::gbnf_text(choice.get_ref<const std::string&>());
  }
  format.format = api::AnswerFormat::Format::kGrammar;
  format.format_text = std::move(rules);
  return "";
}

std::string read_regex(const Json& value, api::AnswerFormat& format) {
  format.format = api::AnswerFormat::Format::kPattern;
  return read_format_text(value, format.format_text);
}

// Reads a schema, or its text.
std::string read_guided_json(const Json& value, api::AnswerFormat& format) {
  if (!value.is_string() && !value.is_object()) return "is not a schema";
  format.format = api::AnswerFormat::Format::kJsonSchema;
  format.format_text = value.is_string() ? value.get<std::string>() : json_text(value);
  return "";
}

// Reads vLLM's structured_outputs: one of its members defines the answer.
std::string read_structured_outputs(const Json& value, api::AnswerFormat& format,
                                    IgnoredMembers& ignored) {
  if (!value.is_object()) return "is not an object";
  const std::initializer_list<std::string_view> served = {"choice", "regex", "json", "grammar",
                                                          "json_object"};
  std::string taken;
  for (const auto& [name, member] : value.items()) {
    if (member.is_null() || std::ranges::find(served, name) == served.end()) continue;
    if (name == "json_object" && member == false) continue;
    if (!taken.empty()) return "has " + taken + " and " + name + ", one of them is taken";
    taken = name;
    std::string wrong;
    if (name == "choice") {
      wrong = read_choices(member, format);
    } else if (name == "regex") {
      wrong = read_regex(member, format);
    } else if (name == "json") {
      wrong = read_guided_json(member, format);
    } else if (name == "grammar") {
      wrong = read_grammar(member, format);
    } else if (member == true) {
      format.format = api::AnswerFormat::Format::kJsonObject;
      format.format_text = R"({"type": "object"})";
    } else {
      wrong = "is not true or false";
    }
    if (!wrong.empty()) return "has a " + name + " that " + wrong;
    format.format_member = "structured_outputs." + name;
  }
  if (value.contains("structural_tag") && !value["structural_tag"].is_null()) {
    return "has structural_tag, which is not served";
  }
  if (taken.empty()) return "has none of choice, regex, json, grammar and json_object";
  return pass_others(value, "structured_outputs.", served, ignored);
}

}  // namespace

bool is_answer_format(std::string_view name) {
  return std::ranges::find(kAnswerFormats, name) != std::end(kAnswerFormats);
}

bool has_answer_format(std::string_view name, const Json& value) {
  if (value.is_null()) return false;
  if (name == "response_format") {
    return !value.is_object() || value.value("type", Json()) != "text";
  }
  return name == "structured_outputs" || name == "guided_choice" || value != "";
}

std::string read_answer_format(std::string_view name, const Json& value, api::AnswerFormat& format,
                               IgnoredMembers& ignored) {
  const bool has_format = has_answer_format(name, value);
  if (has_format) format.format_member = name;  // readers name the part that has the text
  if (name == "response_format") return read_response_format(value, format, ignored);
  if (!has_format) return "";
  if (name == "structured_outputs") return read_structured_outputs(value, format, ignored);
  if (name == "guided_choice") return read_choices(value, format);
  if (name == "guided_regex") return read_regex(value, format);
  if (name == "guided_json") return read_guided_json(value, format);
  return read_grammar(value, format);
}

}  // namespace lintel
