// SPDX-License-Identifier: Apache-2.0
// The modules of tests/layering/modules.txt, held against every #include line.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/layering/modules.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace {

using Catch::Matchers::Contains;

const fs::path kRoot = LINTEL_SOURCE_DIR;
const fs::path kModules = kRoot / "tests/layering/modules.txt";

// The folders of C++ beside tests/, which may include anything.
constexpr const char* kFolders[] = {"proto", "model", "server", "client", "tools", "bench"};

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

namespace lintel::testing {

TEST_CASE("no file includes a header that its module may not see") {
  const std::vector<Module> modules = read_modules(kModules);
  std::size_t includes = 0;
  for (const char* const top : kFolders) {
    for (const Include& include : includes_of(kRoot, top)) {
      ++includes;
      const std::string fault = fault_of(include, modules);
      INFO(fault);
      CHECK(fault.empty());
    }
  }
  CHECK(includes > 1000);  // the walk found the sources
}

TEST_CASE("Catch2 is included by tests/support/catch.h alone") {
  std::set<std::string> files;
  for (const char* const top : {"model", "server", "client", "tools", "bench", "tests"}) {
    for (const Include& include : includes_of(kRoot, top)) {
      if (include.header.starts_with("catch2/")) files.insert(include.file);
    }
  }
  CHECK(files == std::set<std::string>{"tests/support/catch.h"});
}

TEST_CASE("a module sees only modules above it, so that there are no circles") {
  const std::vector<Module> modules = read_modules(kModules);
  CHECK(modules.size() > 30);
  for (const std::string& fault : faults_of(modules)) {
    INFO(fault);
    CHECK(fault.empty());
  }
}

TEST_CASE("the rule finds forbidden includes") {
  const std::vector<Module> modules = {
      {"low", {}}, {"top/low", {"low"}}, {"top/high", {"top", "<json>", "proto"}}};
  const auto fault = [&](const char* file, const char* header, bool quoted = true) {
    return fault_of({file, header, quoted}, modules);
  };
  CHECK(fault("top/high/a.cpp", "top/low/b.h").empty());
  CHECK(fault("top/high/a.cpp", "vector", false).empty());
  CHECK(fault("top/high/a.cpp", "nlohmann/json.hpp", false).empty());
  CHECK(fault("top/high/a.cpp", "lintel/v1/model.pb.h").empty());
  CHECK_THAT(fault("top/low/a.cpp", "lintel/v1/model.pb.h"), Contains("does not see proto"));
  CHECK_THAT(fault("top/low/a.cpp", "nlohmann/json.hpp", false), Contains("<json>"));
  CHECK_THAT(fault("top/low/a.cpp", "top/high/b.h"), Contains("does not see top/high"));
  CHECK_THAT(fault("top/high/a.cpp", "low/b.h"), Contains("does not see low"));
  CHECK_THAT(fault("top/high/a.cpp", "tests/b.h"), Contains("in no module"));
  CHECK_THAT(fault("top/a.cpp", "low/b.h"), Contains("the file is in no module"));
  CHECK(faults_of(modules).size() == 1);  // no module proto
  CHECK(faults_of({{"a", {"b"}}, {"b", {"a"}}}).size() == 1);
}

TEST_CASE("every source is in a module, and every module has sources") {
  const std::vector<Module> modules = read_modules(kModules);
  std::map<std::string, std::size_t> files;
  for (const fs::path top : {"proto", "model", "server", "client", "tools", "bench"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp") continue;
      ++files[fs::relative(entry.path().parent_path(), kRoot).generic_string()];
    }
  }
  for (const auto& [folder, count] : files) {
    INFO(folder << " has " << count << " files");
    CHECK(std::ranges::find(modules, folder, &Module::folder) != modules.end());
  }
  for (const Module& module : modules) {
    INFO("no file is in " << module.folder);
    CHECK((files.contains(module.folder) || module.folder == "proto"));
  }
}

// Such a header belongs into the file that includes it, but for these: contracts, and classes whose
// users would become too long.
TEST_CASE("headers that one file of their module includes, and no test, are on the list") {
  const std::set<std::string> list = {
      "client/cli/complete_output.h",
      "model/ops/dense_avx512.h",  // compiled for its instruction set
      "model/tokenizer/unicode_tables.inc",
      "server/chat/template/python_text_tables.inc",  // written by a script
      "server/engine/particle_filter.h",
      "server/engine/worker.h",
      "server/grammar/schema_reader.h",
      "server/openai/http/completion.h",
      "server/http/ui/page_files.h",  // of a generated file
      "server/sessions/storage/redis/redis_link.h",
  };
  std::map<std::string, std::set<std::string>> users;
  for (const char* const top : {"model", "server", "client", "tools", "bench", "tests"}) {
    for (const Include& include : includes_of(kRoot, top)) {
      if (!include.quoted || fs::path(include.file).stem() == fs::path(include.header).stem()) {
        continue;
      }
      users[include.header].insert(include.file);
    }
  }
  std::set<std::string> found;
  for (const auto& [header, files] : users) {
    const bool is_own = fs::path(*files.begin()).parent_path() == fs::path(header).parent_path();
    if (files.size() == 1 && is_own && !header.starts_with("tests/")) found.insert(header);
  }
  CHECK(found == list);
}

TEST_CASE("threat model: each threat has as many tests as its row says") {
  const std::regex tag("\\[(threat-[0-9]+)\\]");
  std::map<std::string, int> tests;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const bool is_test = entry.path().extension() == ".cpp" ||
                         entry.path().filename().string().ends_with(".test.mjs");
    if (!is_test || entry.path().string().find("node_modules") != std::string::npos) continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), tag), last; it != last; ++it) {
      ++tests[(*it)[1]];
    }
  }
  // The last column of a row: the tag and a number.
  const std::regex row("\\| `\\[(threat-[0-9]+)\\]` ([0-9]+) \\|\n");
  const std::string page = text_of(kRoot / "docs" / "threat_model.md");
  std::map<std::string, int> rows;
  for (std::sregex_iterator it(page.begin(), page.end(), row), last; it != last; ++it) {
    CHECK(rows.emplace((*it)[1], std::stoi((*it)[2])).second);
  }
  CHECK(rows.size() >= 79);
  for (const auto& [name, number] : rows) {
    INFO(name);
    CHECK(tests[name] == number);
  }
  CHECK(tests.size() == rows.size());  // no tag without a row
}

TEST_CASE("an attention backend has no header that others could include") {
  std::set<std::string> headers;
  for (const auto& entry : fs::directory_iterator(kRoot / "model" / "layers" / "attention")) {
    if (entry.path().extension() == ".h") headers.insert(entry.path().filename());
  }
  CHECK(headers == std::set<std::string>{"attention.h", "pattern_attention.h", "sum_attention.h"});
}

TEST_CASE("a kind of attention is a file and a line of kinds.inc") {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(kRoot / "model" / "layers" / "attention")) {
    if (entry.path().extension() == ".cpp") files.insert(entry.path().stem());
  }
  files.erase("attention");
  std::set<std::string> lines;
  const std::string text = text_of(kRoot / "model" / "layers" / "attention" / "kinds.inc");
  const std::regex line("(^|\\n)LINTEL_KIND\\((\\w+)\\)");
  for (std::sregex_iterator it(text.begin(), text.end(), line), last; it != last; ++it) {
    lines.insert((*it)[2]);
  }
  CHECK(files == lines);
}

}  // namespace lintel::testing
