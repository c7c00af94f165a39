// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "client/cli/commands.h"
#include "tools/describe/flags.h"

namespace lintel::cli {
namespace {

constexpr const char* kAdminFooter = R"(
The server asks for the role admin. A token has it (`lintel token new --roles admin`), or a client certificate that
the server's --admin-certificate names. A server without tokens grants it on plain text connections to a loopback
address or a unix socket.

Examples:
  lintel admin log-level
  lintel admin log-level debug --token @admin.token
  lintel token new alice --roles generate,admin --append tokens)";

struct AdminFlags {
  ConnectionFlags connection;
  std::string level;
};

int run_log_level(const AdminFlags& flags, Console& console) {
  const Client client = flags.connection.connect();
  const std::string level = flags.level.empty()
                                ? client.log_level(&console.cancellation())
                                : client.set_log_level(flags.level, &console.cancellation());
  console.out(level + "\n");
  return kOk;
}

}  // namespace

void add_admin(CLI::App& app, CommandLine& command_line) {
  CLI::App* command = app.add_subcommand("admin", "Change a running server: its log level");
  command->require_subcommand(1);
  command->footer(kAdminFooter);
  auto flags = std::make_shared<AdminFlags>();
  CLI::App* level =
      command->add_subcommand("log-level", "Show the log level, or set it until the next start");
  level->add_option("LEVEL", flags->level, "trace, debug, info, warning, error, critical or off")
      ->check(describe::offers({"trace", "debug", "info", "warning", "error", "critical", "off"}));
  flags->connection.add_to(*level, /*with_model=*/false);
  level->footer(kAdminFooter);
  on_chosen(*level, command_line,
            [flags, &command_line] { return run_log_level(*flags, command_line.console); });
}

}  // namespace lintel::cli
