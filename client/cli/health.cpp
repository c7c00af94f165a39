#include <memory>

#include "client/cli/commands.h"
#include "client/cli/json_writer.h"

namespace lintel::cli {
namespace {

struct HealthFlags {
  ConnectionFlags connection;
  std::string service;
  bool json = false;
};

int run_health(const HealthFlags& flags, Console& console) {
  const bool serving = flags.connection.connect().serving(flags.service, &console.cancellation());
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
  CLI::App* command =
      app.add_subcommand("health", "Ask whether the server serves: exit status 0 yes, 3 no");
  add_text(*command, "--service", flags->service, "NAME",
           "A service, e.g. lintel.v1.GenerationService [the server as a whole]");
  command->add_flag("--json", flags->json, "Print an object");
  flags->connection.add_to(*command, /*with_model=*/false);
  command->footer("\nExample:\n  until lintel health --deadline 1; do sleep 1; done");
  command->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] { return run_health(*flags, command_line.console); };
  });
}

}  // namespace lintel::cli
