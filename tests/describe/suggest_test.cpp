// SPDX-License-Identifier: Apache-2.0
#include "tools/describe/suggest.h"

#include "tests/support/catch.h"

namespace lintel::describe {

TEST_CASE("a mistyped word has a suggestion, an unrelated word has none") {
  const std::vector<std::string> known = {"generate", "complete", "score", "session", "model"};
  CHECK(nearest_word("generat", known) == "generate");
  CHECK(nearest_word("genreate", known) == "generate");
  CHECK(nearest_word("compleet", known) == "complete");
  CHECK(nearest_word("models", known) == "model");
  CHECK(nearest_word("gen", known) == "generate");  // the only one that begins so
  CHECK(nearest_word("s", known).empty());          // two do
  CHECK(nearest_word("banana", known).empty());
  CHECK(nearest_word("", known).empty());
}

TEST_CASE("a word is like another by few letters, and a short one is like nothing") {
  const std::vector<std::string> known = {"session-memory", "workers", "off", "on"};
  CHECK(nearest_word("sesion-memory", known) == "session-memory");
  CHECK(nearest_word("SESSION_MEMORY", known) == "session-memory");
  CHECK(nearest_word("session", known) == "session-memory");
  CHECK(nearest_word("wrokers", known) == "workers");
  CHECK(nearest_word("metrics", known).empty());
  CHECK(nearest_word("", known).empty());
  CHECK(nearest_word(std::string(100'000, 'x'), known).empty());
}

}  // namespace lintel::describe
