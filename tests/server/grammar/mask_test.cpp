// SPDX-License-Identifier: Apache-2.0
// Masks of tokens against a naive twin; budgets, copies, GBNF, tool calls, speed.
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "server/grammar/gbnf.h"
#include "server/grammar/grammar_cache.h"
#include "server/grammar/schema.h"
#include "server/grammar/tool_calls.h"
#include "tests/server/grammar/grammar_support.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::grammar {
namespace {

using Mode = ToolGrammarOptions::Mode;

constexpr const char* kJsonGbnf = R"gbnf(
root   ::= object  # a comment
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
)gbnf";

bool gbnf_takes(const char* gbnf, std::string_view text) {
  Matcher matcher(compile_gbnf(gbnf));
  return matcher.advance(text) && matcher.accepts();
}

std::string gbnf_refusal(const std::string& gbnf) {
  try {
    compile_gbnf(gbnf);
  } catch (const GrammarError& error) {
    return error.reason();
  }
  return "taken";
}

std::vector<ToolSpec> weather_tools(ToolSpec::Arguments arguments) {
  return {{"weather",
           R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
               "opt":{"type":"object"},"on":{"type":"boolean"},"unit":{"enum":["C","F"]}},
               "required":["city"],"additionalProperties":false})",
           arguments},
          {"now", "", arguments}};
}

std::vector<ToolSpec> record_tools() {
  return {{"now",
           R"({"type":"object","properties":{"city":{"type":"string"},"ci":{"type":"null"}},
               "required":["ci"],"maxProperties":4,"additionalProperties":{"type":"integer"}})"},
          {"weather", R"({"patternProperties":{"^days$|^[a-c]+$":{"type":"boolean"}},
                          "additionalProperties":false})"}};
}

std::vector<std::shared_ptr<const Grammar>> grammars() {
  std::vector<std::shared_ptr<const Grammar>> all;
  for (const char* const schema :
       {"true",
        R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
            "ci":{"type":"null"}},"required":["city"]})",
        R"({"type":"object","properties":{"a":{"type":"string","minLength":2,"maxLength":3},
            "unit":{"enum":["C","Cab","abc",12,123]}},"additionalProperties":false})",
        R"({"type":"array","items":{"type":"string","pattern":"^(ab|bc)*c?$","maxLength":7}})",
        R"({"type":"array","items":{"type":"string","format":"date-time"}})",
        R"({"anyOf":[{"type":"object","properties":{"a":{"type":"integer"}}},
            {"type":"object","properties":{"ab":{"type":"string"}}},{"type":"number"}]})"}) {
    all.push_back(compile_schema(schema));
  }
  for (const char* const gbnf :
       {kJsonGbnf, "root ::= \"a\" root \"b\" | \"c\"",
        "root ::= (\"a\" | \"ab\" | root-2)* \"c\"\n"
        "root-2 ::= \"(\" root \")\" | [^a-c()]",
        "root ::= [ab]{2,9000} [.,]", "root ::= ((\"a\"? x?)* \"b\")+\nx ::= \"[\" x* \"]\""}) {
    all.push_back(compile_gbnf(gbnf));
  }
  for (const ToolDialect dialect :
       {ToolDialect::kHermes, ToolDialect::kXml, ToolDialect::kPythonic}) {
    for (const auto mode : {Mode::kAuto, Mode::kNone, Mode::kRequired}) {
      all.push_back(
          compile_tools(weather_tools(ToolSpec::Arguments::kStrict), {dialect, mode, true}));
      all.push_back(
          compile_tools(weather_tools(ToolSpec::Arguments::kAny), {dialect, mode, false}));
    }
    all.push_back(compile_tools(record_tools(), {dialect, Mode::kRequired, true}));
  }
  return all;
}

std::set<std::string> all_tokens() {
  std::set<std::string> tokens = json_tokens();
  for (const char* const token : {"<tool_call>",
                                  "<tool",
                                  "_call>",
                                  "</tool_call>",
                                  "\n</",
                                  "tool_call>\n",
                                  "{\"name\": \"",
                                  "weather",
                                  "weather\"",
                                  "now",
                                  "\"arguments\"",
                                  "arguments\": {\"",
                                  "<function=",
                                  "=weather>\n",
                                  "<parameter=",
                                  "parameter=city>\n",
                                  ">\n",
                                  "</parameter>",
                                  "</function>",
                                  "\n</function",
                                  "<|tool_call_start|>",
                                  "[weather(",
                                  "weather(city=\"",
                                  ", days=",
                                  "True",
                                  ")]",
                                  "<|tool_call_end|>",
                                  "((",
                                  "))",
                                  "bb",
                                  "ab(",
                                  "c)"}) {
    tokens.insert(token);
  }
  return tokens;
}

TEST_CASE("masks: the trie has the tokens of a naive twin, for every grammar and budget") {
  const auto vocabulary = vocabulary_of(all_tokens());
  int number = 0;
  for (const auto& grammar : grammars()) {
    ++number;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      std::mt19937_64 random(seed);
      TokenMatcher matcher(grammar, vocabulary);
      for (int step = 0; step < 40 && !matcher.ended(); ++step) {
        INFO("grammar " << number << ", seed " << seed << ", step " << step);
        TokenMatcher slow = matcher;
        for (std::size_t budget = 40; !slow.prepare(&budget); budget = 40) {
        }
        const std::vector<std::uint64_t> naive = naive_mask(matcher);
        REQUIRE(std::ranges::equal(matcher.mask(), naive));
        REQUIRE(std::ranges::equal(slow.mask(), naive));
        const std::vector<std::int32_t> ids = ids_of(naive);
        REQUIRE_FALSE(ids.empty());
        REQUIRE((matcher.only_token() >= 0) == (ids.size() == 1));
        // The end comes late, or there is little to see.
        std::int32_t id = ids[random() % ids.size()];
        if (vocabulary->ends(id)) id = ids[random() % ids.size()];
        REQUIRE(matcher.advance(id));
      }
    }
  }
}

TEST_CASE("many alternatives: each call looks at those that its budget is for") {
  std::string schema;
  for (int i = 1; i <= 40; ++i) {
    schema += std::string(schema.empty() ? "" : ",") + R"({"type":"string","pattern":"^a{)" +
              std::to_string(i) + R"(}b*$"})";
  }
  TokenMatcher matcher(compile_schema(R"({"anyOf":[)" + schema + "]}"),
                       vocabulary_of(all_tokens()));
  REQUIRE(matcher.advance('"'));
  REQUIRE(matcher.matcher().stacks().tops.size() == 40);
  int calls = 1;
  for (std::size_t budget = 1; !matcher.prepare(&budget); budget = 1) ++calls;
  CHECK(calls >= 40);
  CHECK(std::ranges::equal(matcher.mask(), naive_mask(matcher)));
}

