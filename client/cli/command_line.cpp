#include "client/cli/command_line.h"

#include "client/cli/commands.h"
#include "client/cli/program.h"
#include "client/cli/session.h"
#include "tools/describe/flags.h"

namespace lintel::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  lintel health
  lintel generate --prompt "Once upon a time" --max-new-tokens 200
  lintel complete --images t10k-images-idx3-ubyte.gz --index 0-9 --occlude bottom:14 --watch
  lintel score --input sequences.jsonl --output scores.jsonl

LINTEL_ADDRESS, LINTEL_MODEL, LINTEL_DEADLINE, LINTEL_TOKEN, LINTEL_TLS_CA, LINTEL_TLS_CERT,
LINTEL_TLS_KEY and LINTEL_PROXY stand for the flags of these names, which win over them.
Exit status: 0 done, 1 failed, 2 the command line makes no sense, 3 no server or not serving. A command
that Ctrl-C or another signal ends dies of it: 130 in a shell. A second signal ends it at once.
`lintel COMMAND --help` or `lintel help COMMAND` explains a command.)";

}  // namespace

int run_command_line(std::vector<std::string> arguments, Console& console) {
  CLI::App app("Talks to a Lintel server: streams from linear transformers over gRPC.", "lintel");
  CommandLine command_line{console, nullptr};
  app.set_version_flag("--version", "lintel " LINTEL_VERSION);
  describe::add_flags(app);
  app.require_subcommand(1);
  app.footer(kFooter);
  add_generate(app, command_line);
  add_complete(app, command_line);
  add_score(app, command_line);
  add_session(app, command_line);
  add_state(app, command_line);
  add_model(app, command_line);
  add_health(app, command_line);
  add_admin(app, command_line);
  add_token(app, command_line);
  return run_program(app, command_line, std::move(arguments));
}

}  // namespace lintel::cli
