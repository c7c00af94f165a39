// SPDX-License-Identifier: Apache-2.0
// Custom tools as functions of one text.
#include "server/openai/custom_tools.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

struct ReadInput {
  std::string text;
  bool is_whole = false;
};
// Reads the input in pieces of `size` bytes.
ReadInput input_of(std::string_view arguments, std::size_t size) {
  CustomInput input;
  ReadInput read;
  for (std::size_t at = 0; at < arguments.size(); at += size) {
    read.text += input.push(arguments.substr(at, size));
  }
  read.is_whole = input.is_whole(read.text);
  return read;
}

TEST_CASE("custom tool: the text of a call comes out of its arguments, in any pieces") {
  struct Case {
    const char* arguments;
    const char* text;
    bool is_whole;
  };
  const Case cases[] = {
      {R"({"input": "*** Begin\n\t\"a\" \\ \/ \b\f\r"})", "*** Begin\n\t\"a\" \\ / \b\f\r", true},
      {R"( { "input" : "a" } )", "a", true},
      {R"({"input": ""})", "", true},
      {R"({"input": "\u00e9\u4e2d\ud83d\ude00x"})", "\u00e9\u4e2d\U0001F600x", true},
      {R"({"input": "\ud83dx\ude00\ud83d\ud83d\n\ud83d"})", "\uFFFDx\uFFFD\uFFFD\uFFFD\n\uFFFD",
       true},
      {R"({"input": "\uzzzz"})", "\uFFFD", true},
      {R"({"input": "a", "more": {"b": ["}\"", 1]}})", "a", true},
      {R"({"input": "a", "more": {"b": 1})", "a", false},
      {R"({"input": "a")", "a", false},
      {R"({"input": "a\)", "a", false},
      {R"({"inp)", "", false},
      // Other arguments are the text.
      {R"({"patch": "a"})", R"({"patch": "a"})", true},
      {R"({ "inputs": "a"})", R"({ "inputs": "a"})", true},
      {R"({"in put": "a"})", R"({"in put": "a"})", true},
      {R"({"input": 3})", R"({"input": 3})", true},
      {R"({"patch": "a")", R"({"patch": "a")", false},
      {"[1]", "[1]", true},
      {"", "", false},
  };
  for (const Case& each : cases) {
    CAPTURE(each.arguments);
    for (const std::size_t size : {1, 2, 3, 7, 100}) {
      CAPTURE(size);
      const ReadInput read = input_of(each.arguments, size);
      CHECK(read.text == each.text);
      CHECK(read.is_whole == each.is_whole);
    }
  }
}

TEST_CASE("custom tool: its function has one text, and its description the grammar") {
  const ojson plain = function_of_custom_tool(
      ojson::parse(R"({"type": "custom", "name": "say", "description": "Says it.",
                       "format": {"type": "text"}})"));
  CHECK(plain == ojson::parse(R"({"name": "say", "description": "Says it.", "parameters": {
      "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
      "additionalProperties": false}})"));
  const ojson lark = function_of_custom_tool(ojson::parse(R"({"type": "custom", "name": "patch",
      "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}})"));
  CHECK(lark["description"] == "`input` is a text of this grammar (Lark):\nstart: \"a\"");
  CHECK_FALSE(lark["parameters"]["properties"]["input"].contains("pattern"));
  const ojson regex = function_of_custom_tool(
      ojson::parse(R"({"type": "custom", "name": "day", "description": "A day.",
      "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+|x"}})"));
  CHECK(regex["description"] ==
        "A day.\n\n`input` is a text of this regular expression:\n[a-z]+|x");
  CHECK(regex["parameters"]["properties"]["input"]["pattern"] == "^[a-z]+$|^x$");
  CHECK(regex["strict"] == true);
  CHECK_FALSE(lark.contains("strict"));
  CHECK(custom_tool_arguments("a\"\n") == R"({"input":"a\"\n"})");
}

}  // namespace
}  // namespace lintel::testing