TEST_CASE("a mask that is kept is the mask that was made, for tokens of every length") {
  // Enough tokens for masks to be kept.
  std::set<std::string> tokens = all_tokens();
  std::mt19937_64 random(7);
  // Characters of one to four bytes, parts of some, and bytes that are none.
  std::vector<std::string> pieces = {"\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80", "\xE2\x82",
                                     "\xC3",     "\xA9",         "\xED\xA0\x80"};
  for (const char c : std::string_view("abcity \",:}]\\n1.-\x7F")) pieces.emplace_back(1, c);
  while (tokens.size() < 6000) {
    std::string token;
    for (std::size_t i = 0; i < 2 + random() % 6; ++i) {
      token += pieces[random() % pieces.size()];
    }
    tokens.insert(token);
  }
  const auto vocabulary = vocabulary_of(tokens);
  std::vector<std::shared_ptr<const Grammar>> all = {
      compile_gbnf("root ::= [^\"]* (\"\\\"\" root)? \"abc\"")};
  for (const char* const schema :
       {R"({"type":"object","properties":{"city":{"type":"string"},"ci":{"type":"integer"}}})",
        R"({"type":"array","items":{"type":"string","minLength":3,"maxLength":6}})",
        R"({"type":"array","items":{"type":"string","maxLength":3}})",
        R"({"type":"array","items":{"type":"string","pattern":"^[^a1é]*$"}})"}) {
    all.push_back(compile_schema(schema));
  }
  for (std::size_t number = 0; number < all.size(); ++number) {
    const auto& grammar = all[number];
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      std::mt19937_64 walk(seed);
      TokenMatcher matcher(grammar, vocabulary);
      for (int step = 0; step < 8 && !matcher.ended(); ++step) {
        INFO("grammar " << number << ", seed " << seed << ", step " << step);
        const std::vector<std::uint64_t> naive = naive_mask(matcher);
        REQUIRE(std::ranges::equal(matcher.mask(), naive));
        const std::vector<std::int32_t> ids = ids_of(naive);
        REQUIRE(matcher.advance(ids[walk() % ids.size()]));
      }
    }
  }
  CHECK(vocabulary->cached_bytes() > 0);
}

// Small grammars whose texts have very many derivations.
constexpr const char* kAmbiguous[] = {"root ::= (. root root)* | \"bc\"",
                                      "root ::= ( | . root root)* | ( | ){3,} | \"bc\"",
                                      "root ::= . root root | \"bc\" | \"\"",
                                      "root ::= r0 | \"bc\" \"a\" | ((. | . root (\"\" | )+){3,} "
                                      "(([abc] root | \"\\n\"? \"a\"* .)*)*){2}\n"
                                      "r0 ::= \"a\" \"\\n\" \"bc\""};

// Makes the mask in calls. Returns their number, and the most seconds of one.
std::size_t prepare_in_calls(TokenMatcher& matcher, double* longest) {
  std::size_t calls = 0;
  for (bool is_ready = false; !is_ready; ++calls) {
    std::size_t budget = kMaskBudget;
    const double seconds = testing::cpu_seconds_of([&] { is_ready = matcher.prepare(&budget); });
    *longest = std::max(*longest, seconds);
    REQUIRE(calls <= kMaxMaskWork / kMaskBudget + 10);
  }
  return calls;
}

TEST_CASE("ambiguous GBNF: a call keeps to its budget, a mask to its bound", "[threat-98]") {
  const auto vocabulary = vocabulary_of(all_tokens());
  double longest = 0;
  for (const char* const gbnf : kAmbiguous) {
    INFO(gbnf);
    TokenMatcher matcher(compile_gbnf(gbnf), vocabulary);
    for (int step = 0; step < 5 && !matcher.exceeded(); ++step) {
      prepare_in_calls(matcher, &longest);
      REQUIRE(ids_of(matcher.mask()).empty() == matcher.exceeded());
      REQUIRE(matcher.advance("xyzbc"[step % 5]));
    }
  }
  std::set<std::string> tokens;
  std::mt19937_64 random(1);
  while (tokens.size() < 700) {
    std::string token;
    for (std::size_t i = 0; i < 2 + random() % 6; ++i) token += "etaoin bc\n(){}"[random() % 14];
    tokens.insert(token);
  }
  TokenMatcher matcher(compile_gbnf(kAmbiguous[0]), vocabulary_of(tokens));
  std::size_t calls = prepare_in_calls(matcher, &longest);
  for (int step = 0; step < 5 && !matcher.exceeded(); ++step) {
    REQUIRE(matcher.advance('x'));
    calls = prepare_in_calls(matcher, &longest);
  }
  CHECK(matcher.exceeded());
  CHECK(calls >= kMaxMaskWork / kMaskBudget);
  CHECK(ids_of(matcher.mask()).empty());
  // 2 ms on a fast core that does nothing else.
  CHECK(longest < (testing::kSanitized ? 1.0 : 0.05));
}

TEST_CASE("ambiguous GBNF: neither masks nor their bound depend on the budget of a call",
          "[promise]") {
  const auto vocabulary = vocabulary_of({"xy", "xyz", "bc", "b\xC3", "yyyy"});
  for (const char* const gbnf : kAmbiguous) {
    INFO(gbnf);
    const auto grammar = compile_gbnf(gbnf);
    TokenMatcher fast(grammar, vocabulary), slow(grammar, vocabulary);
    for (int step = 0; step < 4 && !fast.exceeded(); ++step) {
      INFO("step " << step);
      for (std::size_t budget = 3'000; !slow.prepare(&budget); budget = 3'000) {
      }
      REQUIRE(std::ranges::equal(fast.mask(), slow.mask()));
      REQUIRE(fast.exceeded() == slow.exceeded());
      REQUIRE(fast.advance("xyxb"[step]));
      REQUIRE(slow.advance("xyxb"[step]));
      REQUIRE(fast.matcher().stacks().tops.size() == slow.matcher().stacks().tops.size());
    }
  }
}

TEST_CASE("ambiguous GBNF: the texts are those of the grammar") {
  // Balanced texts, each in several ways.
  const auto grammar = compile_gbnf(
      "root ::= (\"a\" root \"b\" | root2)* | root2 root2\n"
      "root2 ::= \"ab\" | \"a\" root \"b\" root");
  for (unsigned size = 0; size <= 10; ++size) {
    for (unsigned bits = 0; bits < 1u << size; ++bits) {
      std::string text;
      int open = 0, least = 0;
      for (unsigned i = 0; i < size; ++i) {
        const bool opens = (bits >> i & 1) != 0;
        text += opens ? 'a' : 'b';
        open += opens ? 1 : -1;
        least = std::min(least, open);
      }
      Matcher matcher(grammar);
      INFO(text);
      const bool taken = matcher.advance(text);
      REQUIRE_FALSE(matcher.exceeded());
      REQUIRE(taken == (least >= 0));
      REQUIRE((taken && matcher.accepts()) == (least >= 0 && open == 0));
    }
  }
}

TEST_CASE("GBNF that leads one byte to too many places: the text does not begin", "[threat-98]") {
  std::string gbnf = "root ::= r0\n";
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    gbnf += "r" + std::to_string(i) + " ::= " + next + " " + next + " | " + next + "\n";
  }
  TokenMatcher matcher(compile_gbnf(gbnf + "r20 ::= \"a\" | \"(\" root \")\""), vocabulary_of({}));
  CHECK(matcher.exceeded());
  CHECK(ids_of(matcher.mask()).empty());
  CHECK(matcher.exceeded());
}

