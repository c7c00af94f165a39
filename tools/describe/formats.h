// SPDX-License-Identifier: Apache-2.0
// The formats that a Command is written in.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tools/describe/flags.h"

namespace lintel::describe {

// The layout of --help.

// CLI11's own format, but for
// - texts, which are broken into lines that a terminal of 80 columns shows. Lines of a footer that
//   follow each other are a paragraph, as in man pages; those that are indented stay as they are,
//   and where they are too long they are commands, which continue on the next line;
// - the flags that a flag needs or excludes: CLI11 lists them by where they lie in memory, in
//   another order at each run; here they are sorted.
class HelpFormat : public CLI::Formatter {
 public:
  static constexpr std::size_t kColumns = 80;

  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
};

// Lines of at most `width` bytes, broken between words. Those of the text stay.
std::string wrapped(const std::string& text, std::size_t width);

// A script that bash sources, or zsh finds as _NAME or sources. Flags, sub-commands and values
// where they are known; files and directories elsewhere.
std::string bash_completion(const Command& program);
std::string zsh_completion(const Command& program);

// A page in man(7): its name, e.g. "lintel-complete", and its text.
using ManPage = std::pair<std::string, std::string>;

// The page of the program and one for each of its sub-commands; theirs are sections of it.
// `version` and `date` (1970-01-31) stand at the foot of the page.
std::vector<ManPage> man_pages(const Command& program, const std::string& version,
                               const std::string& date);

// The program's flags in Markdown, a table for each group; for docs/.
std::string markdown_page(const Command& program);

}  // namespace lintel::describe
