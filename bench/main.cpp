// SPDX-License-Identifier: Apache-2.0
// lintel-bench: what linear, softmax and LSH attention cost on this machine.
#include <signal.h>
#include <unistd.h>

#include "bench/commands.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a closed standard output is noticed by write()
  lintel::cli::Console console(STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO);
  return lintel::bench::run_command_line(std::vector<std::string>(argv + 1, argv + argc), console);
}
