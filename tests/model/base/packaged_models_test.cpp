// SPDX-License-Identifier: Apache-2.0
#include "model/core/packaged_models.h"

#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

void write_model(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << "{}";
}

TEST_CASE("packaged models are found next to an installed program, in the package's order") {
  const TemporaryDirectory prefix;
  const std::filesystem::path models = prefix.path() / "share/lintel/models";
  CHECK(packaged_models(prefix.path() / "bin").empty());
  CHECK(packaged_models("").empty());
  for (const char* const name : {"text-linear-small", "mnist-linear-small", "another"}) {
    write_model(models / name);
  }
  std::filesystem::create_directories(models / "mnist-softmax-small");  // without a config.json
  const std::vector<PackagedModel> found = packaged_models(prefix.path() / "bin");
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "mnist-linear-small");
  CHECK(found[0].directory == models / "mnist-linear-small");
  CHECK(found[1].name == "text-linear-small");
}

TEST_CASE("packaged models of a build are those of its repository, wherever the build is") {
  const TemporaryDirectory repository, build;
  write_model(repository.path() / "weights/text-linear-small");
  std::ofstream(build.path() / "CMakeCache.txt")
      << "# made by CMake\nCMAKE_HOME_DIRECTORY:INTERNAL=" << repository.path().string() << "\n";
  const std::vector<PackagedModel> found = packaged_models(build.path() / "bin");
  REQUIRE(found.size() == 1);
  CHECK(found[0].directory == repository.path() / "weights/text-linear-small");
}

TEST_CASE("the directory of the program is where the executable is") {
  CHECK(std::filesystem::exists(program_directory() / "model_test"));
}

}  // namespace
}  // namespace lintel::testing
