// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/output.h"

namespace lintel::cli {
namespace {

struct HealthFlags {
  ConnectionFlags connection;
  std::string service;
  bool json = false;
};

// A server that hangs for longer does not serve.
constexpr double kDefaultDeadlineSeconds = 5;

bool is_serving(const HealthFlags& flags, Console& console) {
  try {
    return flags.connection.connect().serving(flags.service, &console.cancellation());
  } catch (const CallError& error) {
    if (error.code() != grpc::StatusCode::DEADLINE_EXCEEDED) throw;
    console.err("lintel: no answer within --deadline\n");
    return false;
  }
}

int run_health(const HealthFlags& flags, Console& console) {
  const bool serving = is_serving(flags, console);
  if (flags.json) {
    JsonWriter json;
    json.begin_object().field("service", flags.service).field("serving", serving).end_object();
    console.out(json.take() + "\n");
  } else {
    console.out(serving ? "serving\n" : "not serving\n");
  }
  return serving ? kOk : kUnavailable;
}

}  // namespace

void add_health(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<HealthFlags>();
  CLI::App* command = app.add_subcommand(
      "health", "Ask whether the server serves: exit status 0 yes, 3 no or no answer");
  add_text(*command, "--service", flags->service, "NAME",
           "A service, e.g. lintel.v1.GenerationService, or model/NAME [the server as a whole]");
  command->add_flag("--json", flags->json, "Print an object");
  flags->connection.deadline_seconds = kDefaultDeadlineSeconds;
  flags->connection.add_to(*command, /*with_model=*/false);
  command->footer(
      "\nExit status: 0 serving; 3 not serving, no server, or no answer within --deadline; 1 "
      "anything else,\na service that the server does not know for one.\n\nExamples:\n"
      "  lintel health\n"
      "  lintel health --service model/mnist-linear\n"
      "  until lintel health --deadline 1; do sleep 1; done");
  on_chosen(*command, command_line,
            [flags, &command_line] { return run_health(*flags, command_line.console); });
}

}  // namespace lintel::cli
