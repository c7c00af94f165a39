// The text of --help around the flags, and its layout.
#pragma once

#include <CLI/CLI.hpp>

namespace lintel {

// Gives `app`, whose flags are declared, its introduction and examples, and breaks the flags' texts
// into lines that a terminal of 80 columns shows.
void lay_out_help(CLI::App& app);

}  // namespace lintel
