// SPDX-License-Identifier: Apache-2.0
// What a Command becomes.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/describe/flags.h"

namespace lintel::describe {

// How --help is laid out.

// As CLI11's own, but for the flags that a flag needs or excludes: CLI11 lists them by where they
// lie in memory, in another order at each run; here they are sorted.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
};

// A script that bash sources, or zsh finds as _NAME or sources. Flags, sub-commands and values
// where they are known; files and directories elsewhere.
std::string bash_completion(const Command& program);
std::string zsh_completion(const Command& program);

// A page in man(7): its name, e.g. "lintel-complete", and its text.
using ManPage = std::pair<std::string, std::string>;

// That of the program and one for each of its sub-commands; theirs are sections of it. `version`
// and `date` (1970-01-31) stand at the foot of the page.
std::vector<ManPage> man_pages(const Command& program, const std::string& version,
                               const std::string& date);

// The program's flags in Markdown, a table for each group; for docs/.
std::string markdown_page(const Command& program);

}  // namespace lintel::describe
