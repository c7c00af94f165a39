// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include "server/models/model_loader.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

TEST_CASE("adapters are the directories in adapters, by name") {
  const TemporaryDirectory model;
  CHECK(adapters_in(model.path()).empty());
  CHECK(adapters_in("").empty());
  for (const char* const name : {"b", "a-1", ".hidden", "with space"}) {
    std::filesystem::create_directories(model.path() / "adapters" / name);
  }
  std::ofstream(model.path() / "adapters/file") << "no directory";
  const std::vector<AdapterSource> found = adapters_in(model.path());
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "a-1");
  CHECK(found[0].directory == model.path() / "adapters/a-1");
  CHECK(found[1].name == "b");
}

}  // namespace
}  // namespace lintel::testing
