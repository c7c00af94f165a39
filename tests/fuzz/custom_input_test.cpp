// SPDX-License-Identifier: Apache-2.0
// Arguments of custom tools' calls and items of a conversation, made at random: the text of a call
// does not depend on how its arguments are cut, and items are read or refused.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/custom_tools.h"
#include "server/openai/response_items.h"
#include "server/openai/response_output.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::fuzz {
namespace {

using RandomJson = nlohmann::ordered_json;

constexpr std::size_t kInputLimit = std::size_t{16} << 20;

std::string_view pick(std::mt19937_64& random, const std::vector<std::string_view>& all) {
  return all[random() % all.size()];
}

// JSON of {"input": text}, or what is nearly so.
std::string random_arguments(std::mt19937_64& random) {
  static const std::vector<std::string_view> kPieces = {"{",
                                                        "}",
                                                        "[",
                                                        "]",
                                                        "\"",
                                                        "\"input\"",
                                                        ":",
                                                        ",",
                                                        " ",
                                                        "\n",
                                                        "\\",
                                                        "\\n",
                                                        "\\u",
                                                        "\\u00e9",
                                                        "\\ud83d",
                                                        "\\ude00",
                                                        "\\\"",
                                                        "a",
                                                        "input",
                                                        "1",
                                                        "\xc3\xa9",
                                                        "\"x\"",
                                                        "{\"input\": \""};
  std::string text;
  if (random() % 4 != 0) text = "{\"input\": \"";
  for (std::uint64_t left = random() % 40; left > 0; --left) text += pick(random, kPieces);
  if (random() % 2 == 0) text += "\"}";
  return text;
}

std::pair<std::string, bool> read_in_pieces(std::mt19937_64& random, std::string_view arguments) {
  CustomInput input;
  std::string text;
  while (!arguments.empty()) {
    const std::size_t size = 1 + random() % arguments.size();
    text += input.push(arguments.substr(0, size));
    arguments.remove_prefix(size);
  }
  return {text, input.is_whole(text)};
}

TEST_CASE("custom tool: random arguments have one text in any pieces, and JSON's own",
          "[threat-104]") {
  std::mt19937_64 random(1);
  int whole = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string arguments = random_arguments(random);
    const auto [text, is_whole] = read_in_pieces(random, arguments);
    const auto again = read_in_pieces(random, arguments);
    const RandomJson tree = RandomJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
    const bool is_input = tree.is_object() && !tree.empty() && tree.begin().key() == "input" &&
                          tree.begin()->is_string() && arguments.find("\\u") == std::string::npos &&
                          tree.size() == 1;
    // A repeated name has its last value in a tree.
    const bool is_once = arguments.find("\"input\"") == arguments.rfind("\"input\"");
    const bool is_right = !is_input || !is_once || (is_whole && *tree.begin() == text);
    if (again == std::make_pair(text, is_whole) && is_right) {
      if (is_input && is_once) ++whole;
      continue;
    }
    CAPTURE(round, arguments, text, is_whole, again.first, again.second);
    FAIL("the text depends on its pieces, or is not JSON's");
  }
  CHECK(whole > 300);
}

TEST_CASE("custom tool: long arguments take time linear in their bytes, within memory",
          "[threat-104]") {
  const auto seconds_of = [](const std::string& unit, std::size_t count) {
    std::string arguments;
    for (std::size_t i = 0; i < count; ++i) arguments += unit;
    const MemoryLimit limit(kInputLimit);
    return testing::cpu_seconds_of([&] {
      CustomInput input;
      std::size_t bytes = 0;
      for (std::size_t at = 0; at < arguments.size(); at += 4) {
        bytes += input.push(std::string_view(arguments).substr(at, 4)).size();
      }
      CHECK(bytes <= arguments.size());
    });
  };
  for (const char* const unit : {" ", "{", "{\"input\": \"", "\\u00e9", "{\"input\": \"\"", "x"}) {
    CAPTURE(unit);
    seconds_of(unit, 1000);
    const double small = seconds_of(unit, 20'000), large = seconds_of(unit, 80'000);
    CHECK(large < 10 * small + 0.05);
  }
}

RandomJson random_value(std::mt19937_64& random, int depth) {
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 3;
    case 2:
      return "completed";
    case 3:
      return "text";
    case 4:
      return true;
    case 5:
      return RandomJson::array({random_value(random, depth - 1)});
    default:
      return {{"type", "input_text"}, {"text", random_value(random, depth - 1)}};
  }
}

TEST_CASE("items: random items of every type are refused, or kept, shown and read again",
          "[threat-104]") {
  static const std::vector<std::string_view> kTypes = {
      "message",          "reasoning",
      "function_call",    "function_call_output",
      "custom_tool_call", "custom_tool_call_output",
      "local_shell_call", "local_shell_call_output",
      "web_search_call",  "additional_tools",
      "compaction",       "no_such"};
  static const std::vector<std::string_view> kMembers = {
      "id",     "call_id", "name",    "input",   "arguments",         "output", "action",
      "status", "role",    "content", "summary", "encrypted_content", "tools"};
  std::mt19937_64 random(2);
  int read = 0, shown = 0;
  for (int round = 0; round < 20'000; ++round) {
    RandomJson input = RandomJson::array();
    for (std::uint64_t left = 1 + random() % 3; left > 0; --left) {
      RandomJson item = {{"type", pick(random, kTypes)}};
      if (random() % 2 == 0) item.update({{"call_id", "c"}, {"name", "f"}, {"role", "user"}});
      for (std::uint64_t members = random() % 4; members > 0; --members) {
        item[std::string(pick(random, kMembers))] = random_value(random, 2);
      }
      input.push_back(std::move(item));
    }
    RandomJson items, again, messages;
    IgnoredMembers ignored;
    name_unread_items(input, ignored);
    if (!read_items(input, "r", items).ok()) continue;
    ++read;
    const bool is_same = read_items(items, "r", again).ok() && again == items;
    if (!is_same) FAIL(input.dump() + " is stored as " + items.dump());
    const bool has_compaction = std::ranges::any_of(
        items, [](const RandomJson& item) { return item["type"] == "compaction"; });
    if (has_compaction) continue;  // it is opened before
    if (messages_of(nullptr, items, 0, messages).ok()) ++shown;
  }
  CHECK(read > 500);
  CHECK(shown > 500);
}

}  // namespace
}  // namespace lintel::fuzz
