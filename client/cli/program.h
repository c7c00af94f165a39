// SPDX-License-Identifier: Apache-2.0
// From arguments to exit status: what every program with sub-commands does alike.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "client/lib/call_error.h"

namespace lintel::cli {

// Of a failed call: one line without a newline, ending with the status code in parentheses. A field
// of the request is named by the flag of `command` that filled it, where there is one.
std::string call_error_text(const CallError& error, const CLI::App& command);

// The program `lintel` but for signals.

// Parses, runs, reports. `arguments` without the program's name. Returns an ExitCode; throws
// nothing.
int run_command_line(std::vector<std::string> arguments, Console& console);

// Parses `arguments` (without the program's name), runs the command that was chosen and reports
// what went wrong, after the name of `app`. Returns an ExitCode; throws nothing.
int run_program(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments);

}  // namespace lintel::cli
