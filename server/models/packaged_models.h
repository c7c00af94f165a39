// The small models that come with the program.
#pragma once

#include <filesystem>
#include <vector>

#include "server/models/model_repository.h"

namespace lintel {

// Of this process's executable, symbolic links resolved. Empty where the system does not tell.
std::filesystem::path program_directory();

// The models of the package that are there, in the package's order: in PREFIX/share/lintel/models
// where `bin` is an installed PREFIX/bin, in the repository's weights/ where it is the bin/ of a
// build. Empty where neither has any.
std::vector<ModelSource> packaged_models(const std::filesystem::path& bin);

}  // namespace lintel
