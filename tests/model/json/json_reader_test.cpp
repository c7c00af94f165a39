// SPDX-License-Identifier: Apache-2.0
// JSON from outside: what is read, what is refused, and what either costs.
#include "model/core/json_reader.h"

#include <limits>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Kind = JsonFailure::Kind;
using nlohmann::json;

// Notes what is charged; ends the reading after some polls.
struct NotedBudget final : JsonBudget {
  bool charge(std::int64_t bytes) override {
    if (bytes > 0 && held + bytes > room) return false;
    held += bytes;
    most = std::max(most, held);
    return true;
  }
  bool cancelled() const override { return ++polls > polls_left; }

  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  std::int64_t held = 0, most = 0;
  int polls_left = std::numeric_limits<int>::max();
  mutable int polls = 0;
};

Kind refusal(std::string_view text, const JsonBounds& bounds = {}) {
  JsonFailure failure;
  CHECK_FALSE(read_json_tree(text, bounds, failure));
  CHECK_FALSE(failure.what.empty());
  CHECK(failure.what.size() < 300);
  return failure.kind;
}

std::string list_of(const std::string& value, std::size_t bytes) {
  std::string text = "[" + value;
  while (text.size() + value.size() + 2 < bytes) text += "," + value;
  return text + "]";
}

// {"0":0,"1":0,...}
std::string object_of_names(std::size_t bytes) {
  std::string text = "{\"0\":0";
  for (int i = 1; text.size() + 32 < bytes; ++i) text += ",\"" + std::to_string(i) + "\":0";
  return text + "}";
}

// Five times what the slowest text takes here, and more where sanitizers slow everything down.
constexpr double kMostSeconds = kSanitized ? 20 : 2;

}  // namespace

TEST_CASE("JSON within bounds is read as any other reader reads it") {
  const auto seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string starts[] = {
      R"({"a":[1,-2,3.5e2,true,false,null,"\ud83d\ude00\u0000\n"],"b":{"c":{},"d":[[],[{}]]},"":""})",
      R"([18446744073709551615,-9223372036854775808,1e308,0.1,"x",{"a":1,"b":2,"a":3}])",
      "  \"text\" ", "17", "null"};
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = starts[static_cast<std::size_t>(i) % std::size(starts)];
    for (auto edits = random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      text[at] = R"({}[]",:0-e\u )"[random() % 13];
    }
    INFO(text);
    const json expected = json::parse(text, nullptr, /*allow_exceptions=*/false);
    JsonFailure failure;
    const auto tree = read_json_tree(text, {}, failure);
    REQUIRE(tree.has_value() == !expected.is_discarded());
    if (tree) REQUIRE(*tree == expected);
    REQUIRE((failure.kind == Kind::kNotJson) == expected.is_discarded());
    read += tree ? 1 : 0;
  }
  CHECK(read > 5000);
  CHECK(read < 20'000);
}

TEST_CASE("JSON that is none, too deep or has a name twice is refused with its reason") {
  CHECK(refusal("") == Kind::kNotJson);
  CHECK(refusal("[1,]") == Kind::kNotJson);
  CHECK(refusal("[1] 2") == Kind::kNotJson);
  CHECK(refusal("\"\xff\"") == Kind::kNotJson);
  CHECK(refusal("[1e999]") == Kind::kNotJson);
  const std::string open(128, '['), closed(128, ']');
  JsonFailure failure;
  CHECK(read_json_tree(open + closed, {}, failure));
  CHECK(refusal("[" + open + closed + "]") == Kind::kTooDeep);
  CHECK(refusal("[[]]", {.max_depth = 1}) == Kind::kTooDeep);
  CHECK(refusal(R"({"a":{"b":1,"b":2}})", {.takes_repeated_names = false}) == Kind::kRepeatedName);
  CHECK(read_json_tree(R"([{"b":1},{"b":2}])", {.takes_repeated_names = false}, failure));
  read_json_tree("[1e999]", {}, failure);
  CHECK_THAT(failure.what, Contains("out of range") && Contains("1e999"));
  read_json_tree("[tru]", {}, failure);
  CHECK_THAT(failure.what, Contains("line 1") && !Contains("exception"));
}

