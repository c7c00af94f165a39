// SPDX-License-Identifier: Apache-2.0
// JSON Schema: the vectors of tests/golden/chat, documents made by masks, bounds.
#include "server/grammar/schema.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "server/grammar/tool_calls.h"
#include "tests/server/grammar/grammar_support.h"
#include "tests/support/catch.h"

namespace lintel::grammar {
namespace {

using Json = nlohmann::ordered_json;

Json read_cases() {
  std::ifstream in(LINTEL_TEST_DATA "/golden/chat/schema/cases.json");
  return Json::parse(in);
}

// Null: no text meets the schema.
std::shared_ptr<const Grammar> compile_or_unmet(const std::string& schema) {
  try {
    return compile_schema(schema);
  } catch (const GrammarError& error) {
    if (error.kind() != GrammarError::Kind::kUnmet) throw;
    return nullptr;
  }
}

bool takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  if (grammar == nullptr) return false;
  Matcher matcher(grammar);
  return matcher.advance(text) && matcher.accepts();
}

bool takes(const char* schema, const std::string& text) {
  return takes(compile_or_unmet(schema), text);
}

std::string refusal(const std::string& schema) {
  try {
    compile_schema(schema);
  } catch (const GrammarError& error) {
    return error.reason();
  }
  return "taken";
}

// The ignored keywords with their places, under strict or not; the text of the refusal if there is
// one.
std::vector<std::string> named(const std::string& schema, bool is_strict) {
  SchemaOptions options;
  options.relaxed = !is_strict;
  std::vector<RelaxedKeyword> relaxed;
  std::vector<std::string> names;
  try {
    compile_schema(schema, options, &relaxed);
  } catch (const GrammarError& error) {
    return {error.reason()};
  }
  for (const RelaxedKeyword& keyword : relaxed) {
    names.push_back(keyword.path.empty() ? keyword.keyword : keyword.path + " " + keyword.keyword);
  }
  return names;
}

// A validator of its own for what the schemas below use. Objects have no equal keys here.
bool is_valid(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const auto pointer = schema["$ref"].get<std::string>().substr(1);
    return is_valid(value, root.at(Json::json_pointer(pointer)), root);
  }
  const auto is_type = [&](const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    return std::string(value.type_name()) == type;
  };
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::ranges::none_of(types, [&](const Json& t) { return is_type(t); })) return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("not") && is_valid(value, schema["not"], root)) return false;
  if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end()) {
    return false;
  }
  for (const char* const name : {"anyOf", "oneOf"}) {
    if (!schema.contains(name)) continue;
    const auto count = std::ranges::count_if(
        schema[name], [&](const Json& branch) { return is_valid(value, branch, root); });
    if (count == 0 || (name[0] == 'o' && count != 1)) return false;
  }
  if (value.is_number()) {
    if (schema.contains("minimum") && value < schema["minimum"]) return false;
    if (schema.contains("maximum") && value > schema["maximum"]) return false;
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const auto length = std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
    if (length < schema.value("minLength", 0) || length > schema.value("maxLength", 1 << 30)) {
      return false;
    }
  }
  if (value.is_array()) {
    const auto size = static_cast<int>(value.size());
    if (size < schema.value("minItems", 0) || size > schema.value("maxItems", 1 << 30)) {
      return false;
    }
    for (const Json& item : value) {
      if (schema.contains("items") && !is_valid(item, schema["items"], root)) return false;
    }
  }
  if (value.is_object()) {
    const Json properties = schema.value("properties", Json::object());
    const Json patterns = schema.value("patternProperties", Json::object());
    const Json dependent = schema.value("dependentRequired", Json::object());
    const auto count = static_cast<int>(value.size());
    if (count < schema.value("minProperties", 0)) return false;
    if (count > schema.value("maxProperties", 1 << 30)) return false;
    for (const auto& [name, needed] : dependent.items()) {
      for (const Json& other : needed) {
        if (value.contains(name) && !value.contains(other.get<std::string>())) return false;
      }
    }
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [name, member] : value.items()) {
      bool is_named = properties.contains(name);
      if (is_named && !is_valid(member, properties[name], root)) return false;
      for (const auto& [pattern, part] : patterns.items()) {
        if (!std::regex_search(name, std::regex(pattern))) continue;
        is_named = true;
        if (!is_valid(member, part, root)) return false;
      }
      if (schema.contains("propertyNames") && !is_valid(name, schema["propertyNames"], root)) {
        return false;
      }
      if (!is_named && schema.contains("additionalProperties") &&
          !is_valid(member, schema["additionalProperties"], root)) {
        return false;
      }
    }
  }
  return true;
}

constexpr const char* kSchemas[] = {
    R"({"type":"object","properties":{"city":{"type":"string","maxLength":5},
        "days":{"type":"integer","minimum":1,"maximum":140},"unit":{"enum":["C","F"]},
        "more":{"$ref":"#/$defs/more"}},"required":["city","unit"],"additionalProperties":false,
        "$defs":{"more":{"type":"object","properties":{"a":{"type":"number"},
        "next":{"$ref":"#/$defs/more"}},"required":["a"],"additionalProperties":false}}})",
    R"({"type":"object","properties":{"":{"type":"boolean"},"a":{"const":"abc"},
        "city":{"type":"null"}},"required":[""],"additionalProperties":{"type":"integer"}})",
    R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},"a":{"type":"number"}},
        "required":["kind","a"],"additionalProperties":false},{"type":"object","properties":{
        "kind":{"const":"aa"},"b":{"type":"array","items":{"type":"integer"},"minItems":1,
        "maxItems":3}},"required":["b","kind"],"additionalProperties":false}]})",
    R"({"type":"array","items":{"type":["string","integer"],"minLength":2,"maxLength":3},
        "minItems":2})",
    R"({"anyOf":[{"type":"integer","minimum":-12,"maximum":1050},{"enum":["a",null,[1,"x"],
        {"k":"v"}]},{"type":"array","items":{"type":"array","items":{"$ref":"#"}}}]})",
    "true",
    R"({"type":"object","properties":{"aa":{"type":"null"}},"patternProperties":{
        "^a":{"type":["integer","null"]},"b":{"enum":[12,true]}},"additionalProperties":
        {"type":"boolean"},"maxProperties":3})",
    R"({"type":"object","properties":{"a":{"type":"integer"},"city":{"const":1},"days":{"const":2}},
        "dependentRequired":{"a":["city"],"city":["days"]},"minProperties":1,"maxProperties":3,
        "propertyNames":{"maxLength":4}})",
    R"({"type":"object","properties":{"kind":{"not":{"enum":["circle","aa",12,null]}}},
        "required":["kind"],"additionalProperties":false})",
    R"({"oneOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},
        {"type":"object","properties":{"ab":{"type":"string"}},"required":["ab"]}],
        "maxProperties":2})",
};

