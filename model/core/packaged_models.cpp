// SPDX-License-Identifier: Apache-2.0
#include "model/core/packaged_models.h"

#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace lintel {
namespace {

// The repository of the build in `build`, by its CMakeCache.txt. Empty: it is not a build.
std::filesystem::path repository_of(const std::filesystem::path& build) {
  static const std::string kKey = "CMAKE_HOME_DIRECTORY:INTERNAL=";
  std::ifstream cache(build / "CMakeCache.txt");
  for (std::string line; std::getline(cache, line);) {
    if (line.starts_with(kKey)) return line.substr(kKey.size());
  }
  return {};
}

}  // namespace

std::filesystem::path program_directory() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
}

std::vector<PackagedModel> packaged_models(const std::filesystem::path& bin) {
  if (bin.empty()) return {};
  const std::filesystem::path prefix = bin.parent_path(), repository = repository_of(prefix);
  const std::filesystem::path models =
      repository.empty() ? prefix / "share/lintel/models" : repository / "weights";
  std::vector<PackagedModel> found;
  std::istringstream names(LINTEL_PACKAGED_MODELS);  // "a,b"
  for (std::string name; std::getline(names, name, ',');) {
    std::filesystem::path directory = models / name;
    std::error_code unreadable;
    if (std::filesystem::exists(directory / "config.json", unreadable)) {
      found.push_back({.name = std::move(name), .directory = std::move(directory)});
    }
  }
  return found;
}

}  // namespace lintel
