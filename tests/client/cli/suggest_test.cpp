#include "client/cli/frame/suggest.h"

#include <catch2/catch.hpp>

namespace lintel::cli {

TEST_CASE("a slip of the keys is told what was meant, another word is not") {
  const std::vector<std::string> known = {"generate", "complete", "score", "session", "model"};
  CHECK(nearest("generat", known) == "generate");
  CHECK(nearest("genreate", known) == "generate");
  CHECK(nearest("compleet", known) == "complete");
  CHECK(nearest("models", known) == "model");
  CHECK(nearest("gen", known) == "generate");  // the only one that begins so
  CHECK(nearest("s", known).empty());          // two do
  CHECK(nearest("banana", known).empty());
  CHECK(nearest("", known).empty());
}

}  // namespace lintel::cli