TEST_CASE("golden schemas: documents are accepted and refused byte by byte") {
  const Json cases = read_cases();
  REQUIRE(cases["made"].size() >= 139);
  for (const Json& group : cases["made"]) {
    INFO(group["from"] << ": " << group["name"] << " " << group["schema"]);
    const auto grammar = compile_or_unmet(group["schema"].dump());
    for (const Json& document : group["documents"]) {
      INFO(document["text"]);
      CHECK(takes(grammar, document["text"]) == document["made"].get<bool>());
    }
  }
}

TEST_CASE("golden schemas: what is refused is refused by name") {
  const Json cases = read_cases();
  REQUIRE(cases["refused"].size() >= 60);
  for (const Json& group : cases["refused"]) {
    INFO(group["schema"]);
    CHECK(refusal(group["schema"].dump()) == group["refused"].get<std::string>());
  }
}

// Every cut of a text into tokens is a chain of such steps.
TEST_CASE("golden schemas: at each position the mask has the tokens that bytes permit") {
  const Json cases = read_cases();
  for (const Json& group : cases["made"]) {
    INFO(group["name"] << " " << group["schema"]);
    const auto grammar = compile_or_unmet(group["schema"].dump());
    if (grammar == nullptr) continue;
    for (const Json& document : group["documents"]) {
      const auto text = document["text"].get<std::string>();
      if (text.size() > 64) continue;
      INFO(text);
      std::set<std::string> pieces;
      for (std::size_t i = 0; i < text.size(); ++i) {
        for (std::size_t n = 2; n <= 7 && i + n <= text.size(); ++n)
          pieces.insert(text.substr(i, n));
      }
      const auto vocabulary = vocabulary_of(pieces);
      TokenMatcher matcher(grammar, vocabulary);
      bool goes_on = true;
      for (std::size_t i = 0; i < text.size() && goes_on; ++i) {
        const auto mask = matcher.mask();
        for (std::size_t id = 0; id + 1 < vocabulary->size(); ++id) {
          const auto token = vocabulary->bytes_of(static_cast<std::int32_t>(id));
          if (std::string_view(text).substr(i, token.size()) != token) continue;
          Matcher copy = matcher.matcher();
          REQUIRE(has_bit(mask, id) == copy.advance(token));
        }
        REQUIRE(has_bit(mask, vocabulary->size() - 1) == matcher.accepts());
        goes_on = matcher.advance(static_cast<std::int32_t>(static_cast<unsigned char>(text[i])));
      }
      CHECK((goes_on && matcher.accepts()) == document["made"].get<bool>());
    }
  }
}

TEST_CASE("masks: every document they lead to is valid") {
  const auto vocabulary = vocabulary_of(json_tokens());
  for (const char* const text : kSchemas) {
    const Json schema = Json::parse(text);
    const auto grammar = compile_schema(text);
    int ended = 0;
    for (std::uint64_t seed = 0; seed < 120; ++seed) {
      std::mt19937_64 random(seed);
      TokenMatcher matcher(grammar, vocabulary);
      const std::string made = random_text(matcher, random, 120);
      INFO("seed " << seed << ": " << made << "\nby " << text);
      if (!matcher.ended()) {
        REQUIRE(made.find("token") == std::string::npos);
        continue;
      }
      ++ended;
      Json value;
      try {
        value = Json::parse(made);
      } catch (const Json::out_of_range&) {
        continue;  // a number beyond the library's doubles
      }
      REQUIRE(is_valid(value, schema, schema));
    }
    INFO(text);
    CHECK(ended >= 5);
  }
}

TEST_CASE("properties: every order is accepted, and none twice") {
  const auto grammar = compile_schema(
      R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3},
          "ab":{"const":4}},"required":["a","ab","c"],"additionalProperties":false})");
  std::vector<std::string> members = {"\"a\":1", "\"ab\":4", "\"b\":2", "\"c\":3"};
  do {
    const std::string three = members[0] + "," + members[1] + "," + members[2];
    CHECK(takes(grammar, "{" + three + "," + members[3] + "}"));
    CHECK(takes(grammar, "{" + three + "}") == (members[3] == "\"b\":2"));
    CHECK_FALSE(takes(grammar, "{" + three + "," + members[0] + "}"));
  } while (std::ranges::next_permutation(members).found);
}

TEST_CASE("objects of 200 properties: required ones beyond the 64th count") {
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  std::string all, last;
  for (int i = 100; i < 300; ++i) {
    const std::string name = "p" + std::to_string(i);
    schema["properties"][name] = {{"type", "integer"}};
    if (i >= 290) schema["required"].push_back(name);
    const std::string member = "\"" + name + "\":" + std::to_string(i);
    if (i < 299) all += (all.empty() ? "" : ",") + member;
    last = member;
  }
  const auto grammar = compile_schema(schema.dump());
  CHECK_FALSE(takes(grammar, "{" + all + "}"));
  CHECK(takes(grammar, "{" + last + "," + all + "}"));
  CHECK_FALSE(takes(grammar, "{" + last + "," + last + "," + all + "}"));
}