TEST_CASE("a tree is refused while it grows, by what it takes in memory", "[threat-31]") {
  for (const std::string value : {"{}", "[]", "1", "\"\"", "{\"\":0}", "[[1],{}]"}) {
    INFO(value);
    NotedBudget budget;
    CHECK(refusal(list_of(value, 4 << 20),
                  {.max_bytes = std::int64_t{8} << 20, .budget = &budget}) == Kind::kTooLarge);
    CHECK(budget.most <= (std::int64_t{8} << 20) + 2 * (4 << 20) + (1 << 16));
  }
  NotedBudget budget;
  CHECK(refusal(object_of_names(4 << 20), {.max_bytes = 8 << 20}) == Kind::kTooLarge);
  // Budget that others hold is not available.
  budget.room = 10 << 20;
  CHECK(refusal(list_of("{}", 1 << 20), {.budget = &budget}) == Kind::kNoSpace);
  CHECK(budget.most <= budget.room);
}

TEST_CASE("honest requests fit: a chat of 10,000 messages, a million token ids") {
  JsonFailure failure;
  std::string chat = R"({"messages":[)";
  for (int i = 0; i < 10'000; ++i) {
    chat += std::string(i > 0 ? "," : "") + R"({"role":"user","content":"message )" +
            std::to_string(i) + " of many, with some words in it\"}";
  }
  NotedBudget budget;
  REQUIRE(read_json_tree(chat + "]}", {.budget = &budget}, failure));
  CHECK(budget.held < 10 << 20);
  CHECK(budget.held > 2 << 20);
  std::string ids = R"({"prompt":[0)";
  for (int i = 1; i < 1'000'000; ++i) ids += "," + std::to_string(i % 1000);
  REQUIRE(read_json_tree(ids + "]}", {}, failure));
}

TEST_CASE("names, objects and depth without number take time in proportion to the text",
          "[threat-31]") {
  const std::size_t kBytes = 4 << 20;
  std::string mixed =
      "[0";  // slow for a reader that searches a list at the end of each object in it
  for (int i = 0; i < 500'000; ++i) mixed += ",0";
  while (mixed.size() < kBytes / 2) mixed += ",{}";
  for (const std::string& text :
       {object_of_names(kBytes), list_of("{}", kBytes), list_of("1", kBytes), mixed + "]",
        std::string(kBytes, '['), std::string(kBytes, ' '), "\"" + std::string(kBytes, 'x') + "\"",
        std::string(kBytes, '1')}) {
    INFO(text.substr(0, 16) << "...");
    JsonFailure failure;
    CHECK(cpu_seconds_of([&] { read_json_tree(text, {.max_bytes = 1 << 30}, failure); }) <
          kMostSeconds);
    CHECK(cpu_seconds_of([&] { check_json_shape(text, {}, {96, 16}, failure); }) < kMostSeconds);
  }
}

TEST_CASE("a cancelled reading ends within 16 KiB of text", "[threat-32]") {
  for (const std::string& text :
       {list_of("{}", 1 << 20), std::string(1 << 20, ' '), "\"" + std::string(1 << 20, 'x')}) {
    INFO(text.substr(0, 8));
    NotedBudget budget;
    budget.polls_left = 2;
    CHECK(refusal(text, {.budget = &budget}) == Kind::kCancelled);
    CHECK(budget.polls == 3);
    budget = {};
    budget.polls_left = 2;
    JsonFailure failure;
    CHECK_FALSE(check_json_shape(text, {.budget = &budget}, {}, failure));
    CHECK(failure.kind == Kind::kCancelled);
  }
}

TEST_CASE("a text's shape is judged without reading it, for any strings") {
  JsonFailure failure;
  const auto shape = [&](const std::string& text, int depth) {
    return check_json_shape(text, {.max_depth = depth}, {}, failure);
  };
  CHECK(shape(R"({"a":["[[[[",'{{{"{'],"b":"\"[[\\"})", 2));
  CHECK_FALSE(shape(R"({"a":["[[[[",'{{{"{',[]]})", 2));
  CHECK(failure.kind == Kind::kTooDeep);
  CHECK_FALSE(check_json_shape("[[],[]]", {.max_bytes = 299}, {100, 10}, failure));
  CHECK(failure.kind == Kind::kTooLarge);
  CHECK(check_json_shape("[[],[]]", {.max_bytes = 310}, {100, 10}, failure));
}

}  // namespace lintel::testing
