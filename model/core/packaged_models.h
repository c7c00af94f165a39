// SPDX-License-Identifier: Apache-2.0
// The small models that come with the programs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lintel {

// The directory of this process's executable, symbolic links resolved. Empty if it is unknown.
std::filesystem::path program_directory();

struct PackagedModel {
  std::string name;
  std::filesystem::path directory;
};

// The packaged models that are installed, in the package's order: in PREFIX/share/lintel/models if
// `bin` is an installed PREFIX/bin, in the repository's weights/ if it is the bin/ of a build.
// Empty if neither has any.
std::vector<PackagedModel> packaged_models(const std::filesystem::path& bin);

}  // namespace lintel