TEST_CASE("a text that no token spells: the byte that it needs is known") {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const auto vocabulary =
      std::make_shared<const Vocabulary>(std::move(tokens), std::vector<std::int32_t>{'?'});
  TokenMatcher matcher(compile_schema(R"({"const":"a?b"})"), vocabulary);
  for (const char c : std::string_view("\"a")) REQUIRE(matcher.advance(c));
  CHECK(ids_of(matcher.mask()).empty());
  CHECK_FALSE(matcher.exceeded());
  CHECK(matcher.needed_byte() == '?');
}

TEST_CASE("a text that no token spells: others are made, if there are any") {
  std::bitset<256> bytes;
  bytes.set().reset('?');
  const auto texts_of = [&](const std::shared_ptr<const Grammar>& whole) {
    const auto grammar = spelt_by(whole, bytes);
    CHECK(grammar != whole);
    CHECK(spelt_by(whole, std::bitset<256>().set()) == whole);
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    const auto vocabulary =
        std::make_shared<const Vocabulary>(std::move(tokens), std::vector<std::int32_t>{'?'});
    CHECK(vocabulary->spelt_bytes() == bytes);
    std::mt19937_64 random(7);
    std::set<std::string> texts;
    for (int i = 0; i < 40; ++i) {
      TokenMatcher matcher(grammar, vocabulary);
      texts.insert(random_text(matcher, random, 400));
      CHECK(matcher.ended());
    }
    return texts;
  };
  using Texts = std::set<std::string>;
  for (const char* const schema :
       {R"({"enum":["a?b","d"]})", R"({"type":"string","pattern":"^(a\\?b|d)$"})",
        R"({"anyOf":[{"const":"d"},{"type":"string","pattern":"^a\\?"}]})"}) {
    INFO(schema);
    CHECK(texts_of(compile_schema(schema)) == Texts{"\"d\"?"});
  }
  for (const char* const schema :
       {R"({"type":"object","properties":{"a?":true,"b":{"enum":["?",1]}},"required":["b"],
            "additionalProperties":false})",
        R"({"type":"object","patternProperties":{"^a\\?":true,"^b$":{"const":1}},
            "additionalProperties":false,"minProperties":1,"maxProperties":1})"}) {
    INFO(schema);
    for (std::string text : texts_of(compile_schema(schema))) {
      REQUIRE(text.ends_with('?'));
      text.pop_back();
      CHECK(nlohmann::json::parse(text) == nlohmann::json({{"b", 1}}));
    }
  }
  CHECK(texts_of(compile_gbnf("root ::= \"a\" x | \"d\"\nx ::= [a-z] y\ny ::= \"?\" root")) ==
        Texts{"d?"});
  const std::vector<ToolSpec> tools = {
      {"f", R"({"properties":{"a?":true,"b":{"enum":["?","x"]}},"required":["b"]})"}};
  CHECK(texts_of(compile_tools(tools, {ToolDialect::kXml, Mode::kRequired, false}))
            .contains("<tool_call><function=f>\n<parameter=b>\nx\n</parameter>\n</function>"
                      "</tool_call>?"));
  // If no token is left, the byte that is needed is named.
  const auto needs = compile_schema(R"({"const":"a?b"})");
  CHECK(spelt_by(needs, bytes) == needs);
}

TEST_CASE("draft tokens: a copy is where the text was before them") {
  const auto vocabulary = vocabulary_of(json_tokens());
  TokenMatcher row(compile_schema(R"({"type":"array","items":{"type":"integer"}})"), vocabulary);
  REQUIRE(row.advance('['));
  const TokenMatcher before = row;
  const std::vector<std::uint64_t> mask(row.mask().begin(), row.mask().end());
  REQUIRE(row.advance('1'));
  REQUIRE(row.advance(','));
  CHECK_FALSE(row.advance(','));
  CHECK_FALSE(std::ranges::equal(row.mask(), mask));
  row = before;
  CHECK(std::ranges::equal(row.mask(), mask));
  REQUIRE(row.advance(']'));
  CHECK(row.accepts());
  const auto end = static_cast<std::int32_t>(vocabulary->size() - 1);
  CHECK(row.only_token() == end);
  REQUIRE(row.advance(end));
  CHECK(row.ended());
  CHECK_FALSE(row.advance(end));
  CHECK(ids_of(row.mask()).empty());
}

