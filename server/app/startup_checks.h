// Checks of options before models are loaded, which may take minutes.
#pragma once

#include "server/config/server_options.h"

namespace lintel {

// Looks at the files and directories that flags name, and whether the addresses are free. What is
// read is read again by who uses it. Throws std::runtime_error naming the flag, the file and what
// is wrong with it.
void check_before_loading(const ServerOptions& options);

}  // namespace lintel
