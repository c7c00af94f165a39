// Error texts for flags that CLI11 refuses.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "server/app/config_file.h"

namespace lintel {

// CLI11's error in the words of ours: the flag, what was given, what is taken, and what may have
// been meant; for a value of the configuration file, the file and line in front. argc, argv: as
// they were parsed.
std::string in_words(const CLI::ParseError& error, const CLI::App& app, const ConfigFile& config,
                     int argc, const char* const* argv);

// Whether errors are to be lines of JSON, as --log-format says on the command line, wherever the
// parsing stopped.
bool asks_for_json(int argc, const char* const* argv, const ConfigFile& config);

}  // namespace lintel