TEST_CASE("cached masks: their memory is bounded") {
  std::vector<std::string> tokens;
  for (int i = 0; i < 50'000; ++i) tokens.push_back("t" + std::to_string(i));
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const Vocabulary small(tokens, {}, 20'000);
  warm_masks(small);
  CHECK(small.cached_bytes() <= 20'000);
  const Vocabulary large(tokens, {});
  warm_masks(large);
  CHECK(large.cached_bytes() >= 2 * large.mask_words() * 8);
}

TEST_CASE("compiled grammars: the last used are kept, within the bound") {
  const auto make = [] { return CompiledGrammar{compile_schema("true"), {}}; };
  const std::size_t each = make().grammar->bytes();
  GrammarCache cache(2 * each);
  const auto first = cache.get("a", make).grammar;
  CHECK(cache.get("a", make).grammar == first);
  const auto second = cache.get("b", make).grammar;
  CHECK(second != first);
  CHECK(cache.get("a", make).grammar == first);
  cache.get("c", make);
  CHECK(cache.get("a", make).grammar == first);
  CHECK(cache.get("b", make).grammar != second);
  CHECK(cache.bytes() <= 2 * each);
}

TEST_CASE("GBNF: texts are accepted as their rules say") {
  CHECK(gbnf_takes(kJsonGbnf, "{\"a\": [1, {\"b\": \"\\u00e9\xC3\xA9\"}, -0.5], \"c\": null}"));
  CHECK_FALSE(gbnf_takes(kJsonGbnf, "{\"a\": [1,]}"));
  CHECK_FALSE(gbnf_takes(kJsonGbnf, "[1]"));
  const char* const nested = "root ::= \"a\" root \"b\" | \"c\"";
  CHECK(gbnf_takes(nested, "aaacbbb"));
  CHECK_FALSE(gbnf_takes(nested, "aaacbb"));
  CHECK(gbnf_takes("root ::= [a-c]{2,3} ( \"x\" | \"y\"\n | \"z\" )?", "abz"));
  CHECK_FALSE(gbnf_takes("root ::= [a-c]{2,3}", "abca"));
  CHECK(gbnf_takes("root ::= [^\\x00-\\x1F\"]* \"\\u00e9\" .", "x\xC3\xA9\xE4\xBD\xA0"));
  // Too large for an automaton: the repetition counts.
  const char* const counted = "root ::= [ab]{2,9000} [.]";
  CHECK(gbnf_takes(counted, std::string(9000, 'a') + "."));
  CHECK_FALSE(gbnf_takes(counted, std::string(9001, 'a') + "."));
  CHECK_FALSE(gbnf_takes(counted, "a."));
  // Parts that may be empty are repeated without end.
  const char* const empty = "root ::= ((\"a\"? x?)* \"b\")+\nx ::= \"[\" x* \"]\"";
  CHECK(gbnf_takes(empty, "a[[][]]ab"));
  CHECK(gbnf_takes(empty, "bb"));
  CHECK_FALSE(gbnf_takes(empty, "a[b"));
}

TEST_CASE("GBNF: a token by its id stands for its text, outside of texts, classes and comments") {
  const ByteTokenizer bytes;
  CHECK(
      spell_tokens("root ::= <[97]> | [<\\]] \"<[98]>\\\"\" # <[x]>\nx ::= <[10]><[34]>+", bytes) ==
      "root ::= \"a\" | [<\\]] \"<[98]>\\\"\" # <[x]>\nx ::= \"\\n\"\"\\\"\"+");
  CHECK(gbnf_takes(spell_tokens("root ::= <[97]>{2} <[92]>", bytes).c_str(), "aa\\"));
  const auto refusal = [&](const char* text) -> std::string {
    try {
      return spell_tokens(text, bytes);
    } catch (const GrammarError& error) {
      return error.what();
    }
  };
  CHECK(refusal("root ::= \"a\"\n | <[256]>") == "line 2: token 256 is not one of the model's");
  CHECK(refusal("root ::= <[200]>") == "line 1: token 200 is no whole characters");
  CHECK(refusal("root ::= <[]>") == "line 1: <[ID]> is expected");
  CHECK(refusal("root ::= <[1") == "line 1: <[ID]> is expected");
  CHECK(refusal("root ::= <[99999999999999999999]>") == "line 1: <[ID]> is expected");
  CHECK(refusal("root ::= \"a") == "root ::= \"a");  // its parser says what is wrong
  CHECK(refusal("root ::= \"\\") == "root ::= \"\\");
}

TEST_CASE("GBNF: what is not served is refused by name, in little time") {
  CHECK(gbnf_refusal("root ::= root \"a\" | \"b\"") == "left recursion of rule root");
  CHECK(gbnf_refusal("root ::= x\nx ::= \"a\"? y\ny ::= root \"b\"") ==
        "left recursion of rule root");
  CHECK(gbnf_refusal("a ::= \"b\"") == "rule root is missing");
  CHECK(gbnf_refusal("root ::= other") == "rule other is missing");
  CHECK(gbnf_refusal("root ::= \"a\"{10001}") == "repetition above 10000");
  CHECK(gbnf_refusal("root ::= \"a\" root") == "cannot be met by any text");
  CHECK(gbnf_refusal("root ::= \"a") == "\" is missing");
  CHECK(gbnf_refusal("root ::= " + std::string(100, '(')) == "groups are nested more than 64 deep");
  CHECK(gbnf_refusal(std::string(300'000, ' ')).find("at most 262144") != std::string::npos);
  // Nested repetitions are counted.
  CHECK(gbnf_refusal("root ::= (((\"a\"{1,10000} \"b\"){1,10000}){1,10000}){1,10000}") == "taken");
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 9000; ++i) {
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "? \"x\"\n";
  }
  CHECK(gbnf_refusal(chain + "r9000 ::= \"y\"") != "");
}

TEST_CASE("tool calls: each dialect has its frame, arguments in any order") {
  const auto takes = [](ToolDialect dialect, Mode mode, bool parallel, std::string_view text) {
    const auto grammar =
        compile_tools(weather_tools(ToolSpec::Arguments::kStrict), {dialect, mode, parallel});
    Matcher matcher(grammar);
    return matcher.advance(text) && matcher.accepts();
  };
  const std::string hermes =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 3, \"city\": "
      "\"x\"}}\n</tool_call>";
  const std::string xml =
      "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\n"
      "a <b>\n\"c\"\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>";
  const std::string pythonic =
      "<|tool_call_start|>[weather(days=3, city=\"x\", on=True), now()]<|tool_call_end|>";
  for (const auto& [dialect, call] :
       {std::pair(ToolDialect::kHermes, hermes), std::pair(ToolDialect::kXml, xml),
        std::pair(ToolDialect::kPythonic, pythonic)}) {
    INFO(call);
    CHECK(takes(dialect, Mode::kRequired, true, call));
    CHECK(takes(dialect, Mode::kAuto, true, "Some text <tool. " + call + " and more"));
    CHECK(takes(dialect, Mode::kAuto, true, "no call"));
    CHECK_FALSE(takes(dialect, Mode::kRequired, true, "no call"));
    CHECK_FALSE(takes(dialect, Mode::kNone, true, call));
    CHECK(takes(dialect, Mode::kNone, true, "text"));
    const bool has_several = dialect == ToolDialect::kPythonic;
    CHECK(takes(dialect, Mode::kAuto, false, call) != has_several);
    CHECK_FALSE(takes(dialect, Mode::kAuto, false, call + " more"));
    CHECK(takes(dialect, Mode::kRequired, true, call + "\n" + call) != has_several);
    std::string other = call;
    other.replace(other.find("weather"), 7, "unknown");
    CHECK_FALSE(takes(dialect, Mode::kAuto, true, other));
    other = call;
    other.replace(other.find("city"), 4, "days");
    CHECK_FALSE(takes(dialect, Mode::kAuto, true, other));
  }
  CHECK_FALSE(takes(ToolDialect::kXml, Mode::kRequired, true,
                    "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n"
                    "</function>\n</tool_call>"));
}

TEST_CASE("tool calls: one that no text can be is refused by its name, others or not") {
  for (const ToolDialect dialect :
       {ToolDialect::kHermes, ToolDialect::kXml, ToolDialect::kPythonic}) {
    for (const char* const parameters :
         {R"({"type":"string"})", R"({"type":"array","minItems":50})",
          R"({"type":"object","properties":{"a":{"type":"integer","minimum":2,"maximum":1}},
              "required":["a"]})"}) {
      for (const bool has_other : {false, true}) {
        std::vector<ToolSpec> tools = {{"bad", parameters, ToolSpec::Arguments::kRelaxed}};
        if (has_other) tools.push_back({"good", R"({"type":"object"})"});
        INFO(static_cast<int>(dialect) << " " << parameters);
        try {
          compile_tools(tools, {dialect, Mode::kRequired, true});
          FAIL_CHECK("taken");
        } catch (const GrammarError& error) {
          CHECK(error.kind() == GrammarError::Kind::kUnmet);
          CHECK(error.path().starts_with("bad"));
        }
      }
    }
  }
}

TEST_CASE("tool calls: lines of forced ones begin with four blanks a level at most") {
  const std::vector<ToolSpec> tools = {
      {"f", R"({"type":"object","properties":{"a":{"type":"object","properties":{
          "b":{"type":"array","items":{"type":"integer"}}}}}})",
       ToolSpec::Arguments::kRelaxed}};
  // A call as json.dumps writes it with so many blanks a level, after `more` blanks at the place.
  const auto call = [](std::size_t blanks, std::size_t place = 0, std::size_t more = 0) {
    const std::pair<const char*, std::size_t> lines[] = {{"<tool_call>\n{", 1},
                                                         {"\"name\": \"f\",", 1},
                                                         {"\"arguments\": {", 2},
                                                         {"\"a\": {", 3},
                                                         {"\"b\": [", 4},
                                                         {"1,", 4},
                                                         {"2", 3},
                                                         {"]", 2},
                                                         {"}", 1},
                                                         {"}", 0},
                                                         {"}", 0}};
    std::string text;
    for (std::size_t i = 0; i < std::size(lines); ++i) {
      const auto& [line, level] = lines[i];
      text += line;
      text += '\n' + std::string(level * blanks + (i == place ? more : 0), ' ');
    }
    return text + "</tool_call>";
  };
  const auto takes = [&](Mode mode, const std::string& text) {
    Matcher matcher(compile_tools(tools, {ToolDialect::kHermes, mode, true}));
    return matcher.advance(text) && matcher.accepts();
  };
  for (const std::size_t blanks : {0u, 1u, 2u, 4u}) {
    INFO(call(blanks));
    CHECK(takes(Mode::kRequired, call(blanks)));
    CHECK(takes(Mode::kAuto, call(blanks)));
  }
  for (std::size_t place = 0; place < 10; ++place) {
    INFO(place);
    CHECK_FALSE(takes(Mode::kRequired, call(4, place, 9)));
    CHECK(takes(Mode::kAuto, call(4, place, 9)));
  }
}

