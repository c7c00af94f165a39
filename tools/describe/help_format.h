// How --help is laid out.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lintel::describe {

// As CLI11's own, but for the flags that a flag needs or excludes: CLI11 lists them by where they
// lie in memory, in another order at each run; here they are sorted.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace lintel::describe
