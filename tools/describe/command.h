// A program or sub-command as CLI11 knows it, without CLI11: what pages and completions are made
// of.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lintel::describe {

// A flag or, with a name without dashes, a positional argument.
struct Argument {
  std::vector<std::string> names;    // "-h", "--help"; of a positional one, e.g. "ID"
  std::string value;                 // what stands for its value, e.g. "FILE"; empty: it takes none
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

}  // namespace lintel::describe