TEST_CASE("tool calls: any arguments are any keys of the dialect") {
  for (const auto& [dialect, call] :
       {std::pair(ToolDialect::kHermes,
                  "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": "
                  "[1]}}\n</tool_call>"),
        std::pair(ToolDialect::kXml,
                  "<tool_call>\n<function=now>\n<parameter=a>\nx\n</parameter>\n"
                  "<parameter=b-c>\n\n</parameter>\n</function>\n</tool_call>"),
        std::pair(ToolDialect::kPythonic,
                  "<|tool_call_start|>[now(a=1, b_c=[None])]<|tool_call_end|>")}) {
    Matcher matcher(
        compile_tools(weather_tools(ToolSpec::Arguments::kAny), {dialect, Mode::kRequired, true}));
    INFO(call);
    CHECK(matcher.advance(call));
    CHECK(matcher.accepts());
  }
}

TEST_CASE("tool calls: each declared name is a key, however it is spelt") {
  const std::vector<std::string> names = {
      "城市",  "$filter", "ids[]",  "my key", "\"q\"", " a ", "a<b", "x=y", std::string(300, 'n'),
      "plain", "no>key",  "no\nkey"};
  nlohmann::json properties;
  for (const std::string& name : names) properties[name] = {{"type", "string"}};
  const nlohmann::json schema = {
      {"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
  for (const auto arguments :
       {ToolSpec::Arguments::kAny, ToolSpec::Arguments::kRelaxed, ToolSpec::Arguments::kStrict}) {
    const std::vector<ToolSpec> tools = {{"f", schema.dump(), arguments, names}};
    const auto takes = [&](ToolDialect dialect, const std::string& text) {
      Matcher matcher(compile_tools(tools, {dialect, Mode::kRequired, true}));
      return matcher.advance(text) && matcher.accepts();
    };
    for (const std::string& name : names) {
      INFO(name);
      const bool ends = name.find_first_of(">\n") != std::string::npos;
      CHECK(takes(ToolDialect::kXml, "<tool_call>\n<function=f>\n<parameter=" + name +
                                         ">\nv\n</parameter>\n</function>\n</tool_call>") != ends);
      const bool is_name =
          name == "城市" || name == "$filter" || name == "plain" || name == std::string(300, 'n');
      CHECK(takes(ToolDialect::kPythonic,
                  "<|tool_call_start|>[f(" + name + "=\"v\")]<|tool_call_end|>") == is_name);
    }
  }
}

// True if a call of a function with `parameters` may have `members`, as a dialect spells them.
bool call_takes(ToolDialect dialect, const char* parameters, const std::string& members,
                ToolSpec::Arguments arguments = ToolSpec::Arguments::kStrict) {
  const std::vector<ToolSpec> tools = {{"f", parameters, arguments}};
  Matcher matcher(compile_tools(tools, {dialect, Mode::kRequired, false}));
  const std::string call =
      dialect == ToolDialect::kXml
          ? "<tool_call>\n<function=f>\n" + members + "</function>\n</tool_call>"
          : "<|tool_call_start|>[f(" + members + ")]<|tool_call_end|>";
  return matcher.advance(call) && matcher.accepts();
}

std::string xml_member(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST_CASE("tool calls: XML arguments may have names that no properties name") {
  const auto takes = [](const char* parameters, const std::string& members) {
    CAPTURE(parameters, members);
    const bool taken = call_takes(ToolDialect::kXml, parameters, members);
    CHECK(taken ==
          call_takes(ToolDialect::kXml, parameters, members, ToolSpec::Arguments::kRelaxed));
    return taken;
  };
  const auto& one = xml_member;
  const char* const counts = R"({"type":"object","additionalProperties":{"type":"integer"}})";
  CHECK(takes(counts, ""));
  CHECK(takes(counts, one("Tokyo", "3")));
  CHECK(takes(counts, one("Tokyo", "3") + one("New York", "-1") + one("東京", "0")));
  CHECK(takes(counts, one(std::string(64, 'k'), "3")));
  CHECK_FALSE(takes(counts, one("Tokyo", "x")));
  for (const char* const name : {"", " a", "a ", "a\nb", "a<b", "'a'", "a\"b", "a\\b"}) {
    CHECK_FALSE(takes(counts, one(name, "3")));
  }
  // Beside those that are named, of which each comes once.
  const char* const beside = R"({"type":"object","properties":{"ab":{"type":"string"}},
                                 "required":["ab"],"additionalProperties":{"type":"integer"}})";
  CHECK(takes(beside, one("ab", "x")));
  CHECK(takes(beside, one("a", "1") + one("ab", "x") + one("abc", "2")));
  CHECK_FALSE(takes(beside, one("abc", "2")));
  CHECK_FALSE(takes(beside, one("abc", "x") + one("ab", "x")));
  CHECK_FALSE(takes(beside, one("ab", "x") + one("ab", "1")));
  const char* const patterns = R"({"type":"object","patternProperties":{"^x-":{"type":"integer"},
                                   "y$":{"type":["integer","null"]}},"additionalProperties":false})";
  CHECK(takes(patterns, one("x-1", "1") + one("y", "null") + one("x-y", "2")));
  CHECK_FALSE(takes(patterns, one("x-y", "null")));
  CHECK_FALSE(takes(patterns, one("z", "1")));
  // Few names come once each.
  const char* const names = R"({"type":"object","propertyNames":{"enum":["a","b"]}})";
  CHECK(takes(names, one("b", "[1]") + one("a", "x")));
  CHECK_FALSE(takes(names, one("a", "x") + one("a", "x")));
  CHECK_FALSE(takes(names, one("c", "x")));
  const char* const bounds = R"({"type":"object","minProperties":1,"maxProperties":2})";
  CHECK_FALSE(takes(bounds, ""));
  CHECK(takes(bounds, one("a", "x") + one("b", "1")));
  CHECK_FALSE(takes(bounds, one("a", "x") + one("b", "1") + one("c", "1")));
  const char* const more = R"({"type":"object","properties":{"a":{"type":"null"}},
                               "minProperties":2})";
  CHECK(takes(more, one("a", "null") + one("b", "1")));
  CHECK_FALSE(takes(more, one("a", "null")));
  const char* const branches = R"({"anyOf":[{"properties":{"a":{"type":"null"}},
      "additionalProperties":false},{"additionalProperties":{"type":"integer"}}]})";
  CHECK(takes(branches, one("a", "null")));
  CHECK(takes(branches, one("a", "1") + one("b", "1")));
  CHECK_FALSE(takes(branches, one("a", "null") + one("b", "1")));
}

