// SPDX-License-Identifier: Apache-2.0
// JSON Schema: the vectors of tests/golden/chat, documents made by masks, bounds.
#include "server/grammar/schema.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/grammar/grammar_support.h"

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
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name)) {
        if (!is_valid(member, properties[name], root)) return false;
      } else if (schema.contains("additionalProperties") &&
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
};

TEST_CASE("golden schemas: documents are accepted and refused byte by byte") {
  const Json cases = read_cases();
  REQUIRE(cases["made"].size() >= 97);
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
      R"({"type":"object","properties":{"a":{"type":"number","multipleOf":0.123457},
          "b":{"type":"string","format":"iri"}},"contains":{},"additionalProperties":false})",
      options, &relaxed);
  CHECK(takes(grammar, "{\"a\": 0.1, \"b\": \"\"}"));
  CHECK_FALSE(takes(grammar, "{\"c\": 1}"));
  REQUIRE(relaxed.size() == 3);
  CHECK(relaxed[0].path == "#");
  CHECK(relaxed[0].keyword == "contains");
  CHECK(relaxed[1].path == "#/properties/a");
  CHECK(relaxed[1].keyword == "multipleOf");
  CHECK(relaxed[2].keyword == "format iri");
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
  CHECK(refusal(R"({"type":"object","properties":{"a":false},"required":["a"]})") ==
        "cannot be met by any text");
  CHECK(refusal("{").find("is not JSON") == 0);
  // Some 0.3 s; sanitizers take longer.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}

}  // namespace
}  // namespace lintel::grammar
