// SPDX-License-Identifier: Apache-2.0
// Names of requests that stand for models.
#include "server/models/model_aliases.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// The same by trying every text for every *.
bool matches_naively(const std::string& pattern, const std::string& name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() != '*') {
    return !name.empty() && name.front() == pattern.front() &&
           matches_naively(pattern.substr(1), name.substr(1));
  }
  for (std::size_t taken = 0; taken <= name.size(); ++taken) {
    if (matches_naively(pattern.substr(1), name.substr(taken))) return true;
  }
  return false;
}

// All texts of at most `most` of these letters.
std::vector<std::string> texts_of(const std::string& letters, std::size_t most) {
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == most) continue;
    for (const char letter : letters) texts.push_back(texts[i] + letter);
  }
  return texts;
}

TEST_CASE("aliases: a pattern is matched as by trying every text for every *") {
  int differences = 0;
  for (const std::string& pattern : texts_of("ab*", 5)) {
    for (const std::string& name : texts_of("ab", 5)) {
      if (matches(pattern, name) == matches_naively(pattern, name)) continue;
      UNSCOPED_INFO(pattern << " " << name);
      ++differences;
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("aliases: the first that fits counts, and a name that is too long fits none") {
  const std::vector<ModelAlias> aliases = {
      {"claude-*-haiku*", "small"}, {"claude-*", "large"}, {"gpt-4o", "large"}};
  CHECK(aliased_model(aliases, "claude-3-5-haiku-20241022") == "small");
  CHECK(aliased_model(aliases, "claude-sonnet-4-5") == "large");
  CHECK(aliased_model(aliases, "gpt-4o") == "large");
  CHECK(aliased_model(aliases, "gpt-4o-mini").empty());
  CHECK(aliased_model(aliases, "").empty());
  const std::string longest = "claude-" + std::string(kMostAliasBytes - 7, 'x');
  CHECK(aliased_model(aliases, longest) == "large");
  CHECK(aliased_model(aliases, longest + "x").empty());
}

}  // namespace
}  // namespace lintel::testing
