// SPDX-License-Identifier: Apache-2.0
// The flags with which a program describes itself: its completions and its man pages.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lintel::describe {

// A program or sub-command as CLI11 knows it, without CLI11: what pages and completions are made
// of.

// A flag or, with a name without dashes, a positional argument.
struct Argument {
  std::vector<std::string> names;    // "-h", "--help"; of a positional one, e.g. "ID"
  std::string value;                 // its placeholder, e.g. "FILE"; empty: it takes no value
  std::vector<std::string> choices;  // the values there are; empty: others
  std::string range;                 // "1 to 64", "1s on"; empty: none, or it is not known
  std::string initial;               // its default as text; empty: none
  std::string variable;              // of the environment, which stands for it
  std::string group;                 // its heading in --help
  std::string help;
  bool repeated = false;
  bool required = false;

  bool is_file() const;       // its value names a file
  bool is_directory() const;  // its value names a directory
};

struct Command {
  std::string name;  // "complete"
  std::string path;  // "lintel complete"
  std::string description;
  std::string footer;               // as --help ends
  std::vector<Argument> flags;      // in the order of --help; the hidden ones are left out
  std::vector<Argument> arguments;  // positional
  std::vector<Command> commands;    // sub-commands
};

Command read_command(const CLI::App& app, const std::string& parent = "");

// "a b c"
std::string join(const std::vector<std::string>& words, const std::string& between = " ");

// Lays --help out as HelpFormat does, also of sub-commands that are added after. Adds
// --completion SHELL, which prints a script for bash or zsh, and two that --help does not
// show: --man-pages DIR, for packagers, a page for the program and one for each of its
// sub-commands, and --help-markdown, which prints the program's flags for docs/. All end the
// program through CLI::CallForVersion, whose what() is the text to print. None is a key of
// configuration files.
// `machine_defaults`: flags whose default depends on the machine, which a page leaves out.
void add_flags(CLI::App& app, const std::vector<std::string>& machine_defaults = {});

// A flag that a program does not have. what() is the word that gives it.
class UnknownFlag : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Parses `arguments`, without the program's name, as CLI11 does and throws what that throws, but
// UnknownFlag for a word that CLI11 takes for -h and more flags, run together: "-hf".
void parse(CLI::App& app, std::vector<std::string> arguments);

// ForeignFlag: what a flag of another program that runs models asks for.
enum class ForeignFlag : std::uint8_t {
  kNone,       // no such flag is known
  kModel,      // a model, by name or path: -m
  kHub,        // one of a hub: -hf
  kContext,    // the length of the context: --ctx-size
  kProcessor,  // computing on a GPU: -ngl
  kTokens,     // the length of an answer: -n
  kAddress,    // the server's address: --host
  kThreads,    // -t
  kSecret,     // --api-key
};
ForeignFlag foreign_flag(std::string_view flag);
// The hints that are the same for every program.
inline constexpr std::string_view kProcessorHint = "models are computed on the CPU";

// For CLI::Option::check(): values that completions offer for a flag whose values are checked
// elsewhere. Accepts everything and is not seen in --help. Of CLI::IsMember they are known.
CLI::Validator offers(const std::vector<std::string>& values);

// The same for a range that is checked elsewhere, e.g. "1 to 64": pages have it, --help has not.
CLI::Validator takes(const std::string& range);

}  // namespace lintel::describe
