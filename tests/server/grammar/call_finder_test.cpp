// SPDX-License-Identifier: Apache-2.0
// Where calls begin in reasoning.
#include "server/grammar/call_finder.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::grammar {
namespace {

// The bytes of `text` with which a call begins, and the call as a grammar takes it.
struct Found {
  std::size_t size = 0;
  std::string call;
  bool operator==(const Found&) const = default;
};

std::optional<Found> find_call(ToolDialect dialect, std::string_view text) {
  CallFinder finder(dialect);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (finder.step(text[i])) return Found{i + 1, finder.text()};
  }
  return std::nullopt;
}

// The call that the whole of `text` begins; empty: none.
std::string call_of(ToolDialect dialect, std::string_view text) {
  const std::optional<Found> found = find_call(dialect, text);
  if (!found) return "";
  CHECK(found->size == text.size());
  return found->call;
}

TEST_CASE("call finder: a tag begins a call where its head follows, in mid-line, too") {
  const auto hermes = [](std::string_view text) { return call_of(ToolDialect::kHermes, text); };
  CHECK(hermes("<tool_call>{") == "<tool_call>{");
  CHECK(hermes("plan: <tool_call>\n {") == "<tool_call>\n {");
  CHECK(hermes("<<tool_call><tool_call>{") == "<tool_call>{");
  CHECK(hermes("<tool_call>\n<tool_call>\n{") == "<tool_call>\n{");
  // White space that a grammar does not take is a line end.
  for (const char* const space : {"\n\n", "  ", "\t", "\r\n", " \n", "\n\t", "\n         "}) {
    CHECK(hermes("<tool_call>" + std::string(space) + "{") == "<tool_call>\n{");
  }
  CHECK(hermes("<tool_call> is {").empty());
  CHECK(hermes("<tool_call>[{").empty());
  CHECK(hermes("<tool_call {").empty());
  CHECK(hermes("<function=").empty());

  const auto xml = [](std::string_view text) { return call_of(ToolDialect::kXml, text); };
  CHECK(xml("a <tool_call>\n<function=") == "<tool_call>\n<function=");
  CHECK(xml("<tool_call>{").empty());
  CHECK(xml("<tool_call><<function=").empty());
  CHECK(xml("<tool_call> <tool_call> <function=") == "<tool_call> <function=");
  // At the beginning of a line no tag is needed.
  CHECK(xml("<function=") == "<tool_call><function=");
  CHECK(xml("a\n<function=") == "<tool_call><function=");
  CHECK(xml("<tool_call>a\n<function=") == "<tool_call><function=");
  CHECK(xml("a <function=").empty());
  CHECK(xml("a\n <function=").empty());

  const auto pythonic = [](std::string_view text) { return call_of(ToolDialect::kPythonic, text); };
  const std::string tag = "<|tool_call_start|>";
  for (const char* const head : {"[", " [", "{", "f(", "\nf (", "城市("}) {
    INFO(head);
    CHECK(pythonic("a " + tag + head) == tag + head);
  }
  CHECK(pythonic(tag + "is the tag (").empty());
  CHECK(pythonic(tag + "(").empty());
  CHECK(pythonic(tag + std::string(257, 'n') + "(").empty());
}

TEST_CASE("call finder: white space is cut, and nothing grows with the text") {
  const std::string spaces(100'000, ' ');
  const std::string found = call_of(ToolDialect::kHermes, "<tool_call>" + spaces + "\n{");
  CHECK(found == "<tool_call>\n{");
  // A line that begins within it is one.
  CHECK(call_of(ToolDialect::kXml, "<tool_call>" + spaces + "\n<b>\n<function=") ==
        "<tool_call><function=");
  CallFinder finder(ToolDialect::kPythonic);
  for (const char byte : "<|tool_call_start|>" + std::string(1'000'000, 'n')) {
    if (finder.step(byte)) FAIL("found");
    REQUIRE(finder.text().size() < 400);
  }
}

TEST_CASE("call finder: the tokens with which a call may begin are known before") {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "<tool",
                                           "_call>",
                                           "\n",
                                           " ",
                                           "<function=",
                                           "<func",
                                           "tion=",
                                           "={",
                                           "{",
                                           "[",
                                           "f(",
                                           "f",
                                           "(",
                                           "<|tool_call_start|>",
                                           "<|tool",
                                           "_call_start|>",
                                           "a",
                                           "=m>",
                                           "<"};
  std::vector<std::string> tokens = pieces;
  for (const std::string& one : pieces) {
    for (const std::string& other : pieces) tokens.push_back(one + other);
  }
  for (const ToolDialect dialect :
       {ToolDialect::kHermes, ToolDialect::kXml, ToolDialect::kPythonic}) {
    // Every text of up to three pieces, and a token after it.
    std::vector<std::string> texts = {"", "\n"};
    for (std::size_t begin = 0, round = 0; round < 3; ++round) {
      const std::size_t end = texts.size();
      for (; begin < end; ++begin) {
        for (const std::string& piece : pieces) {
          const std::string text = texts[begin] + piece;
          if (!find_call(dialect, text)) texts.push_back(text);
        }
      }
    }
    // A text has no call: what comes after it may continue from there.
    std::vector<CallFinder> after;
    bool has_call = false;
    for (const std::string& text : texts) {
      after.emplace_back(dialect);
      for (const char byte : text) has_call |= after.back().step(byte);
    }
    REQUIRE_FALSE(has_call);
    for (const std::string& token : tokens) {
      const bool may = CallFinder::may_begin_in(dialect, token, /*whole=*/false);
      const bool may_alone = CallFinder::may_begin_in(dialect, token, /*whole=*/true);
      if (may && may_alone) continue;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        CallFinder finder = after[i];
        const auto begins = [&](char byte) { return finder.step(byte); };
        if (!std::ranges::any_of(token, begins)) continue;
        if (!may) FAIL(texts[i] << " and " << token);
        if (after[i].text().empty()) FAIL(texts[i] << " and then " << token);
      }
    }
  }
}

}  // namespace
}  // namespace lintel::grammar
