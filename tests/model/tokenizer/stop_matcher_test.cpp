// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/stop_matcher.h"

#include <algorithm>
#include <random>

#include "tests/support/catch.h"

namespace lintel {
namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The definition: the longest proper beginning of any string that ends the text.
std::size_t undecided_by_definition(const std::string& text,
                                    const std::vector<std::string>& strings) {
  std::size_t longest = 0;
  for (const std::string& string : strings) {
    for (std::size_t n = 1; n < string.size(); ++n) {
      if (ends_with(text, string.substr(0, n))) longest = std::max(longest, n);
    }
  }
  return longest;
}

TEST_CASE("stop strings are found where a plain search finds them") {
  std::mt19937 random(20240501);
  int matches = 0;
  for (int round = 0; round < 2000; ++round) {
    // Two letters, so that overlaps and self-overlaps are common.
    const auto letters = [&](std::size_t n) {
      std::string text;
      while (text.size() < n) text.push_back("ab"[random() % 2]);
      return text;
    };
    std::vector<std::string> strings(random() % 4);
    for (std::string& string : strings) string = letters(1 + random() % 6);
    const StopStrings stops(strings);
    StopMatcher matcher(stops);
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += letters(1);
      const auto found = matcher.push(text.back());
      std::size_t longest = 0;
      for (const std::string& string : strings) {
        if (ends_with(text, string)) longest = std::max(longest, string.size());
      }
      INFO("text " << text);
      REQUIRE((found ? stops[*found].size() : 0) == longest);
      if (found) {
        ++matches;
        matcher.reset();
        text.clear();
      }
      REQUIRE(matcher.undecided() == undecided_by_definition(text, strings));
    }
  }
  REQUIRE(matches > 1000);
}

TEST_CASE("a match may begin in replayed text but not end in it") {
  const StopStrings stops({"abc", "xy"});
  StopMatcher matcher(stops);
  matcher.replay("xyab");
  REQUIRE(matcher.undecided() == 2);
  REQUIRE(matcher.push('c') == 0u);
}

TEST_CASE("a reset breaks the text") {
  const StopStrings stops({"ab"});
  StopMatcher matcher(stops);
  REQUIRE(!matcher.push('a'));
  matcher.reset();
  REQUIRE(matcher.undecided() == 0);
  REQUIRE(!matcher.push('b'));
}

}  // namespace
}  // namespace lintel
