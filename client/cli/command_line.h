// The program `lintel` but for signals.
#pragma once

#include <string>
#include <vector>

#include "client/cli/console.h"

namespace lintel::cli {

// Parses, runs, reports. `arguments` without the program's name. Returns an ExitCode; throws
// nothing.
int run_command_line(std::vector<std::string> arguments, Console& console);

}  // namespace lintel::cli
