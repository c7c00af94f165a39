// SPDX-License-Identifier: Apache-2.0
#include "bench/commands.h"
#include "client/cli/program.h"
#include "tools/describe/flags.h"

namespace lintel::bench {
namespace {

constexpr const char* kFooter = R"(
Every command prints Markdown tables that name machine, weight type, workers, batch and model, with
medians of --repeats and the least and most of them; those of load, which measures a server that
runs, name its model and the conversations. Numbers are compared within a run only: a run
is one call, or several with the same --run NAME, one after the other on an idle machine.

Examples:
  lintel-bench paper --shape mnist --batch 16,64
  lintel-bench paper --weight-type f32 --run a --json f32.json
  lintel-bench paper --weight-type bf16 --run a --against f32.json
  lintel-bench load --target http://127.0.0.1:8080 --users 16

Exit status: 0 done, 1 failed, 2 the command line makes no sense or asks for what cannot be
compared, 3 no server. `lintel-bench COMMAND --help` explains a command.)";

}  // namespace

int run_command_line(std::vector<std::string> arguments, cli::Console& console) {
  CLI::App app("Compares linear, softmax and LSH attention on this machine.", "lintel-bench");
  cli::CommandLine command_line{console, nullptr};
  app.set_version_flag("--version", "lintel-bench " LINTEL_VERSION);
  describe::add_flags(app);
  app.require_subcommand(1);
  app.footer(kFooter);
  add_paper(app, command_line);
  add_length(app, command_line);
  add_large(app, command_line);
  add_serve(app, command_line);
  add_load(app, command_line);
  add_speed(app, command_line);
  add_occlusion(app, command_line);
  add_adapters(app, command_line);
  add_sessions(app, command_line);
  add_fleet(app, command_line);
  return cli::run_program(app, command_line, std::move(arguments));
}

}  // namespace lintel::bench