TEST_CASE("depth: 64 levels and no more, and none without a way out") {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  CHECK(takes("true", nested(64)));
  CHECK_FALSE(takes("true", nested(65)));
  // A list of this kind needs two levels more.
  const auto grammar = compile_schema(
      R"({"type":"array","items":{"anyOf":[{"$ref":"#"},{"type":"array","minItems":1,
          "items":{"type":"array","maxItems":0}}]}})");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    TokenMatcher matcher(grammar, vocabulary_of({"[[", "[[["}));
    const std::string text = random_text(matcher, random, 400, 0);
    INFO("seed " << seed << ": " << text);
    REQUIRE(text.find("token") == std::string::npos);
  }
}

TEST_CASE("patterns and lengths: both hold") {
  const char* const schema = R"({"type":"string","pattern":"^a+b?$","minLength":2,"maxLength":3})";
  CHECK(takes(schema, "\"ab\""));
  CHECK(takes(schema, "\"aaa\""));
  CHECK_FALSE(takes(schema, "\"a\""));
  CHECK_FALSE(takes(schema, "\"aaab\""));
  CHECK(takes(R"({"type":"string","pattern":"^[\"\\\\\u00e9\\n]$"})", "\"\\\"\""));
  CHECK(takes(R"({"type":"string","pattern":"^[\"\\\\\u00e9\\n]$"})", "\"\xC3\xA9\""));
  CHECK(takes(R"({"type":"string","pattern":"^[^a]$"})", "\"\xF0\x9F\x98\x80\""));
  CHECK_FALSE(takes(R"({"type":"string","pattern":"^[^a]$"})", "\"a\""));
  CHECK(takes(R"({"type":"string","pattern":"^a$|b"})", "\"xbx\""));
  CHECK_FALSE(takes(R"({"type":"string","pattern":"^a$|b"})", "\"xa\""));
}

TEST_CASE("numbers: bounds of any size, of draft 4, and of constants") {
  const char* const large =
      R"({"type":"integer","minimum":18446744073709551617,"maximum":18446744073709551618})";
  CHECK(takes(large, "18446744073709551617"));
  CHECK(takes(large, "18446744073709551618"));
  CHECK_FALSE(takes(large, "18446744073709551616"));
  CHECK_FALSE(takes(large, "18446744073709551619"));
  CHECK(takes(R"({"type":"number","maximum":0,"exclusiveMaximum":true})", "-0.5"));
  CHECK_FALSE(takes(R"({"type":"number","maximum":0,"exclusiveMaximum":true})", "0"));
  CHECK(takes(R"({"type":"number","maximum":0,"exclusiveMaximum":false})", "0"));
  const char* const constants = R"({"enum":[1,2.5,0.3,1e40],"minimum":0.5,"multipleOf":0.5})";
  CHECK(takes(constants, "2.5"));
  CHECK(takes(constants, "1e40"));
  CHECK_FALSE(takes(constants, "0.3"));
  CHECK(takes(R"({"const":0.246913578,"multipleOf":0.123456789})", "0.246913578"));
  CHECK(refusal(R"({"type":"number","multipleOf":0})") == "multipleOf");
  CHECK(refusal(R"({"type":"number","multipleOf":-1})") == "multipleOf");
  CHECK(refusal(R"({"type":"number","minimum":true})") == "minimum");
  CHECK(refusal(R"({"type":"number","minimum":1,"maximum":0.5})") == "cannot be met by any text");
  CHECK(refusal(R"({"type":"integer","multipleOf":7,"minimum":1,"maximum":6})") ==
        "cannot be met by any text");
}

TEST_CASE("number bombs: bounds and multiples are refused by name, in little time") {
  const auto begin = std::chrono::steady_clock::now();
  std::string many = R"({"properties":{"x":{})";
  for (int i = 0; i < 2'000; ++i) {
    many += ",\"" + std::to_string(i) + R"(":{"type":"number","maximum":1e308,"minimum":)" +
            std::to_string(i) + "e290}";
  }
  CHECK(refusal(many + "}}") == "takes too much work to compile");
  std::string multiples = R"({"properties":{"x":{})";
  for (int i = 2'000; i < 4'000; ++i) {
    multiples += ",\"" + std::to_string(i) + R"(":{"type":"number","multipleOf":)" +
                 std::to_string(i) + R"(,"maximum":1e9})";
  }
  CHECK(refusal(multiples + "}}") != "taken");
  CHECK(refusal(R"({"type":"number","minimum":0.)" + std::string(100'000, '0') + "1}") ==
        "minimum");
  CHECK(refusal(R"({"type":"integer","multipleOf":99999999999999999999})") == "multipleOf");
  // Some 0.3 s; sanitizers take longer.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}

TEST_CASE("relaxed schemas: what is not served is left out and named") {
  std::vector<RelaxedKeyword> relaxed;
  SchemaOptions options;
  options.relaxed = true;
  const auto grammar = compile_schema(
      R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true},
          "b":{"type":"string","format":"regex"}},"if":{},"then":{"minProperties":9},
          "additionalProperties":false})",
      options, &relaxed);
  CHECK(takes(grammar, "{\"a\": [1, 1], \"b\": \"\"}"));
  CHECK_FALSE(takes(grammar, "{\"c\": 1}"));
  REQUIRE(relaxed.size() == 4);
  CHECK(relaxed[0].path == "#");
  CHECK(relaxed[0].keyword == "if");
  CHECK(relaxed[1].keyword == "then");
  CHECK(relaxed[2].path == "#/properties/a");
  CHECK(relaxed[3].keyword == "format regex");
}

TEST_CASE("relaxed schemas: a pattern of keys that is left out takes additionalProperties along") {
  std::vector<RelaxedKeyword> relaxed;
  SchemaOptions options;
  options.relaxed = true;
  const auto grammar = compile_schema(
      R"({"type":"object","patternProperties":{"^(a)\\1$":{"type":"integer"},"^b":{"type":"null"}},
          "additionalProperties":false,"minProperties":1})",
      options, &relaxed);
  REQUIRE(relaxed.size() == 1);
  CHECK(relaxed[0].keyword == R"(pattern ^(a)\1$)");
  CHECK(takes(grammar, R"({"aa": 1})"));
  CHECK(takes(grammar, R"({"b": null})"));
  CHECK_FALSE(takes(grammar, R"({"b": 1})"));
}

