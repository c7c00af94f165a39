// The table of the flags of lintel-server: the command line, the configuration file, --help, man
// pages, completions and docs/flags.md are made of it.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

// In the order of --help.
std::vector<Flag> server_flags();

}  // namespace lintel
