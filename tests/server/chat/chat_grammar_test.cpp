// SPDX-License-Identifier: Apache-2.0
// Grammars of answers: what is beside one another in them.
#include "server/chat/chat_grammar.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/grammar/matcher.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

api::ChatParams request_of(api::ChatParams::Format format, std::string_view format_text,
                           bool has_tools) {
  api::ChatParams request;
  request.format = format;
  request.format_text = format_text;
  if (has_tools) {
    request.tools = nlohmann::ordered_json::parse(
        R"([{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}])");
  }
  return request;
}

bool takes(const api::ChatParams& request, std::string_view text) {
  grammar::GrammarCache cache;
  ChatGrammar made;
  TemplateTraits traits;
  traits.dialect = ToolDialect::kHermes;
  REQUIRE(make_chat_grammar(request, traits, cache, made).ok());
  grammar::Matcher matcher(made.grammar);
  return matcher.advance(text) && matcher.accepts();
}

TEST_CASE("chat grammar: documents have the same white space with tools and without") {
  using Format = api::ChatParams::Format;
  const std::string wide = "\n" + std::string(32, ' ');
  const std::string too_wide = wide + " ";
  const auto document = [](const std::string& space) {
    return "{" + space + "\"a\":" + space + "[" + space + "1" + space + "]" + space + "}";
  };
  for (const bool has_tools : {false, true}) {
    const api::ChatParams object = request_of(Format::kJsonObject, "{}", has_tools);
    CHECK(takes(object, document(wide)));
    CHECK_FALSE(takes(object, document(too_wide)));
    const api::ChatParams schema =
        request_of(Format::kJsonSchema, R"({"properties": {"a": {"const": [1]}}})", has_tools);
    CHECK(takes(schema, document(wide)));
    CHECK_FALSE(takes(schema, document(too_wide)));
    const std::string call =
        "<tool_call>\n{\"name\": \"get\", \"arguments\": " + document(wide) + "}\n</tool_call>";
    CHECK(takes(object, call) == has_tools);
  }
  // A forced call has fewer.
  api::ChatParams forced = request_of(Format::kText, "", /*has_tools=*/true);
  forced.tool_choice = api::ChatParams::ToolChoice::kRequired;
  const auto call = [&](const std::string& space) {
    return "<tool_call>\n{\"name\": \"get\", \"arguments\": " + document(space) + "}\n</tool_call>";
  };
  CHECK(takes(forced, call("\n    ")));
  CHECK_FALSE(takes(forced, call(wide)));
}

TEST_CASE("chat grammar: a regular expression is that of a whole text") {
  const api::ChatParams request =
      request_of(api::ChatParams::Format::kPattern, "^ab|b$", /*has_tools=*/false);
  CHECK(takes(request, "ab"));
  CHECK(takes(request, "b"));
  for (const char* const other : {"abb", "bab", "a", ""}) CHECK_FALSE(takes(request, other));
}

TEST_CASE("chat grammar: a list of relaxed keywords that is cut ends with dots") {
  const auto named = [](int keywords) {
    nlohmann::ordered_json schema = {{"type", "object"}};
    for (int i = 0; i < keywords; ++i) {
      schema["properties"]["p" + std::to_string(100 + i)] = {{"if", true}, {"then", false}};
    }
    api::ChatParams request;
    request.format = api::ChatParams::Format::kJsonSchema;
    request.format_text = schema.dump();
    grammar::GrammarCache cache;
    ChatGrammar made;
    REQUIRE(make_chat_grammar(request, {}, cache, made).ok());
    return made.relaxed;
  };
  CHECK_THAT(named(32), Catch::EndsWith("#/properties/p131 then"));
  CHECK_THAT(named(33), Catch::EndsWith("#/properties/p131 then, ..."));
  CHECK_THAT(named(500), Catch::EndsWith("#/properties/p131 then, ..."));
  CHECK(named(500).size() < 2100);
}

TEST_CASE("chat grammar: closed objects of forced calls are named, apart from relaxed keywords") {
  const auto made_of = [](bool is_forced, bool is_strict) {
    api::ChatParams request;
    request.tools = nlohmann::ordered_json::parse(R"([{"type": "function", "function": {
        "name": "get", "parameters": {"type": "object", "properties": {
            "where": {"type": "object", "properties": {"city": {"type": "string"}}},
            "tags": {"type": "array", "uniqueItems": false}}}}}])");
    if (is_strict) request.tools[0]["function"]["strict"] = true;
    if (!is_strict) {
      request.tools[0]["function"]["parameters"]["properties"]["tags"]["uniqueItems"] = true;
    }
    if (is_forced) request.tool_choice = api::ChatParams::ToolChoice::kRequired;
    grammar::GrammarCache cache;
    ChatGrammar made;
    TemplateTraits traits;
    traits.dialect = ToolDialect::kHermes;
    REQUIRE(make_chat_grammar(request, traits, cache, made).ok());
    return made;
  };
  const auto takes_other = [](const ChatGrammar& made) {
    grammar::Matcher matcher(made.grammar);
    return matcher.advance(
        "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"where\": {\"c\": 1}");
  };
  const ChatGrammar forced = made_of(/*is_forced=*/true, /*is_strict=*/false);
  CHECK(forced.closed == "get#, get#/properties/where");
  CHECK(forced.relaxed == "get#/properties/tags uniqueItems");
  CHECK_FALSE(takes_other(forced));
  CHECK(made_of(/*is_forced=*/false, /*is_strict=*/false).closed.empty());
  CHECK(takes_other(made_of(/*is_forced=*/false, /*is_strict=*/false)));
  CHECK(made_of(/*is_forced=*/true, /*is_strict=*/true).closed.empty());
  CHECK(takes_other(made_of(/*is_forced=*/true, /*is_strict=*/true)));
}

}  // namespace
}  // namespace lintel