TEST_CASE("relaxed schemas: each place of a keyword is named, and a list that is cut says so") {
  using Names = std::vector<std::string>;
  const char* const formats =
      R"({"properties":{"a":{"type":"string","format":"regex"},
          "b":{"type":"string","format":"regex"},"c":{"items":{"format":"regex"}}}})";
  const Names places = {"#/properties/a format regex", "#/properties/b format regex",
                        "#/properties/c/items format regex"};
  CHECK(named(formats, true) == places);
  CHECK(named(formats, false) == places);
  CHECK(named(R"({"properties":{"a":{"pattern":"(a)\\1"},"b":{"pattern":"(a)\\1"}}})", false) ==
        Names{R"(#/properties/a pattern (a)\1)", R"(#/properties/b pattern (a)\1)"});
  CHECK(named(R"({"properties":{"a":{"patternProperties":{"(a)\\1":true}},
                  "b":{"patternProperties":{"(a)\\1":false}}}})",
              false) ==
        Names{R"(#/properties/a pattern (a)\1)", R"(#/properties/b pattern (a)\1)"});
  const auto many = [](int count) {
    std::string schema = R"({"properties":{"x":{})";
    for (int i = 0; i < count; ++i) {
      schema += ",\"p" + std::to_string(i) + R"(":{"uniqueItems":true})";
    }
    return named(schema + "}}", false);
  };
  CHECK(many(64).size() == 64);
  CHECK(many(64).back() != "...");
  for (const int count : {65, 100}) {
    CHECK(many(count).size() == 65);
    CHECK(many(count).back() == "...");
  }
}

TEST_CASE("annotations: strict schemas may have them, and $id is where references begin") {
  std::vector<RelaxedKeyword> relaxed;
  const auto grammar = compile_schema(
      R"({"$id":"https://a.b/dir/root.json","type":"object","x-order":["a"],"example":{"$id":1},
          "readonly":true,"properties":{"a":{"$ref":"other.json#/$defs/n","nonsense":1},
          "b":{"$ref":"#/$defs/n"},"c":{"$ref":"#here"},"d":{"$ref":"/dir/../dir/other.json"}},
          "additionalProperties":false,"$defs":{"n":{"type":"null"},"o":{"$id":"other.json",
          "$ref":"#/$defs/n","$defs":{"n":{"type":"boolean"}}},"h":{"$anchor":"here","const":3}}})",
      {}, &relaxed);
  CHECK(relaxed.empty());
  CHECK(takes(grammar, R"({"a": true, "b": null, "c": 3, "d": false})"));
  CHECK_FALSE(takes(grammar, R"({"a": null})"));
  CHECK_FALSE(takes(grammar, R"({"b": true})"));
  CHECK_FALSE(takes(grammar, R"({"d": null})"));
  CHECK(refusal(R"({"$id":"https://a.b/c","$ref":"https://a.b/d"})") == "$ref https://a.b/d");
  // Addresses in constants, or under keywords that are none, name nothing.
  CHECK(refusal(R"({"$ref":"u:x","enum":[{"$id":"u:x"}],"more":{"$id":"u:x"}})") == "$ref u:x");
}

TEST_CASE("formats: a known one that is not enforced is named under strict, others say nothing") {
  std::vector<RelaxedKeyword> relaxed;
  const auto grammar = compile_schema(
      R"({"properties":{"a":{"type":"string","format":"regex"},"b":{"type":"integer",
          "format":"int32"},"c":{"type":"string","format":"phone"}}})",
      {}, &relaxed);
  CHECK(takes(grammar, R"({"a": "(", "b": 1, "c": "x"})"));
  REQUIRE(relaxed.size() == 1);
  CHECK(relaxed[0].path == "#/properties/a");
  CHECK(relaxed[0].keyword == "format regex");
}

TEST_CASE("keywords that are not served: values that say nothing are taken under strict") {
  for (const char* const schema :
       {R"({"unevaluatedProperties":true})", R"({"unevaluatedItems":true})",
        R"({"unevaluatedItems":{}})", R"({"dependentSchemas":{}})", R"({"$dynamicAnchor":"x"})",
        R"({"contains":{"const":1},"minContains":0})", R"({"uniqueItems":false})",
        R"({"if":{"const":[1]}})", R"({"then":false})", R"({"else":{"type":"null"}})",
        R"({"then":false,"else":false})", R"({"dependentSchemas":{"a":true,"b":{}}})",
        R"({"$recursiveAnchor":false})", R"({"not":{"if":true,"uniqueItems":false,"type":"null"}})",
        R"({"not":{"unevaluatedItems":true,"type":"null"}})"}) {
    INFO(schema);
    CHECK(named(schema, true).empty());
    CHECK(named(schema, false).empty());
    CHECK(takes(schema, "[1]"));
  }
  for (const auto& [schema, keyword] :
       {std::pair(R"({"unevaluatedProperties":false})", "unevaluatedProperties"),
        std::pair(R"({"unevaluatedItems":{"type":"null"}})", "unevaluatedItems"),
        std::pair(R"({"if":{},"else":false})", "if"),
        std::pair(R"({"if":{},"then":{"const":1}})", "if"),
        std::pair(R"({"uniqueItems":true})", "uniqueItems"),
        std::pair(R"({"uniqueItems":1})", "uniqueItems"),
        std::pair(R"({"$recursiveAnchor":true})", "$recursiveAnchor"),
        std::pair(R"({"dependentSchemas":{"a":false}})", "dependentSchemas"),
        std::pair(R"({"contains":true})", "contains"),
        std::pair(R"({"contains":true,"minContains":1})", "contains"),
        std::pair(R"({"contains":true,"minContains":0,"maxContains":1})", "contains"),
        std::pair(R"({"$dynamicAnchor":"x","items":{"$dynamicRef":"#x"}})", "$dynamicAnchor")}) {
    INFO(schema);
    CHECK(refusal(schema) == keyword);
  }
}

TEST_CASE("references: their neighbours count from draft 2019-09 on") {
  const std::string rest =
      R"("definitions":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/definitions/a",
          "maxLength":1,"$id":"u:x","uniqueItems":true}},"type":"object"})";
  for (const char* const draft : {"draft-04", "draft-06", "draft-07"}) {
    const std::string schema =
        R"({"$schema":"http://json-schema.org/)" + std::string(draft) + "/schema#\"," + rest;
    CHECK(takes(schema.c_str(), R"({"x": "abc"})"));
    CHECK_FALSE(takes(schema.c_str(), R"({"x": 1})"));
  }
  CHECK(refusal("{" + rest) == "uniqueItems");
}

