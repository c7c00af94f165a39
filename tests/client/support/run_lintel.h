// SPDX-License-Identifier: Apache-2.0
// `lintel`, run in this process.
#pragma once

#include <string>
#include <vector>

#include "client/cli/console.h"  // the exit codes

namespace lintel::testing {

struct CommandResult {
  int code = 0;
  std::string out, err;
};

// Runs `lintel` with these arguments in this process. Standard error is no terminal.
CommandResult run_lintel(const std::vector<std::string>& arguments, const std::string& input = "");

}  // namespace lintel::testing
