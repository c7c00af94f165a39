// SPDX-License-Identifier: Apache-2.0
// The sub-commands. Each function adds one to the command line; its file holds all of it.
#pragma once

#include "client/cli/flags.h"

namespace lintel::bench {

void add_adapters(CLI::App& app, cli::CommandLine& command_line);
void add_fleet(CLI::App& app, cli::CommandLine& command_line);
void add_large(CLI::App& app, cli::CommandLine& command_line);
void add_length(CLI::App& app, cli::CommandLine& command_line);
void add_load(CLI::App& app, cli::CommandLine& command_line);
void add_occlusion(CLI::App& app, cli::CommandLine& command_line);
void add_paper(CLI::App& app, cli::CommandLine& command_line);
void add_serve(CLI::App& app, cli::CommandLine& command_line);
void add_sessions(CLI::App& app, cli::CommandLine& command_line);
void add_speed(CLI::App& app, cli::CommandLine& command_line);

// The whole program: parses, measures, reports. `arguments` without the program's name. Returns a
// cli::ExitCode; throws nothing.
int run_command_line(std::vector<std::string> arguments, cli::Console& console);

}  // namespace lintel::bench