TEST_CASE("constants: 2.0 is 2, and members come in any order") {
  CHECK(takes(R"({"enum":[2.0]})", "2"));
  CHECK(takes(R"({"enum":[2.0]})", "2.0"));
  CHECK(takes(R"({"type":"integer","const":1e2})", "100"));
  CHECK(takes(R"({"enum":[[2.0]]})", "[2]"));
  CHECK(takes(R"({"enum":[1,2],"const":2.0})", "2"));
  CHECK(takes(R"({"enum":[{"a":1,"b":2}],"const":{"b":2.0,"a":1}})", R"({"b": 2, "a": 1})"));
}

TEST_CASE("constants: not and oneOf that depend on keywords not served are left out and named") {
  using Names = std::vector<std::string>;
  SchemaOptions options;
  options.relaxed = true;
  const auto makes = [&](const std::string& schema, const std::string& text) {
    return takes(compile_schema(schema, options), text);
  };
  const char* const unique =
      R"({"properties":{"a":{"not":{"uniqueItems":true}}},"enum":[{"a":[1,1]},{"a":[1,2]}]})";
  CHECK(makes(unique, R"({"a": [1, 1]})"));
  CHECK(named(unique, false) == Names{"#/properties/a/not uniqueItems", "#/properties/a not"});
  CHECK(named(unique, true) == Names{"uniqueItems"});
  const char* const one_of =
      R"({"properties":{"a":{"oneOf":[{"uniqueItems":true},{"items":{"const":1}}]}},
          "enum":[{"a":[1,1]},{"a":[2,2]}]})";
  CHECK(makes(one_of, R"({"a": [1, 1]})"));
  CHECK(named(one_of, false) == Names{"#/properties/a/oneOf/0 uniqueItems",
                                      "#/properties/a oneOf whose branches may both hold"});
  // Again where a format, a pattern or a reference of it is known already.
  for (const char* const left_out :
       {R"("format":"regex")", R"("pattern":"(b)\\1")", R"("$ref":"u:x")"}) {
    const std::string schema = std::string(R"({"properties":{"a":{"not":{"anyOf":[{)") + left_out +
                               R"(,"minLength":1},{"type":"null"}]}}},
        "enum":[{"a":"("},{"a":"(("},{"a":null},{"a":""}]})";
    INFO(schema);
    CHECK(makes(schema, R"({"a": "("})"));
    CHECK(makes(schema, R"({"a": "(("})"));
    CHECK(makes(schema, R"({"a": ""})"));
    // The keyword is named all the same.
    CHECK_FALSE(makes(schema, R"({"a": null})"));
  }
  // Two branches that are served and both hold are enough.
  CHECK_FALSE(makes(R"({"properties":{"a":{"oneOf":[{"type":"integer"},{"maximum":5},
                        {"uniqueItems":true}]}},"enum":[{"a":1},{"a":"x"}]})",
                    R"({"a": 1})"));
}

TEST_CASE("patternProperties: values follow the patterns that keys match") {
  const auto grammar = compile_schema(
      R"({"type":"object","properties":{"ab":{"maximum":5,"type":"integer"}},"patternProperties":{
          "^a":{"type":"integer"},"z$":{"enum":[1,"x"]}},"additionalProperties":{"type":"null"}})");
  CHECK(takes(grammar, R"({"ab": 5, "a": 9, "z": "x", "az": 1, "q": null})"));
  CHECK_FALSE(takes(grammar, R"({"ab": 6})"));
  CHECK_FALSE(takes(grammar, R"({"a": null})"));
  CHECK_FALSE(takes(grammar, R"({"az": "x"})"));
  CHECK_FALSE(takes(grammar, R"({"az": 2})"));
  CHECK_FALSE(takes(grammar, R"({"z": null})"));
  CHECK_FALSE(takes(grammar, R"({"q": 1})"));
  const char* const closed =
      R"({"type":"object","patternProperties":{"^x-":true},"additionalProperties":false,
          "required":["x-a"]})";
  CHECK(takes(closed, R"({"x-b": 1, "x-a": [], "x-\"": 2})"));
  CHECK_FALSE(takes(closed, R"({"x-b": 1})"));
  CHECK_FALSE(takes(closed, R"({"x-a": 1, "a": 1})"));
}

TEST_CASE("propertyNames: keys are held to a schema of their own") {
  const char* const schema =
      R"({"type":"object","propertyNames":{"anyOf":[{"pattern":"^[a-c]+$","maxLength":3},
          {"enum":["long name"]}]},"properties":{"d":true,"a":{"type":"null"}}})";
  CHECK(takes(schema, R"({"abc": 1, "long name": 2, "a": null})"));
  CHECK_FALSE(takes(schema, R"({"abca": 1})"));
  CHECK_FALSE(takes(schema, R"({"d": 1})"));
  CHECK_FALSE(takes(schema, R"({"a": 1})"));
  CHECK(takes(R"({"propertyNames":false})", "{}"));
  CHECK_FALSE(takes(R"({"propertyNames":false})", R"({"a": 1})"));
  CHECK(takes(R"({"propertyNames":{"type":"string"}})", R"({"a": 1})"));
}

TEST_CASE("additionalProperties: each schema of allOf sees its own properties") {
  const char* const schema =
      R"({"allOf":[{"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":
          ["integer","null"]}},{"properties":{"b":{"type":"null"}},"additionalProperties":
          {"type":"integer"}}],"type":"object"})";
  CHECK(takes(schema, R"({"a": 1, "b": null, "c": 2})"));
  CHECK_FALSE(takes(schema, R"({"c": null})"));
  CHECK_FALSE(takes(schema, R"({"b": 1})"));
}

