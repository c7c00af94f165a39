// SPDX-License-Identifier: Apache-2.0
// What a directory of models has, by name and version.
#include "server/models/model_repository.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/server/support/models_fixture.h"
#include "tests/support/catch.h"

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

TEST_CASE("GGUF files are models by their names, of parts the first") {
  const ModelsFixture f;
  for (const char* file : {"one-Q8_0.gguf", "two-00001-of-00002.gguf", "two-00002-of-00002.gguf",
                           "mmproj-one.gguf", "notes.txt"}) {
    std::ofstream(f.directory.path() / file) << "-";
  }
  const ModelRepository repository(f.directory.path());
  CHECK(repository.names() == std::vector<std::string>{"one-Q8_0", "two"});
  CHECK(repository.versions("two").at(0).directory.filename() == "two-00001-of-00002.gguf");
  CHECK(repository.versions("mmproj-one").empty());
}

TEST_CASE("of GGUF files with one name one is the model, and the others are known as unused") {
  const ModelsFixture f;
  for (const char* file : {"one-00001-of-00002.gguf", "one-00002-of-00002.gguf", "one.gguf"}) {
    std::ofstream(f.directory.path() / file) << "-";
  }
  f.write("a/1");
  f.write("a/2");
  const ModelRepository repository(f.directory.path());
  const std::vector<ModelSource> found = repository.versions("one");
  REQUIRE(found.size() == 1);
  CHECK(found[0].directory.filename() == "one.gguf");
  const std::vector<ModelRepository::Unused> unused = repository.unused();
  REQUIRE(unused.size() == 1);
  CHECK(unused[0].name == "one");
  CHECK(unused[0].used.filename() == "one.gguf");
  CHECK(unused[0].unused.filename() == "one-00001-of-00002.gguf");
}

TEST_CASE("a cache of Hugging Face has its models by organisation, name and quant") {
  const ModelsFixture f;
  const auto snapshot = [&](const std::string& model, const std::string& commit) {
    return "models--" + model + "/snapshots/" + commit;
  };
  f.write(snapshot("org--tensors", "c1"));
  f.write(snapshot("org--several", "c1"));
  f.write(snapshot("org--several", "c2"));
  for (const char* file : {"Model-7B-Q8_0.gguf", "Model-7B-Q4_K_M-00001-of-00002.gguf"}) {
    fs::create_directories(f.directory.path() / snapshot("org--quants", "c1"));
    std::ofstream(f.directory.path() / snapshot("org--quants", "c1") / file) << "-";
  }
  fs::create_directories(f.directory.path() / "models--org--empty");
  const ModelRepository repository(f.directory.path());
  const std::vector<std::string> quants = {"org/quants:Q4_K_M", "org/quants:Q8_0"};
  std::vector<std::string> names = quants;
  names.emplace_back("org/tensors");
  CHECK(repository.names() == names);
  CHECK(repository.versions("org/quants:Q8_0").at(0).directory.filename() == "Model-7B-Q8_0.gguf");
  // The snapshot that refs/main names is loaded, of several.
  fs::create_directory(f.directory.path() / "models--org--several/refs");
  std::ofstream(f.directory.path() / "models--org--several/refs/main") << "c2\n";
  CHECK(repository.versions("org/several").at(0).directory.filename() == "c2");
  for (const char* name : {"org/../x", "/tensors", "org/", "org/quants:", "org/a/b", "a:Q8_0"}) {
    CHECK_FALSE(is_repository_name(name));
  }
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
