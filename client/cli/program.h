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

// What went wrong, in the words of the command line: flags instead of the request's fields.

// The sub-command that was chosen, or the program where none was.
const CLI::App& chosen_command(const CLI::App& app);

// "lintel session get"
std::string command_path(const CLI::App& command);

// Of a failed call: one line without a newline, ending with the status code in parentheses. A field
// of the request is named by the flag of `command` that filled it, where there is one.
std::string call_error_text(const CallError& error, const CLI::App& command);

// Of a command line that CLI11 could not read: one line without a newline.
std::string parse_error_text(const CLI::ParseError& error, const CLI::App& app);

// "no such command: X" and what may have been meant.
std::string unknown_command_text(const std::string& word, const CLI::App& parent);

// The program `lintel` but for signals.

// Parses, runs, reports. `arguments` without the program's name. Returns an ExitCode; throws
// nothing.
int run_command_line(std::vector<std::string> arguments, Console& console);

// Parses `arguments` (without the program's name), runs the command that was chosen and reports
// what went wrong, after the name of `app`. Returns an ExitCode; throws nothing.
int run_program(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments);

}  // namespace lintel::cli
