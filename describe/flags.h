// The flags with which a program describes itself: its completions and its man pages.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lintel::describe {

// Adds --completion SHELL, which prints a script for bash or zsh, and --man-pages DIR, which --help
// does not show, for packagers: a page for the program and one for each of its sub-commands. Both
// end the program through CLI::CallForVersion, whose what() is the text to print. Neither is a key
// of configuration files.
// `machine_defaults`: flags whose default depends on the machine, which a page leaves out.
void add_flags(CLI::App& app, const std::vector<std::string>& machine_defaults = {});

// For CLI::Option::check(): values that completions offer for a flag whose values are checked
// elsewhere. Accepts everything and is not seen in --help. Of CLI::IsMember they are known.
CLI::Validator offers(const std::vector<std::string>& values);

}  // namespace lintel::describe