TEST_CASE("counts of members: bounds hold with required and dependent ones") {
  const auto grammar = compile_schema(
      R"({"type":"object","properties":{"a":true,"b":true,"c":true},"required":["a"],
          "minProperties":2,"maxProperties":3})");
  CHECK_FALSE(takes(grammar, R"({"a": 1})"));
  CHECK(takes(grammar, R"({"a": 1, "x": 1})"));
  CHECK(takes(grammar, R"({"x": 1, "y": 1, "a": 1})"));
  CHECK_FALSE(takes(grammar, R"({"x": 1, "y": 1, "z": 1})"));
  CHECK_FALSE(takes(grammar, R"({"a": 1, "b": 1, "c": 1, "x": 1})"));
  const char* const dependent =
      R"({"properties":{"a":true,"b":true,"c":true,"d":true},"dependencies":{"a":["b"],"b":["c"]},
          "additionalProperties":false,"maxProperties":3,"type":"object"})";
  CHECK(takes(dependent, R"({"c": 1, "a": 1, "b": 1})"));
  CHECK(takes(dependent, R"({"d": 1})"));
  CHECK(takes(dependent, R"({"d": 1, "b": 1, "c": 1})"));
  CHECK_FALSE(takes(dependent, R"({"a": 1, "b": 1})"));
  // Beside d there is no room for a and what it demands.
  CHECK_FALSE(Matcher(compile_schema(dependent)).advance(R"({"d": 1, "a")"));
  CHECK_FALSE(Matcher(compile_schema(dependent)).advance(R"({"a": 1, "d")"));
  CHECK(refusal(R"({"type":"object","properties":{"a":true},"additionalProperties":false,
          "minProperties":2})") == "cannot be met by any text");
  CHECK(refusal(R"({"type":"object","required":["a","b"],"maxProperties":1})") ==
        "cannot be met by any text");
  CHECK(refusal(R"({"dependencies":{"a":{"minProperties":2}}})") == "dependencies");
}

TEST_CASE("minProperties: free keys that may be equal meet it, or it is named under strict") {
  using Names = std::vector<std::string>;
  // A few keys are members of their own.
  const char* const colors =
      R"({"type":"object","propertyNames":{"enum":["red","green","blue"]},"minProperties":3})";
  CHECK(named(colors, true).empty());
  CHECK(takes(colors, R"({"red": 1, "blue": 2, "green": 3})"));
  CHECK_FALSE(takes(colors, R"({"red": 1, "red": 2, "red": 3})"));
  CHECK_FALSE(takes(colors, R"({"red": 1, "blue": 2, "red": 3})"));
  CHECK_FALSE(takes(colors, R"({"red": 1, "blue": 2})"));
  CHECK(refusal(R"({"type":"object","propertyNames":{"enum":["a"]},"minProperties":2})") ==
        "cannot be met by any text");
  const char* const patterns =
      R"({"type":"object","patternProperties":{"^a$":{"type":"null"},"^b$":{"type":"integer"}},
          "additionalProperties":false,"minProperties":2})";
  CHECK(named(patterns, true).empty());
  CHECK(takes(patterns, R"({"b": 1, "a": null})"));
  CHECK_FALSE(takes(patterns, R"({"a": null, "a": null})"));
  CHECK_FALSE(takes(patterns, R"({"a": null, "b": null})"));
  const char* const with_named =
      R"({"type":"object","properties":{"a":true},"patternProperties":{"^[bc]$":{"type":"null"}},
          "additionalProperties":false,"minProperties":3})";
  CHECK(named(with_named, true).empty());
  CHECK(takes(with_named, R"({"c": null, "b": null, "a": null})"));
  CHECK_FALSE(takes(with_named, R"({"a": 1, "b": null, "b": null})"));
  CHECK_FALSE(takes(with_named, R"({"c": null, "b": null, "c": null})"));
  CHECK(takes(R"({"type":"object","propertyNames":{"enum":["\"","\n"]},"minProperties":2})",
              R"({"\n": 1, "\"": 2})"));
  // Keys without an end, and many.
  std::string many = R"({"type":"object","minProperties":2,"propertyNames":{"enum":["x")";
  for (int i = 0; i < 16; ++i) many += ",\"x" + std::to_string(i) + "\"";
  for (const bool is_strict : {true, false}) {
    CHECK(named(R"({"properties":{"o":{"type":"object","minProperties":2}}})", is_strict) ==
          Names{"#/properties/o minProperties"});
    CHECK(named(R"({"type":"object","patternProperties":{"^a$":true,"^b":true},
                    "additionalProperties":false,"minProperties":2})",
                is_strict) == Names{"# minProperties"});
    CHECK(named(many + "]}}", is_strict) == Names{"# minProperties"});
    // One free key is all that these need.
    CHECK(named(R"({"type":"object","minProperties":1})", is_strict).empty());
    CHECK(named(R"({"type":"object","required":["a"],"dependentRequired":{"a":["b"]},
                    "minProperties":3})",
                is_strict)
              .empty());
    CHECK(named(R"({"type":"object","properties":{"a":true,"b":true},"minProperties":2,
                    "additionalProperties":false})",
                is_strict)
              .empty());
  }
}

TEST_CASE("not: enums, constants, types, and what is made of them") {
  const char* const texts = R"({"type":"string","not":{"enum":["a","b\"",1]}})";
  CHECK(takes(texts, R"("ab")"));
  CHECK(takes(texts, R"("")"));
  CHECK_FALSE(takes(texts, R"("a")"));
  CHECK_FALSE(takes(texts, R"("b\"")"));
  CHECK_FALSE(takes(texts, R"("\u0061")"));
  const char* const numbers = R"({"type":["number","null"],"not":{"enum":[0,1.50,null]}})";
  for (const char* const text : {"10", "0.1", "1.5001", "-1.5", "2", "1"}) {
    CHECK(takes(numbers, text));
  }
  for (const char* const text : {"0", "0.0", "-0.0", "1.5", "1.50", "1.500", "15e-1", "null"}) {
    CHECK_FALSE(takes(numbers, text));
  }
  CHECK_FALSE(takes(R"({"type":"integer","not":{"const":7}})", "7"));
  CHECK(takes(R"({"type":"integer","not":{"const":7}})", "77"));
  CHECK_FALSE(takes(R"({"not":{"type":["object","null"]}})", "null"));
  CHECK_FALSE(takes(R"({"not":{"type":"integer"}})", "1.0"));
  CHECK(takes(R"({"not":{"type":"integer"}})", "1.5"));
  CHECK_FALSE(takes(R"({"type":"object","not":{"required":["a","b"]}})", R"({"b": 1, "a": 1})"));
  CHECK(takes(R"({"type":"object","not":{"required":["a","b"]}})", R"({"b": 1})"));
  CHECK_FALSE(takes(R"({"type":"string","not":{"pattern":"^a"}})", R"("ab")"));
  CHECK(takes(R"({"type":"string","not":{"pattern":"^a"}})", R"("ba")"));
  const char* const nested =
      R"({"not":{"anyOf":[{"type":"string","maxLength":1},{"not":{"type":"string"}}]}})";
  CHECK(takes(nested, R"("ab")"));
  CHECK_FALSE(takes(nested, R"("a")"));
  CHECK_FALSE(takes(nested, "1"));
  CHECK_FALSE(takes(R"({"type":"object","not":{"properties":{"a":{"const":1}},"required":["a"]}})",
                    R"({"a": 1})"));
  CHECK_FALSE(takes(R"({"type":"array","not":{"const":[]}})", "[]"));
  CHECK(refusal(R"({"not":{"const":[1]}})") == "not");
  CHECK(refusal(R"({"not":{"items":{"type":"null"}}})") == "not");
}

