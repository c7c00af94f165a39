// SPDX-License-Identifier: Apache-2.0
// What a directory of models has, by name and version.
#include "server/models/model_repository.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/server/support/models_fixture.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;

TEST_CASE("versions are numbers, in their order, and a directory without any is version 1") {
  const ModelsFixture f;
  for (const char* path : {"a/1", "a/10", "a/9", "plain"}) f.write(path);
  for (const char* path : {"a/01", "a/0", "a/x", "notes/old"}) {
    fs::create_directories(f.directory.path() / path);
  }
  const ModelRepository repository(f.directory.path());
  std::vector<std::int64_t> versions;
  for (const ModelSource& source : repository.versions("a")) {
    CHECK(source.name == "a");
    CHECK(source.directory.filename().string() == std::to_string(source.version));
    CHECK(source.directory.parent_path().string() == (f.directory.path() / "a").string());
    versions.push_back(source.version);
  }
  CHECK(versions == std::vector<std::int64_t>{1, 9, 10});
  CHECK(repository.versions("plain").at(0).version == 1);
  CHECK(repository.versions("nosuch").empty());
  CHECK(repository.names() == std::vector<std::string>{"a", "plain"});
}

TEST_CASE("no name leads out of the repository") {
  const ModelsFixture f;
  f.write("inner/model");
  f.write("secret");
  const ModelRepository repository(f.directory.path() / "inner");
  CHECK(repository.versions("model").size() == 1);
  for (const char* name : {"../secret", "..", ".", "", "model/", "./model", ".hidden"}) {
    CHECK(repository.versions(name).empty());
  }
  CHECK_FALSE(ModelRepository({}).exists());
  CHECK(ModelRepository({}).versions("secret").empty());
}

}  // namespace
}  // namespace lintel::testing
