// Which models a server starts with.
#pragma once

#include <vector>

#include "server/models/model_options.h"
#include "server/models/model_repository.h"

namespace lintel {

// The directories of the options, and the newest versions of what is to be loaded of the
// repository. Throws ModelError for a name that is not there, or there twice.
std::vector<ModelSource> start_sources(const ModelOptions& options,
                                       const ModelRepository& repository);

}  // namespace lintel
