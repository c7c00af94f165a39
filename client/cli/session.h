// `lintel session` and `lintel state`.
#pragma once

#include "client/cli/flags.h"

namespace lintel::cli {

void add_session(CLI::App& app, CommandLine& command_line);
void add_state(CLI::App& app, CommandLine& command_line);

}  // namespace lintel::cli
