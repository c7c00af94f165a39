// SPDX-License-Identifier: Apache-2.0
// Public initial states, from files.
#pragma once

#include <filesystem>

#include "server/api/service_context.h"

namespace lintel {

// Each file of the directory, a snapshot, as the public named state that is called as the file
// without its ending; what begins with a dot is left out. Their models have to be loaded. Memory
// is admitted as a session's, without an owner.
//
// Throws std::runtime_error naming the file and what is wrong with it: damaged, of another model,
// weight type or adapter, of other numerics (unless these are accepted), a name that no state can
// have or that is there twice, no memory.
void load_initial_states(const std::filesystem::path& directory, bool accept_other_numerics,
                         const ServiceContext& context);

}  // namespace lintel
