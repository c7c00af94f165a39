#include "server/models/packaged_models.h"

#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace lintel {
namespace {

// The repository that the build in `build` is of, by its CMakeCache.txt. Empty: it is no build.
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

std::vector<ModelSource> packaged_models(const std::filesystem::path& bin) {
  if (bin.empty()) return {};
  const std::filesystem::path prefix = bin.parent_path(), repository = repository_of(prefix);
  const std::filesystem::path models =
      repository.empty() ? prefix / "share/lintel/models" : repository / "weights";
  std::vector<ModelSource> found;
  std::istringstream names(LINTEL_PACKAGED_MODELS);  // "a,b"
  for (std::string name; std::getline(names, name, ',');) {
    std::error_code unreadable;
    std::filesystem::path directory = models / name;
    if (std::filesystem::exists(directory / "config.json", unreadable)) {
      found.push_back({.name = std::move(name), .directory = std::move(directory)});
    }
  }
  return found;
}

}  // namespace lintel
