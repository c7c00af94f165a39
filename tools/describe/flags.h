// The flags with which a program describes itself: its completions and its man pages.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lintel::describe {

// Lays --help out as HelpFormat does, also of sub-commands that are added after. Adds
// --completion SHELL, which prints a script for bash or zsh, and two that --help does not
// show: --man-pages DIR, for packagers, a page for the program and one for each of its
// sub-commands, and --help-markdown, which prints the program's flags for docs/. All end the
// program through CLI::CallForVersion, whose what() is the text to print. None is a key of
// configuration files.
// `machine_defaults`: flags whose default depends on the machine, which a page leaves out.
void add_flags(CLI::App& app, const std::vector<std::string>& machine_defaults = {});

// For CLI::Option::check(): values that completions offer for a flag whose values are checked
// elsewhere. Accepts everything and is not seen in --help. Of CLI::IsMember they are known.
CLI::Validator offers(const std::vector<std::string>& values);

// The same for a range that is checked elsewhere, e.g. "1 to 64": pages have it, --help has not.
CLI::Validator takes(const std::string& range);

}  // namespace lintel::describe