TEST_CASE("tool calls: names that nothing is said of are those of `properties`, if it is there") {
  for (const auto& [dialect, member] : {std::pair(ToolDialect::kXml, xml_member("b", "1")),
                                        std::pair(ToolDialect::kPythonic, std::string("b=1"))}) {
    for (const char* const open :
         {"{}", R"({"type":"object"})", R"({"type":"object","additionalProperties":true})",
          R"({"type":"object","properties":{},"additionalProperties":{}})",
          R"({"type":"object","properties":{"a":true},"additionalProperties":{"type":"integer"}})",
          R"({"type":"object","propertyNames":{"maxLength":3}})"}) {
      INFO(open);
      CHECK(call_takes(dialect, open, member));
      CHECK(call_takes(dialect, open, ""));
    }
    for (const char* const closed :
         {R"({"type":"object","properties":{}})", R"({"properties":{"a":{"type":"null"}}})",
          R"({"type":"object","additionalProperties":false})",
          R"({"type":"object","propertyNames":false})",
          R"({"type":"object","patternProperties":{"":false}})"}) {
      INFO(closed);
      CHECK_FALSE(call_takes(dialect, closed, member));
      CHECK(call_takes(dialect, closed, ""));
    }
  }
  const char* const record = R"({"properties":{"ab":{"type":"null"}},"required":["ab"],
                                 "additionalProperties":{"type":"integer"}})";
  CHECK(call_takes(ToolDialect::kPythonic, record, "a=1, ab=None, abc=2"));
  CHECK_FALSE(call_takes(ToolDialect::kPythonic, record, "ab=1"));
  CHECK_FALSE(call_takes(ToolDialect::kPythonic, record, "abc=2"));
  CHECK_FALSE(call_takes(ToolDialect::kPythonic, record, "ab=None,"));
}

TEST_CASE("tool calls: objects of relaxed arguments take the members that they declare alone") {
  const auto closed = [](const char* parameters, ToolSpec::Arguments arguments) {
    std::vector<RelaxedKeyword> relaxed;
    const std::vector<ToolSpec> tools = {{"f", parameters, arguments}};
    compile_tools(tools, {ToolDialect::kHermes, Mode::kRequired, false}, &relaxed);
    std::string paths;
    for (const RelaxedKeyword& keyword : relaxed) {
      if (keyword.is_closed) paths += keyword.path + " ";
    }
    return paths;
  };
  const auto takes = [](const char* parameters, const std::string& object,
                        ToolSpec::Arguments arguments = ToolSpec::Arguments::kRelaxed) {
    const std::vector<ToolSpec> tools = {{"f", parameters, arguments}};
    Matcher matcher(compile_tools(tools, {ToolDialect::kHermes, Mode::kRequired, false}));
    return matcher.advance("<tool_call>\n{\"name\": \"f\", \"arguments\": " + object +
                           "}\n</tool_call>") &&
           matcher.accepts();
  };
  const char* const nested = R"({"type":"object","properties":{
      "a":{"type":"object","properties":{"b":{"type":"integer"}}},
      "list":{"type":"array","items":{"properties":{"c":{}}}}}})";
  CHECK(takes(nested, R"({"a": {"b": 1}, "list": [{"c": {"any": 1}}]})"));
  CHECK_FALSE(takes(nested, R"({"x": 1})"));
  CHECK_FALSE(takes(nested, R"({"a": {"x": 1}})"));
  CHECK_FALSE(takes(nested, R"({"list": [{"x": 1}]})"));
  CHECK(closed(nested, ToolSpec::Arguments::kRelaxed) ==
        "f# f#/properties/a f#/properties/list/items ");
  CHECK_FALSE(takes(R"({"properties":{}})", R"({"x": 1})"));
  // Under strict a schema says all that it means.
  CHECK(takes(nested, R"({"a": {"x": 1}, "x": 1})", ToolSpec::Arguments::kStrict));
  CHECK(closed(nested, ToolSpec::Arguments::kStrict).empty());
  // Members of all parts of a schema are declared.
  const char* const parts = R"({"allOf":[{"properties":{"a":{}}},{"$ref":"#/$defs/more"}],
                                "$defs":{"more":{"properties":{"b":{}},"required":["c"]}}})";
  CHECK(takes(parts, R"({"a": 1, "b": 2, "c": 3})"));
  CHECK_FALSE(takes(parts, R"({"c": 3, "x": 1})"));
  // A schema that says which others there are, or of which a part is left out that may, is open.
  for (const char* const open :
       {R"({"type":"object"})", R"({"properties":{"a":{}},"additionalProperties":true})",
        R"({"properties":{"a":{}},"additionalProperties":{"type":"integer"}})",
        R"({"properties":{"a":{}},"patternProperties":{"^x":{}}})",
        R"({"properties":{"a":{}},"propertyNames":{"pattern":"^.$"}})",
        R"({"properties":{"a":{}},"minProperties":2})",
        R"({"properties":{"a":{}},"if":{"required":["a"]},"then":{"properties":{"x":{}}}})",
        R"({"properties":{"a":{}},"dependentSchemas":{"a":{"properties":{"x":{}}}}})"}) {
    INFO(open);
    CHECK(takes(open, R"({"a": 1, "x": 1})"));
    CHECK(closed(open, ToolSpec::Arguments::kRelaxed).empty());
  }
}

TEST_CASE("tool calls: names that no call can have are refused by the keyword that asks for them") {
  for (const auto& [schema, keyword] :
       {std::pair(R"({"propertyNames":{"pattern":"^<"}})", "propertyNames"),
        std::pair(R"({"patternProperties":{">":{}},"additionalProperties":false})",
                  "patternProperties")}) {
    INFO(schema);
    std::vector<ToolSpec> tools = {{"f", schema, ToolSpec::Arguments::kStrict}};
    try {
      compile_tools(tools, {ToolDialect::kXml, Mode::kRequired, false});
      FAIL_CHECK("taken");
    } catch (const GrammarError& error) {
      CHECK(error.kind() == GrammarError::Kind::kUnsupported);
      CHECK(error.path() == "f#");
      CHECK(error.reason() == keyword);
    }
    tools[0].arguments = ToolSpec::Arguments::kRelaxed;
    std::vector<RelaxedKeyword> relaxed;
    compile_tools(tools, {ToolDialect::kXml, Mode::kRequired, false}, &relaxed);
    REQUIRE(relaxed.size() == 1);
    CHECK(relaxed[0].path == "f#");
    CHECK(relaxed[0].keyword == keyword);
  }
}

