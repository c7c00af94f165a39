// SPDX-License-Identifier: Apache-2.0
// Small schemas and grammars.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/mutations.h"

namespace lintel::fuzz {

std::vector<std::string> schema_seeds() {
  return {
      R"({"anyOf":[{"type":"number","exclusiveMinimum":-1.5e1,"maximum":0.25},{"type":"integer",)"
      R"("multipleOf":6,"minimum":0},{"multipleOf":0.01},{"type":"string","pattern":)"
      R"s("^(?!ab$|c)(?=.*b)[a-c]*(?=b|a$)","minLength":2,"maxLength":50},{"format":"uri",)s"
      R"("maxLength":30},{"enum":[1,2.50,1e3,-0],"minimum":1,"exclusiveMinimum":true}]})",
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"^[a-c]+(x|\\d{2,3})?$"},)"
      R"("b":{"type":"integer","minimum":-3,"exclusiveMaximum":40},"c":{"$ref":"#/$defs/c"}},)"
      R"("required":["a"],"additionalProperties":false,"$defs":{"c":{"type":"array","items":)"
      R"({"$ref":"#/$defs/c"},"maxItems":3}}})",
      R"({"anyOf":[{"enum":["a",1,null,[1,{"k":"v"}]]},{"type":"string","format":"date",)"
      R"("minLength":2},{"type":["number","null"],"nullable":true}]})",
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"x"}},"required":["k"]},)"
      R"({"type":"object","properties":{"k":{"const":"y"}},"required":["k"]}],"title":"t"})",
      R"({"allOf":[{"properties":{"a":{"type":"string"}}},{"required":["a"]}],"prefixItems":)"
      R"([true,{"type":"string","minLength":1,"maxLength":9}],"items":false})",
      R"({"$id":"http://a/b","type":"object","patternProperties":{"^a":{"type":"null"},"b$":true},)"
      R"("propertyNames":{"maxLength":3},"minProperties":1,"maxProperties":4,"properties":{"c":)"
      R"({"$ref":"d#/$defs/e"}},"dependentRequired":{"c":["a"]},"$defs":{"d":{"$id":"d","$defs":)"
      R"({"e":{"$anchor":"f","items":[{"$ref":"#f"},false],"additionalItems":{}}}}}})",
      R"({"oneOf":[{"required":["a"],"type":"object"},{"required":["b"],"type":"object"},)"
      R"({"not":{"anyOf":[{"type":"object"},{"enum":[1.5,"x",null,[]]},{"pattern":"^y"}]}}]})",
      R"({"$ref":"#/$defs/0","$defs":{"0":{"$ref":"#/$defs/1","anyOf":[true,{}]},"1":{"$ref":)"
      R"("#/$defs/2","anyOf":[{"minItems":1},{"maxItems":2}]},"2":{"allOf":[{"anyOf":[true]},)"
      R"({"anyOf":[{"const":[1]},{"enum":[[2],"z"]}]}]}}})",
  };
}

std::vector<std::string> gbnf_seeds() {
  return {
      "root ::= object\nvalue ::= object | [0-9]+ | \"\\\"\" [^\"\\\\]* \"\\\"\"\n"
      "object ::= \"{\" (value (\",\" value)*)? \"}\" # end\n",
      "root ::= <[97]>{2} \"<[\" [<\\]] <[10]> # <[\n",
      "root ::= \"a\" root \"b\" | x{2,30} | ((\"\\u00e9\"? x?)* .)+\nx ::= [^a-c\\n]\n",
  };
}

namespace {

// Writes random expressions. Rules come after a character, so that none begins with itself.
class GbnfWriter {
 public:
  GbnfWriter(std::uint64_t seed, std::size_t rules) : random_(seed), rules_(rules) {}

  std::string choice(int depth) {
    std::string text = sequence(depth);
    for (std::size_t i = below(3); i > 0; --i) text += " | " + sequence(depth);
    return text;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }

  std::string sequence(int depth) {
    std::string text;
    bool has_character = false;
    for (std::size_t i = below(4); i > 0; --i) {
      std::string part;
      const std::size_t kind = below(depth > 0 ? 4 : 2);
      if (kind == 0 && has_character) {
        part = "r" + std::to_string(below(rules_));
      } else if (kind <= 1) {
        part = kCharacters[below(std::size(kCharacters))];
        has_character = true;
      } else {
        part = "(" + choice(depth - 1) + ")";
      }
      text += (text.empty() ? "" : " ") + part;
      // A character that may be left out does not keep a rule from beginning with itself.
      if (kind > 1) text += kRepeats[below(std::size(kRepeats))];
    }
    return text.empty() ? "\"\"" : text;
  }

  static constexpr const char* kCharacters[] = {".",       "[a-z]", "\"a\"", "\"bc\"",
                                                "\"\\n\"", "[^b]",  "<[98]>"};
  static constexpr const char* kRepeats[] = {"", "", "*", "+", "?", "{3,}", "{2,5}"};
  std::mt19937_64 random_;
  const std::size_t rules_;
};

}  // namespace

std::string random_gbnf(std::uint64_t seed) {
  const std::size_t rules = 1 + seed % 4;
  GbnfWriter writer(seed, rules);
  std::string text = "root ::= r0 | \"x\"\n";
  for (std::size_t i = 0; i < rules; ++i) {
    text += "r" + std::to_string(i) + " ::= " + writer.choice(3) + "\n";
  }
  return text;
}

}  // namespace lintel::fuzz
