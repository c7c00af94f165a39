// SPDX-License-Identifier: Apache-2.0
// From arguments to exit status: what every program with sub-commands does alike.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "client/lib/call_error.h"

namespace lintel::cli {

// The error of a failed call: one line without a newline, ending with the status code in
// parentheses. A field of the request is named by the flag of `command` that filled it, where there
// is one.
std::string call_error_text(const CallError& error, const CLI::App& command);

// Runs `body`, a turn of a conversation on a terminal. Returns what is to be printed where a call
// or what was typed is wrong, after all output before it was written; nothing: it went well. Throws
// what ends the conversation, a CallError among it after the console was cancelled.
template <typename Body>
std::optional<std::string> error_of_turn(Console& console, const CLI::App& command, Body&& body) {
  std::string text;
  try {
    body();
    return std::nullopt;
  } catch (const CallError& error) {
    if (console.cancellation().cancelled()) throw;
    text = call_error_text(error, command);
  } catch (const UsageError& error) {
    text = error.what();
  } catch (const Failure& error) {
    text = error.what();
  }
  console.flush();
  return text;
}

// The program `lintel` but for signals.

// Parses, runs, reports. `arguments` without the program's name. Returns an ExitCode; throws
// nothing.
int run_command_line(std::vector<std::string> arguments, Console& console);

// Parses `arguments` (without the program's name), runs the command that was chosen and reports
// what went wrong, after the name of `app`. Returns an ExitCode; throws nothing.
int run_program(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments);

}  // namespace lintel::cli