TEST_CASE("tool calls: XML without a start tag is a call by the same rules") {
  const auto tools = weather_tools(ToolSpec::Arguments::kStrict);
  const auto takes = [&](bool parallel, const std::string& text) {
    Matcher matcher(compile_tools(tools, {ToolDialect::kXml, Mode::kAuto, parallel}));
    return matcher.advance(text) && matcher.accepts();
  };
  const std::string call = "<function=now>\n</function>";
  CHECK(takes(true, call));
  CHECK(takes(true, "a\n" + call + "\n</tool_call>\nb"));
  CHECK(takes(true, "a\n" + call + call + "\n<tool_call>\n" + call + "\n</tool_call>\n" + call));
  CHECK(takes(false, "a\n" + call));
  CHECK_FALSE(takes(false, "a\n" + call + "b"));
  CHECK_FALSE(takes(true, "<function=other>\n</function>"));
  CHECK_FALSE(takes(true, "a\n<function=weather>\n<parameter=days>\nx"));
  CHECK_FALSE(takes(true, "<tool_call>\n" + call + "\n</tool_call><function=other>"));
  // The tag is text in mid-line.
  CHECK(takes(true, "a <function=other>"));
  CHECK(takes(true, "a\n <function=other>"));
}

TEST_CASE("schemas and tools: the type float is a number") {
  Matcher matcher(compile_schema(R"({"type": ["float", "null"]})"));
  CHECK(matcher.advance("-1.5e3"));
  CHECK(matcher.accepts());
  CHECK_FALSE(Matcher(compile_schema(R"({"type": "float"})")).advance("\""));
}

TEST_CASE("a grammar of two: the texts of a format, and calls") {
  const auto tools = weather_tools(ToolSpec::Arguments::kStrict);
  const auto grammar = std::make_shared<Grammar>(kMaxGbnfDepth);
  const NodeId text = add_gbnf(*grammar, "root ::= \"ab\" root | \"c\"");
  const NodeId calls = add_tool_calls(
      *grammar, tools,
      {.dialect = ToolDialect::kXml, .mode = Mode::kRequired, .leading_lines = false});
  grammar->finish(grammar->add_choice({text, calls}));
  const auto takes = [&](const std::string& all) {
    Matcher matcher(grammar);
    return matcher.advance(all) && matcher.accepts();
  };
  const std::string call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
  CHECK(takes("ababc"));
  CHECK(takes(call));
  CHECK(takes(call + "\n" + call));
  CHECK_FALSE(takes("ab"));
  CHECK_FALSE(takes("c" + call));
  CHECK_FALSE(takes("\n\n" + call));
  CHECK_FALSE(takes(call + "c"));
}

TEST_CASE("tool calls: errors and relaxed keywords name the tool") {
  std::vector<ToolSpec> tools = {
      {"t", R"({"type":"object","uniqueItems":true})", ToolSpec::Arguments::kStrict}};
  try {
    compile_tools(tools, {});
    FAIL("taken");
  } catch (const GrammarError& error) {
    CHECK(error.path() == "t#");
    CHECK(error.reason() == "uniqueItems");
  }
  tools[0].arguments = ToolSpec::Arguments::kRelaxed;
  std::vector<RelaxedKeyword> relaxed;
  compile_tools(tools, {}, &relaxed);
  REQUIRE(relaxed.size() == 1);
  CHECK(relaxed[0].path == "t#");
}

// The number of tokens of large models. Words share beginnings as those of languages do.
std::vector<std::string> many_tokens() {
  std::set<std::string> tokens = all_tokens();
  std::mt19937_64 random(3);
  std::vector<std::string> parts;
  constexpr std::string_view kLetters = "etaoinshrdlucmfwypvbgkqjxz";
  for (int i = 0; i < 400; ++i) {
    std::string part;
    for (std::size_t k = 0; k < 1 + random() % 3; ++k) {
      part += kLetters[std::min(random() % 26, random() % 26)];
    }
    parts.push_back(part);
  }
  while (tokens.size() < 248'000) {
    std::string token = random() % 2 == 0 ? " " : "";
    const std::uint64_t kind = random() % 100;
    if (kind < 70) {
      for (std::size_t k = 0; k < 1 + random() % 4; ++k) token += parts[random() % parts.size()];
    } else if (kind < 95) {
      for (std::size_t k = 0; k < 1 + random() % 3; ++k) {
        const auto c = static_cast<unsigned>(0x4E00 + std::min(random() % 6000, random() % 6000));
        token += static_cast<char>(0xE0 | c >> 12);
        token += static_cast<char>(0x80 | (c >> 6 & 0x3F));
        token += static_cast<char>(0x80 | (c & 0x3F));
      }
    } else if (kind < 97) {
      constexpr std::string_view kMarks = "\"'{}[]():;,.<>/\\=+-*&|!?#$%_\n\t ";
      for (std::size_t k = 0; k < 2 + random() % 4; ++k) token += kMarks[random() % kMarks.size()];
    } else {
      token += std::to_string(random() % 1000);
    }
    tokens.insert(token);
  }
  std::vector<std::string> shuffled(tokens.begin(), tokens.end());
  std::ranges::shuffle(shuffled, random);
  shuffled.emplace_back();  // the end
  return shuffled;
}

// Kinds of grammars that people write.
constexpr const char* kCommon[] = {
    kJsonGbnf,
    // Arithmetic, with its result.
    R"gbnf(root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*)gbnf",
    // A language like C: optional parts side by side.
    R"gbnf(root      ::= (function)*
function  ::= type space name "(" (parameter ("," space parameter)*)? ")" gap "{" body "}" gap
type      ::= "int" | "float" | "char"
parameter ::= type space name
body      ::= (gap statement)* gap
statement ::= type space name gap "=" gap expression ";" | name gap "=" gap expression ";"
            | name "(" list? ")" ";" | "return" space expression ";" | "//" [^\n]* "\n"
            | "while" gap "(" condition ")" gap "{" body "}"
            | "if" gap "(" condition ")" gap "{" body "}" (gap "else" gap "{" body "}")?
condition ::= expression gap ("<=" | "<" | "==" | "!=" | ">=" | ">") gap expression
expression ::= term (gap [-+] gap term)*
term      ::= unary | factor (gap [*/] gap factor)*
unary     ::= "-" factor
factor    ::= name | number | name "(" list? ")" | "(" gap expression gap ")"
list      ::= expression ("," gap expression)*
name      ::= [a-zA-Z_] [a-zA-Z_0-9]*
number    ::= [0-9]+ ("." [0-9]+)?
space     ::= [ \t\n]+
gap       ::= [ \t\n]*)gbnf",
    // Moves of chess.
    R"gbnf(root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | piece | castle) [+#]?
