// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/run_lintel.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "client/cli/console.h"
#include "client/cli/program.h"

namespace lintel::testing {

CommandResult run_lintel(const std::vector<std::string>& arguments, const std::string& input) {
  std::FILE* in = std::tmpfile();
  std::FILE* out = std::tmpfile();
  std::FILE* err = std::tmpfile();
  std::fputs(input.c_str(), in);
  std::fflush(in);
  lseek(fileno(in), 0, SEEK_SET);
  CommandResult result;
  {
    cli::Console console(fileno(in), fileno(out), fileno(err));
    result.code = cli::run_command_line(arguments, console);
  }
  const auto contents = [](std::FILE* file) {
    std::string text(static_cast<std::size_t>(lseek(fileno(file), 0, SEEK_END)), '\0');
    const ssize_t got = pread(fileno(file), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    std::fclose(file);
    return text;
  };
  std::fclose(in);
  result.out = contents(out);
  result.err = contents(err);
  return result;
}

}  // namespace lintel::testing
