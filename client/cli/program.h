// From arguments to exit status: what every program with sub-commands does alike.
#pragma once

#include <string>
#include <vector>

#include "client/cli/flags.h"

namespace lintel::cli {

// Parses `arguments` (without the program's name), runs the command that was chosen and reports
// what went wrong, after the name of `app`. Returns an ExitCode; throws nothing.
int run_program(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments);

}  // namespace lintel::cli