TEST_CASE("oneOf: branches that exclude one another, or of which the others can be left out") {
  const auto is_taken = [](const std::string& schema) { return refusal(schema) == "taken"; };
  CHECK(is_taken(R"({"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":4}]})"));
  CHECK(
      is_taken(R"({"oneOf":[{"type":"string","pattern":"^a"},{"type":"string","pattern":"^b"}]})"));
  CHECK(is_taken(R"({"oneOf":[{"enum":["a","b"]},{"type":"string","minLength":2}]})"));
  const char* const closed =
      R"({"oneOf":[{"type":"object","properties":{"a":{"items":{}}},"required":["a"],
          "additionalProperties":false},{"type":"object","properties":{"b":{"items":{}}},
          "required":["b"],"additionalProperties":false}]})";
  CHECK(takes(closed, R"({"a": 1})"));
  CHECK_FALSE(takes(closed, R"({"a": 1, "b": 1})"));
  const char* const one_of_two =
      R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]})";
  CHECK(takes(one_of_two, R"({"b": 1, "c": 1})"));
  CHECK_FALSE(takes(one_of_two, R"({"b": 1, "a": 1})"));
  CHECK_FALSE(takes(one_of_two, "{}"));
  CHECK(takes(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "1.5"));
  CHECK_FALSE(takes(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "1"));
  // A format may take texts that its automaton does not.
  CHECK(refusal(R"({"oneOf":[{"const":"\"x\"@a.b"},{"type":"string","format":"email"}]})") ==
        "oneOf whose branches may both hold");
  CHECK(refusal(R"({"oneOf":[{"format":"email"},{"minLength":3,"format":"ipv4"}]})") ==
        "oneOf whose branches may both hold");
}

TEST_CASE("tuples: items may be a list, as before draft 2020-12") {
  const char* const schema =
      R"({"type":"array","items":[{"type":"integer"},{"type":"null"}],"additionalItems":false})";
  CHECK(takes(schema, "[1, null]"));
  CHECK(takes(schema, "[1]"));
  CHECK_FALSE(takes(schema, "[null]"));
  CHECK_FALSE(takes(schema, "[1, null, 1]"));
  CHECK(takes(R"({"items":[{"type":"integer"}],"additionalItems":{"type":"null"}})", "[1, null]"));
  CHECK_FALSE(
      takes(R"({"items":[{"type":"integer"}],"additionalItems":{"type":"null"}})", "[1, 1]"));
  CHECK(takes(R"({"items":{"type":"integer"},"additionalItems":false})", "[1, 1]"));
}

TEST_CASE("schemas that zod and pydantic wrote are taken under strict") {
  std::ifstream in(LINTEL_TEST_DATA "/golden/chat/schema/libraries.json");
  const Json cases = Json::parse(in);
  CHECK(cases.size() > 150);
  for (const Json& one : cases) {
    const std::string schema = one["schema"].dump();
    INFO(one["from"] << ", " << one["name"] << ": " << schema);
    CHECK(refusal(schema) == "taken");
    CHECK(takes(schema.c_str(), one["text"].get<std::string>().c_str()));
  }
}

