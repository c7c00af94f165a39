// SPDX-License-Identifier: Apache-2.0
// The table of modules, tests/layering/modules.txt, and the includes that are held against it.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace lintel::testing {

// A line of the table.
struct Module {
  std::string folder;
  // Names as written: modules, tops and <packages>.
  std::set<std::string> sees;
};

// The modules in the file's order. Throws std::runtime_error for a line that is none.
std::vector<Module> read_modules(const std::filesystem::path& file);

// Rules that the modules break, as messages: one names itself, a module that is not above it, or an
// unknown package.
std::vector<std::string> faults_of(const std::vector<Module>& modules);

struct Include {
  std::string file;    // relative to the root, e.g. "model/transformer.cpp"
  std::string header;  // as written between quotes or angle brackets
  bool quoted = false;
};

// Every #include of C++ files under root/top.
std::vector<Include> includes_of(const std::filesystem::path& root, const std::string& top);

// Empty, or why `include` is not allowed. `modules` is the whole table.
std::string fault_of(const Include& include, const std::vector<Module>& modules);

}  // namespace lintel::testing