piece  ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?)gbnf",
    // Text of one script.
    R"gbnf(root ::= word ([ \t\n] word)*
word ::= kana+ | kanji+ | mark
kana ::= [ぁ-ゟァ-ヿ]
kanji ::= [一-鿿]
mark ::= [　-〾])gbnf",
    // Lists.
    R"gbnf(root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n")gbnf",
    // Nested optional parts, all of which may be empty.
    R"gbnf(root ::= ("SELECT " cols " FROM " name (" WHERE " cond)? (" ORDER BY " cols)? ";" "\n"?)+
cols ::= "*" | col (", " col)*
col  ::= name ("." name)? (" AS " name)? | func
func ::= [A-Z]+ "(" (cols)? ")"
cond ::= pred ((" AND " | " OR ") pred)*
pred ::= "NOT "? (col " " op " " value | "(" cond ")")
op   ::= "=" | "<" ">"? | ">" | "LIKE" | "IN"
value ::= [0-9]+ | "'" [^']* "'" | col | "(" value (", " value)* ")"
name ::= [a-z_]+)gbnf"};

TEST_CASE("grammars that people write: a token takes less than a tenth of the work that is served",
          "[threat-98]") {
  std::vector<std::pair<std::string, std::shared_ptr<const Grammar>>> all;
  for (const char* const gbnf : kCommon) all.emplace_back(gbnf, compile_gbnf(gbnf));
  for (const char* const file : {"cases.json", "libraries.json"}) {
    std::ifstream in(std::string(LINTEL_TEST_DATA "/golden/chat/schema/") + file);
    const nlohmann::json read = nlohmann::json::parse(in);
    for (const nlohmann::json& one : read.is_array() ? read : read["made"]) {
      const std::string schema = one["schema"].dump();
      try {
        all.emplace_back(schema, compile_schema(schema));
      } catch (const GrammarError&) {  // no text meets it
      }
    }
  }
  CHECK(all.size() > 300);
  const std::vector<std::string> tokens = many_tokens();
  const auto vocabulary = vocabulary_of({tokens.begin(), tokens.end()});
  const std::int32_t end = vocabulary->end_tokens()[0];
  std::size_t most = 0;
  std::string hardest;
  const std::uint64_t seeds = testing::runs_every_case() ? 4 : 1;
  for (const auto& [name, grammar] : all) {
    INFO(name);
    const bool is_gbnf = !name.starts_with('{');
    for (std::uint64_t seed = 0; seed < (is_gbnf ? seeds : 1); ++seed) {
      std::mt19937_64 random(seed);
      TokenMatcher matcher(grammar, vocabulary);
      for (int step = 0; step < (is_gbnf ? 25 : 8) && !matcher.ended(); ++step) {
        std::size_t budget = kMaxMaskWork;
        REQUIRE(matcher.prepare(&budget));
        REQUIRE_FALSE(matcher.exceeded());
        if (kMaxMaskWork - budget > most) {
          most = kMaxMaskWork - budget;
          hardest = name;
        }
        // A token that does not end the text is preferred.
        const std::vector<std::int32_t> ids = ids_of(matcher.mask());
        REQUIRE_FALSE(ids.empty());
        std::int32_t id = ids[random() % ids.size()];
        for (int i = 0; i < 8 && id == end; ++i) id = ids[random() % ids.size()];
        REQUIRE(matcher.advance(id));
      }
    }
  }
  INFO(most << " by " << hardest);
  CHECK(most < kMaxMaskWork / 10);
}

TEST_CASE("speed: the mask of 248,320 tokens takes microseconds", "[speed]") {
  const std::vector<std::string> tokens = many_tokens();
  const auto end = static_cast<std::int32_t>(tokens.size() - 1);
  const std::pair<const char*, std::shared_ptr<const Grammar>> all[] = {
      {"object", compile_schema(R"({"type":"object","properties":{"city":{"type":"string"},
           "days":{"type":"integer","minimum":1,"maximum":14},"unit":{"enum":["C","F"]},"tags":{
           "type":"array","items":{"type":"string","maxLength":20}}},"required":["city","tags"],
           "additionalProperties":false})")},
      {"any object", compile_schema(R"({"type":"object"})")},
      {"GBNF", compile_gbnf(kJsonGbnf)},
      {"hermes", compile_tools(weather_tools(ToolSpec::Arguments::kStrict), {})}};
  // Each vocabulary is visited for the first time: the quickest visit is the least disturbed. A
  // core that others share is given more of them, and as much more time as it takes to make the
  // vocabulary, which is 50 to 70 times as long as a visit wherever it was measured.
  constexpr double kFirstVisit = 3'000;
  constexpr double kVisitsOfMaking = 50;
  std::map<std::string, double> first_visit;  // as a share of the bound
  const auto is_slow = [&] {
    return std::ranges::any_of(first_visit, [](const auto& entry) { return entry.second >= 1; });
  };
  const int fewest = testing::runs_every_case() ? 3 : 1;
  for (int repeat = 0; repeat < fewest || (repeat < 10 && is_slow()); ++repeat) {
    std::shared_ptr<const Vocabulary> vocabulary;
    const double made = testing::cpu_seconds_of([&] {
      vocabulary = std::make_shared<const Vocabulary>(tokens, std::vector<std::int32_t>{end});
    });
    const double warm = testing::cpu_seconds_of(
        [&] { warm_masks(*vocabulary, tool_call_automata(ToolDialect::kHermes)); });
    WARN(vocabulary->trie().size() << " nodes made in " << made * 1e3
                                   << " ms, masks that all share in " << warm * 1e3 << " ms");
    for (const auto& [name, grammar] : all) {
      std::vector<double> times;
      double first = 0;
      for (std::uint64_t seed = 0; seed < 16; ++seed) {
        std::mt19937_64 random(seed);
        TokenMatcher matcher(grammar, vocabulary);
        for (int step = 0; step < 50 && !matcher.ended(); ++step) {
          const double time = 1e6 * testing::cpu_seconds_of([&] { matcher.mask(); });
          (seed < 8 ? first : times.emplace_back()) = seed < 8 ? std::max(first, time) : time;
          const std::vector<std::int32_t> ids = ids_of(matcher.mask());
          REQUIRE(matcher.advance(ids[random() % ids.size()]));
        }
      }
      std::ranges::sort(times);
      WARN(name << ": median " << times[times.size() / 2] << " us, p99 "
                << times[times.size() * 99 / 100] << " us, largest of the first " << first
                << " us");
      CHECK(times[times.size() / 2] < 50);
      const double share = first / std::max(kFirstVisit, 1e6 * made / kVisitsOfMaking);
      double& least = first_visit.try_emplace(name, share).first->second;
      least = std::min(least, share);
    }
  }
  for (const auto& [name, share] : first_visit) {
    INFO(name << ": " << share << " of the bound");
    CHECK(share < 1);
  }
}

}  // namespace
}  // namespace lintel::grammar