// Schemas as z.toJSONSchema() of zod 4 and model_json_schema() of pydantic 2 write them.
TEST_CASE("schemas of zod and pydantic are taken under strict") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":
          {"type":"number"}})",
       R"({"a": 1.5})"},
      {R"({"type":"object","propertyNames":{"type":"string","enum":["a","b"]},
          "additionalProperties":{"type":"string"},"required":["a","b"]})",
       R"({"b": "x", "a": "y"})"},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"number"}]})", R"(["a", 1])"},
      {R"({"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991})", "12"},
      {R"({"type":"string","format":"date-time","pattern":"^\\d{4}-.*Z$"})",
       R"("2020-01-01T00:00:00Z")"},
      {R"({"not":{}})", nullptr},
      {R"({"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":
          {"a":{"default":"x","type":"string"},"b":{"anyOf":[{"type":"string"},{"type":"null"}]},
          "c":{"allOf":[{"type":"object","properties":{"p":{"type":"string"}},"required":["p"]},
          {"type":"object","properties":{"q":{"type":"number"}},"required":["q"]}]}},
          "required":["a","b"],"additionalProperties":false})",
       R"({"c": {"p": "", "q": 1}, "a": "", "b": null})"},
      {R"({"oneOf":[{"type":"object","properties":{"t":{"type":"string","const":"a"}},
          "required":["t"],"additionalProperties":false},{"type":"object","properties":{"t":
          {"type":"string","const":"b"}},"required":["t"],"additionalProperties":false}]})",
       R"({"t": "b"})"},
      {R"({"type":"string","contentEncoding":"base64","contentMediaType":"image/png"})", R"("")"},
      {R"({"id":"User","title":"User","type":"object","properties":{"n":{"type":"string"}},
          "required":["n"],"additionalProperties":{}})",
       R"({"n": "x", "m": 1})"},
      {R"({"$defs":{"__schema0":{"type":"object","properties":{"c":{"type":"array","items":
          {"$ref":"#/$defs/__schema0"}}},"required":["c"],"additionalProperties":false}},
          "$ref":"#/$defs/__schema0"})",
       R"({"c": [{"c": []}]})"},
      {R"({"type":"string","format":"binary"})", R"("x")"},
      {R"({"$defs":{"Pet":{"enum":["cat","dog"],"title":"Pet","type":"string"}},"properties":{
          "pet":{"$ref":"#/$defs/Pet","default":"cat","description":"d"},"tags":{"default":null,
          "anyOf":[{"items":{"type":"string"},"type":"array"},{"type":"null"}],"title":"Tags"}},
          "title":"M","type":"object"})",
       R"({"tags": ["a"], "pet": "dog"})"},
      {R"({"discriminator":{"mapping":{"c":"#/$defs/C","d":"#/$defs/D"},"propertyName":"k"},
          "oneOf":[{"$ref":"#/$defs/C"},{"$ref":"#/$defs/D"}],"$defs":{"C":{"type":"object",
          "properties":{"k":{"const":"c","type":"string"}},"required":["k"]},"D":{"type":"object",
          "properties":{"k":{"const":"d","type":"string"}},"required":["k"]}}})",
       R"({"k": "c"})"},
      {R"({"maxItems":2,"minItems":2,"prefixItems":[{"type":"integer"},{"type":"string"}],
          "type":"array"})",
       R"([1, "a"])"},
      {R"({"additionalProperties":{"type":"integer"},"type":"object","minProperties":1})",
       R"({"a": 1})"},
      {R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"integer"}}})", R"({"a": 1})"},
      {R"({"format":"path","type":"string","writeOnly":true})", R"("/tmp")"},
      {R"({"anyOf":[{"type":"string","format":"uuid4"},{"type":"string","format":"uuid"}]})",
       R"("x")"},
      {R"({"type":"string","format":"json-string"})", R"("{}")"},
      {R"({"additionalProperties":true,"type":"object"})", "{}"},
  };
  for (const auto& [schema, text] : cases) {
    INFO(schema);
    if (text == nullptr) {
      CHECK(refusal(schema) == "cannot be met by any text");
    } else {
      CHECK(refusal(schema) == "taken");
      CHECK(takes(schema, text));
    }
  }
}

TEST_CASE("arguments in tags: counts of members and dependent ones hold there, too") {
  const ToolSpec tool{
      .name = "f",
      .parameters = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},
          "c":{"type":"integer"}},"dependentRequired":{"a":["b"]},"minProperties":1,
          "maxProperties":2})"};
  const auto grammar =
      compile_tools(std::vector{tool},
                    {.dialect = ToolDialect::kXml, .mode = ToolGrammarOptions::Mode::kRequired});
  const auto call = [](const std::string& names) {
    std::string text = "<tool_call>\n<function=f>\n";
    for (const char name : names) {
      text.append("<parameter=").append(1, name).append(">\n1\n</parameter>\n");
    }
    return text + "</function>\n</tool_call>";
  };
  CHECK(takes(grammar, call("ba")));
  CHECK(takes(grammar, call("ab")));
  CHECK(takes(grammar, call("c")));
  CHECK_FALSE(takes(grammar, call("a")));
  CHECK_FALSE(takes(grammar, call("")));
  CHECK_FALSE(takes(grammar, call("abc")));
  CHECK_FALSE(takes(grammar, call("ca")));
}

TEST_CASE("schema bombs: refused by name, in little time") {
  const auto begin = std::chrono::steady_clock::now();
  const auto repeated = [](const std::string& piece, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += piece;
    return text;
  };
  std::string many = "{\"enum\":[0";
  for (int i = 1; i < 1'000'000; ++i) many += "," + std::to_string(i);
  CHECK(refusal(many + "]}").find("at most 262144") != std::string::npos);
  CHECK(refusal(repeated("{\"items\":", 200) + "true" + repeated("}", 200)) ==
        "is nested more than 128 deep");
  CHECK(refusal(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#"}}})") ==
        "$ref loop");
  CHECK(refusal(R"({"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"oneOf":[{"$ref":"#"}]}}})") ==
        "$ref loop");
  for (const char* const pattern :
       {"(?:(?:a{1,10000}){1,10000}){1,10000}", "(?:a|b)*a(?:a|b){20}", "[^a]{1,9999}",
        "(((((((a?){100}){100}){100}){100}){100}){100})", "a{10001}", "(?:){9999}"}) {
    const std::string reason =
        refusal(std::string(R"({"type":"string","pattern":")") + pattern + "\"}");
    CHECK((reason == std::string("pattern ") + pattern || std::string(pattern) == "(?:){9999}"));
  }
  std::string choices = R"({"allOf":[)";
  for (int i = 0; i < 60; ++i) {
    choices += (i > 0 ? "," : "") + std::string(R"({"anyOf":[{"minLength":)") + std::to_string(i) +
               R"(},{"maxLength":)" + std::to_string(1000 + i) + "}]}";
  }
  CHECK(refusal(choices + "]}") == "takes too much work to compile");
  std::string properties = R"({"properties":{"x":{})";
  for (int i = 0; i < 12'000; ++i)
    properties += ",\"" + std::to_string(i) + "\":{\"type\":\"null\"}";
  CHECK(refusal(properties.substr(0, 200'000) == properties ? properties + "}}" : "[") != "taken");
  std::string patterns = R"({"properties":{"x":{})";
  for (int i = 0; i < 4000; ++i) {
    patterns += ",\"" + std::to_string(i) + R"(":{"type":"string","pattern":"(a|b)*a(a|b){7}c)" +
                std::to_string(i) + "\"}";
  }
  CHECK(refusal(patterns + "}}") == "takes too much work to compile");
  CHECK(refusal(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})") ==
        "cannot be met by any text");
  CHECK(refusal(R"({"type":"string","pattern":"^a$","allOf":[{"pattern":"^b$"}],"minLength":1})") ==
        "cannot be met by any text");
  CHECK(refusal(R"({"type":"object","properties":{"a":false},"required":["a"]})") ==
        "cannot be met by any text");
  CHECK(refusal("{").find("is not JSON") == 0);
  // Some 0.3 s; sanitizers take longer.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}

}  // namespace
}  // namespace lintel::grammar
