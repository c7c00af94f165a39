// What went wrong, in the words of the command line: flags instead of the request's fields.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "client/lib/call_error.h"

namespace lintel::cli {

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

}  // namespace lintel::cli
