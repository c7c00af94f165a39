// SPDX-License-Identifier: Apache-2.0
// Patterns with look-ahead against std::regex, automata against sets of texts, characters counted.
#include "server/grammar/pattern.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "server/grammar/character_counts.h"
#include "server/grammar/grammar.h"
#include "server/grammar/schema.h"
#include "server/grammar/tool_calls.h"
#include "tests/server/grammar/grammar_support.h"
#include "tests/support/catch.h"

namespace lintel::grammar {
namespace {

// All texts of `letters` with up to `longest` of them.
std::vector<std::string> texts_of(std::string_view letters, std::size_t longest) {
  std::vector<std::string> texts = {""};
  for (std::size_t begin = 0, size = 0; size < longest; ++size) {
    const std::size_t end = texts.size();
    for (std::size_t i = begin; i < end; ++i) {
      for (const char c : letters) texts.push_back(texts[i] + c);
    }
    begin = end;
  }
  return texts;
}

TEST_CASE("look-ahead: patterns match the texts that a backtracking engine matches") {
  const std::vector<std::string> texts = texts_of("abc", 6);
  for (const char* const pattern : {"^(?!a)[a-c]*$",
                                    "(?=ab)a",
                                    "^(?!.*b)[a-c]+$",
                                    "^(?=.*a)(?=.*b)[abc]{2,4}$",
                                    "(?!ab)a",
                                    "^a(?!b)",
                                    "^(?!ab$|c$)[abc]+$",
                                    "^a(?=b)[abc]*(?!c)b$",
                                    "(?=a)b|^(?!c).b",
                                    "^(?!)a",
                                    "^(?=a|b$)",
                                    "^(?=(?:ab)+c)[abc]*$",
                                    "^(?!(?:a|bc)*$).{2,5}$",
                                    "c(?=a)|(?!c).$",
                                    "^(?=ab)|(?!.)",
                                    "((?=a)b)",
                                    "^(?=^a)[ab]+$",
                                    "^(?!^[ab]*$)a?c*b*$",
                                    "^(?:(a+)|(?!.*c)(?=b|ab)(a)?(b(?=a)(a+)?)?)$",
                                    "a((?!b)|bc(?=a))b?",
                                    "^c?(a(?=b)[ab]|b$)",
                                    "^(?:a(?:(?=b)[abc]|c)?|b(?!c))[ab]*$"}) {
    const std::regex twin(pattern);
    const Dfa dfa = pattern_dfa(pattern, Spelling::kUtf8);
    const Dfa quoted = pattern_dfa(pattern, Spelling::kJsonString);
    for (const std::string& text : texts) {
      INFO(pattern << " in '" << text << "'");
      const bool is_found = std::regex_search(text, twin);
      REQUIRE(dfa.matches(text) == is_found);
      REQUIRE(quoted.matches('"' + text + '"') == is_found);
    }
  }
}

TEST_CASE("whole pattern: the texts that a backtracking engine matches from end to end") {
  const std::vector<std::string> texts = texts_of("ab|$", 4);
  for (const char* const pattern : {"a",
                                    "a|b",
                                    "^a$",
                                    "^a|b$",
                                    "^a$|^b$",
                                    "a|^b",
                                    "a$|b",
                                    "^",
                                    "$",
                                    "",
                                    "|a",
                                    "^^a$$",
                                    "^$|a",
                                    "a\\$",
                                    "a[$|]",
                                    "a\\|b$",
                                    "(a|b)b|a",
                                    "^(?:a|b)+$",
                                    "(?=ab)a.*|b",
                                    "^a(?!b)|b{2}$",
                                    "^(?:(?=a)..|b)$",
                                    "(?!a)"}) {
    const std::regex twin(pattern);
    const std::string whole = whole_pattern(pattern);
    INFO(pattern << " as " << whole);
    CHECK(whole_pattern(whole) == whole);
    const Dfa dfa = pattern_dfa(whole, Spelling::kUtf8);
    for (const std::string& text : texts) {
      INFO(text);
      REQUIRE(dfa.matches(text) == std::regex_match(text, twin));
    }
  }
  for (const char* const pattern : {"a)|(b", "(a", "a)", "a$b", "a^", "(^a$)", "a|*", "[a", "\\"}) {
    CAPTURE(pattern);
    CHECK_THROWS_AS(whole_pattern(pattern), GrammarError);
  }
  // Parsed alone: one that would be too large is found when its automaton is made.
  const std::string large = "(?:a|b)*a(?:a|b){60}";
  CHECK(whole_pattern(large) == "^" + large + "$");
  CHECK_THROWS_AS(pattern_dfa(whole_pattern(large), Spelling::kUtf8), GrammarError);
}

TEST_CASE("look-ahead: what is not served is refused by name, in little time") {
  const auto begin = std::chrono::steady_clock::now();
  std::string many = "^";
  for (int i = 0; i < 3'000; ++i) many += "(?=(?:a|b)*a(?:a|b){9}" + std::to_string(i) + ")";
  std::string deep, wide;
  for (int i = 0; i < 40'000; ++i) deep += "(?=a)a", wide += "(?=a).*|";
  std::string multiplied, looked_for = "^";
  for (int i = 0; i < 20'000; ++i) multiplied += "((?=a).|b)", looked_for += "(?=a)";
  for (int i = 0; i < 6; ++i) looked_for += "((?=a).|b)";
  for (const std::string& pattern :
       {deep, wide, std::string("(a(?=b))*"), std::string("^(?=a)*b"), std::string("(?<=a)b"),
        std::string("(?=^a)b"), std::string("a(?=^a)b"), std::string("((?=a)b)+"),
        std::string("(a(?=b)|c$)b"), multiplied, looked_for, std::string("^(?!a(?!b))"),
        std::string("^(?=a"), std::string("(?=a)b)"), many}) {
    try {
      pattern_dfa(pattern, Spelling::kUtf8);
      FAIL(pattern.substr(0, 100) << " is taken");
    } catch (const GrammarError& error) {
      CHECK(error.reason() == "pattern " + pattern);
    }
  }
  // Some 0.1 s; sanitizers take longer.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("intersection and difference: the texts of both, and of one alone") {
  const std::vector<std::string> texts = texts_of("ab", 8);
  const std::vector<std::string> patterns = {"^(?:ab|b)*$", "^a*b?a*$", "a{3}",     "^(?:aa)*$",
                                             "b.b",         "^$",       "^.{2,5}$", "^(?:a|ba)+$"};
  for (const std::string& one : patterns) {
    for (const std::string& other : patterns) {
      const Dfa a = pattern_dfa(one, Spelling::kUtf8), b = pattern_dfa(other, Spelling::kUtf8);
      const Dfa both = intersection(a, b), alone = difference(a, b);
      for (const std::string& text : texts) {
        INFO(one << " and " << other << " in '" << text << "'");
        REQUIRE(both.matches(text) == (a.matches(text) && b.matches(text)));
        REQUIRE(alone.matches(text) == (a.matches(text) && !b.matches(text)));
      }
    }
  }
}

std::size_t characters_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

bool accepts_text(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.advance(text) && matcher.accepts();
}

// Every text whose beginning is taken has a continuation that is taken, too.
TEST_CASE("patterns with lengths: characters count, and a beginning has an end") {
  const std::vector<std::string> letters = {"a", "b", "\xC3\xA9", "\\n", "\xF0\x9F\x98\x80"};
  for (const char* const pattern : {"^[ab]*$", "^a+b?$", "b", "^(?:ab)*$", "^(?:aaa|b)$",
                                    "^a{2,9}$", "^.*b$", "\xC3\xA9", "^(?!.*a$)", "^\\n?b*$"}) {
    const std::string quoted = std::string(pattern) == "^\\n?b*$" ? "^\\\\n?b*$" : pattern;
    const Dfa free = pattern_dfa(pattern, Spelling::kJsonString);
    for (const auto& [least, most] : {std::pair(0, 3), std::pair(2, 2), std::pair(3, 4),
                                      std::pair(2, 1 << 30), std::pair(0, 0)}) {
      std::shared_ptr<const Grammar> grammar;
      try {
        grammar =
            compile_schema(R"({"type":"string","pattern":")" + quoted + R"(","minLength":)" +
                           std::to_string(least) +
                           (most < 10 ? R"(,"maxLength":)" + std::to_string(most) : "") + "}");
      } catch (const GrammarError& error) {
        REQUIRE(error.kind() == GrammarError::Kind::kUnmet);
      }
      // All texts of up to five letters, as a tree.
      const auto walk = [&](auto self, const std::string& text, int count) -> bool {
        const std::string whole = text + '"';
        const bool wanted = free.matches(whole) && count >= least && count <= most;
        INFO(pattern << " of " << least << " to " << most << ": " << whole);
        REQUIRE((grammar != nullptr && accepts_text(grammar, whole)) == wanted);
        bool leads_on = wanted;
        if (count < 5) {
          for (const std::string& letter : letters) {
            leads_on = self(self, text + letter, count + 1) || leads_on;
          }
        }
        if (grammar != nullptr && most <= 4) REQUIRE(Matcher(grammar).advance(text) == leads_on);
        return leads_on;
      };
      walk(walk, "\"", 0);
    }
  }
}

TEST_CASE("counts of characters: unlike numbers that may follow are not counted") {
  const auto counts_of = [](const char* pattern) {
    return CharacterCounts::of(pattern_dfa(pattern, Spelling::kJsonString), *json_string());
  };
  CHECK(counts_of("^[ab]+$") != nullptr);
  CHECK(counts_of("^a{5}$") != nullptr);
  CHECK(counts_of("^(?:a{5}|b{9}.*)$") != nullptr);
  CHECK(counts_of("^(?:ab)*$") == nullptr);
  CHECK(counts_of("^a{2,4}$") == nullptr);
  // More rounds than are made; the automaton's own states count instead.
  CHECK(counts_of("^a{1000}$") == nullptr);
  CHECK_NOTHROW(compile_schema(R"({"type":"string","pattern":"^a{3000}$","maxLength":5000})"));
  for (const char* const format : {"uuid", "date", "uri", "duration"}) {
    CHECK(CharacterCounts::of(*format_dfa(format, Spelling::kUtf8), *plain_text()) != nullptr);
  }
}

// Calls of one tool, in XML, with one parameter.
std::shared_ptr<const Grammar> xml_calls(const std::string& parameter,
                                         std::vector<RelaxedKeyword>* relaxed = nullptr) {
  const std::vector<ToolSpec> tools = {
      {"f",
       R"({"type":"object","properties":{"s":)" + parameter +
           R"(},"required":["s"],"additionalProperties":false})",
       relaxed == nullptr ? ToolSpec::Arguments::kStrict : ToolSpec::Arguments::kRelaxed}};
  return compile_tools(tools, {ToolDialect::kXml, ToolGrammarOptions::Mode::kRequired, false},
                       relaxed);
}

constexpr std::string_view kCallBegin = "<tool_call>\n<function=f>\n<parameter=s>\n";
constexpr std::string_view kCallEnd = "\n</parameter>\n</function>\n</tool_call>";

TEST_CASE("XML calls: the characters of a text are bounded, few or many") {
  const std::vector<std::string> pieces = {"a",    "\xC3\xA9", "\n",       "<",
                                           "</",   "\n</",     "\n</para", "\xF0\x9F\x98\x80",
                                           "para", "\n\n",     "<p>"};
  std::mt19937_64 random(5);
  for (const auto& [least, most] :
       {std::pair(0, 5), std::pair(5, 5), std::pair(0, 0), std::pair(3, 20), std::pair(0, 64),
        std::pair(90, 100), std::pair(300, 100'000), std::pair(300, 5'000)}) {
    const auto grammar = xml_calls(R"({"type":"string","minLength":)" + std::to_string(least) +
                                   R"(,"maxLength":)" + std::to_string(most) + "}");
    for (int i = 0; i < 200; ++i) {
      const std::size_t near = static_cast<std::size_t>(random() % 2 == 0 ? least : most % 1000);
      std::string text;
      while (characters_of(text) + 3 < near) text += random() % 4 == 0 ? "\xC3\xA9" : "x";
      for (std::uint64_t n = random() % 5; n > 0; --n) text += pieces[random() % pieces.size()];
      if (text.find("</parameter>") != std::string::npos) continue;
      const auto count = static_cast<int>(characters_of(text));
      INFO(least << " to " << most << ": " << count << " characters");
      CAPTURE(text.substr(text.size() - std::min<std::size_t>(text.size(), 40)));
      REQUIRE(accepts_text(grammar, std::string(kCallBegin) + text + std::string(kCallEnd)) ==
              (count >= least && count <= most));
    }
  }
}

TEST_CASE("XML calls: a text of bounded length can be ended from wherever masks lead") {
  const auto vocabulary =
      vocabulary_of({"\n</", "</parameter>", "\n</parameter>\n", "parameter", "</function>", "aa",
                     "ab\n</par", "ameter>", "\xC3\xA9\xC3\xA9", "\xF0\x9F", "\n<parameter=", "<"});
  for (const char* const parameter :
       {R"({"type":"string","maxLength":4})", R"({"type":"string","minLength":5,"maxLength":5})",
        R"({"type":"string","minLength":17})", R"({"type":"string","minLength":14,"maxLength":15})",
        R"({"type":"string","pattern":"^[^x]*$","maxLength":6})",
        R"({"type":"string","pattern":"a<","minLength":3,"maxLength":40})",
        R"({"type":"string","format":"duration","maxLength":9})",
        R"({"type":"string","format":"date-time","maxLength":24})"}) {
    const auto grammar = xml_calls(parameter);
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      std::mt19937_64 walk(seed);
      TokenMatcher matcher(grammar, vocabulary);
      for (const char c : kCallBegin) REQUIRE(matcher.advance(static_cast<unsigned char>(c)));
      std::string text;
      for (int step = 0; step < 60 && !matcher.ended(); ++step) {
        INFO(parameter << " seed " << seed << " after " << text);
        const std::vector<std::uint64_t> naive = naive_mask(matcher);
        REQUIRE(std::ranges::equal(matcher.mask(), naive));
        const std::vector<std::int32_t> ids = ids_of(naive);
        REQUIRE_FALSE(ids.empty());
        const std::int32_t id = ids[walk() % ids.size()];
        text += vocabulary->bytes_of(id);
        REQUIRE(matcher.advance(id));
      }
    }
  }
}

TEST_CASE("XML calls: 1,000 parameters with bounds, formats or patterns are served") {
  for (const char* const parameter :
       {R"({"type":"string","maxLength":64})", R"({"type":"string","minLength":300})",
        R"({"type":"string","format":"date-time"})", R"({"type":"string","format":"uuid"})",
        R"({"type":"string","pattern":"^[a-z]{1,20}$"})",
        R"({"type":"string","format":"uri","maxLength":2048})"}) {
    std::string schema = R"({"type":"object","properties":{)";
    for (int i = 0; i < 1'000; ++i) {
      schema += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":" + parameter;
    }
    const std::vector<ToolSpec> tools = {{"f", schema + "}}", ToolSpec::Arguments::kStrict}};
    INFO(parameter);
    const auto grammar =
        compile_tools(tools, {ToolDialect::kXml, ToolGrammarOptions::Mode::kRequired, true});
    CHECK(grammar->bytes() < 4 << 20);
  }
}

TEST_CASE("XML calls: a text has nothing that a reader takes for its end") {
  const auto takes = [](const char* parameter, const std::string& text) {
    return accepts_text(xml_calls(parameter),
                        std::string(kCallBegin) + text + std::string(kCallEnd));
  };
  for (const char* const parameter :
       {R"({"type":"string"})", R"({"type":"string","minLength":1})",
        R"({"type":"string","pattern":"^[^x]*$"})", R"({"type":"string","not":{"const":"x"}})"}) {
    INFO(parameter);
    CHECK(takes(parameter, "a\r\nb\n"));
    CHECK(takes(parameter, "\ra"));
    for (const char* const text : {"\r", "a\r", "a\n\r", "a\n<parameter=x>"}) {
      CHECK_FALSE(takes(parameter, text));
    }
  }
  // Constants may speak of a tag that ends nothing.
  constexpr const char* kConstants = R"({"enum":["a</parameter>b", "a</function>", "a\n<p", "a\r",
      "a\n<parameter=x>", "a\n</parameter>b", "a</parameter> \n</function>", 7,
      "a</function></tool_call>", "a</parameter><parameter=b>"]})";
  for (const char* const text : {"a</parameter>b", "a</function>", "a\n<p", "7"}) {
    CHECK(takes(kConstants, text));
  }
  for (const char* const text :
       {"a\r", "a\n<parameter=x>", "a\n</parameter>b", "a</parameter> \n</function>",
        "a</function></tool_call>", "a</parameter><parameter=b>"}) {
    CHECK_FALSE(takes(kConstants, text));
  }
  CHECK_THROWS_AS(xml_calls(R"({"const":"a\n<parameter=x>"})"), GrammarError);
}

TEST_CASE("XML calls: bounds that an automaton cannot have are named") {
  std::vector<RelaxedKeyword> relaxed;
  const std::string parameter = R"({"type":"string","pattern":"^(?:ab)*$","maxLength":90000})";
  const auto grammar = xml_calls(parameter, &relaxed);
  CHECK(accepts_text(grammar, std::string(kCallBegin) + "x" + std::string(kCallEnd)));
  REQUIRE(relaxed.size() == 1);
  CHECK(relaxed[0].path == "f#/properties/s/pattern");
  CHECK(relaxed[0].keyword == "pattern ^(?:ab)*$ together with other bounds");
  CHECK_THROWS_AS(xml_calls(parameter), GrammarError);
}

}  // namespace
}  // namespace lintel::grammar
