// SPDX-License-Identifier: Apache-2.0
// `lintel state save|list|delete`.
#include <memory>
#include <optional>

#include "client/cli/output.h"
#include "client/cli/session.h"

namespace lintel::cli {
namespace {

constexpr const char* kStateFooter = R"(
A named state is a session's state at a position, kept on the server under a name: sessions and
one-shot calls begin with it instead of reading the same prompt each time. It takes memory of the server
until it is deleted and belongs to its creator; all callers may use public ones.

Examples:
  lintel state save "$id" instructions
  lintel session create --initial-state instructions
  lintel generate --initial-state instructions --prompt "Dear" --max-new-tokens 40
  lintel state delete instructions)";

struct StateFlags {
  ConnectionFlags connection;
  const CLI::App* command = nullptr;  // whose flags these are
  std::string session, name;
  std::vector<std::string> names;  // to delete
  std::optional<std::int64_t> position;
  bool is_public = false;
  bool json = false;
};

void write_state(JsonWriter& json, const v1::NamedState& state) {
  json.begin_object().field("name", state.name()).field("model", state.model());
  json.field("adapter", state.adapter()).field("position", state.position());
  json.field("bytes", state.bytes()).field("public", state.is_public());
  json.field("digest", state.digest()).field("numerics", state.numerics()).end_object();
}

int run_save_state(const StateFlags& flags, Console& console) {
  v1::SaveStateRequest request;
  request.set_session_id(flags.session);
  request.set_name(flags.name);
  request.set_is_public(flags.is_public);
  if (flags.position) request.set_position(*flags.position);
  const v1::NamedState state =
      flags.connection.connect().save_state(request, &console.cancellation());
  if (flags.json) {
    JsonWriter json;
    write_state(json, state);
    console.out(json.take() + "\n");
  } else {
    console.out(state.name() + ": " + std::to_string(state.position()) + " values, " +
                std::to_string(state.bytes()) + " bytes\n");
  }
  return kOk;
}

int run_list_states(const StateFlags& flags, Console& console) {
  const auto states =
      flags.connection.connect().list_states(flags.connection.model, &console.cancellation());
  if (flags.json) {
    JsonWriter json;
    json.begin_array();
    for (const v1::NamedState& state : states) write_state(json, state);
    console.out(json.end_array().take() + "\n");
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "MODEL", "ADAPTER", "POSITION", "BYTES", "PUBLIC"}};
  for (const v1::NamedState& state : states) {
    rows.push_back({state.name(), state.model(), state.adapter().empty() ? "none" : state.adapter(),
                    std::to_string(state.position()), std::to_string(state.bytes()),
                    state.is_public() ? "yes" : "no"});
  }
  console.out(format_table(rows));
  return kOk;
}

int run_delete_states(const StateFlags& flags, Console& console) {
  const Client client = flags.connection.connect();
  return delete_each(flags.names, flags.json, *flags.command, console,
                     [&](const std::string& name) {
                       client.delete_state(name, flags.is_public, &console.cancellation());
                     });
}

}  // namespace

void add_state(CLI::App& app, CommandLine& command_line) {
  CLI::App* command = app.add_subcommand("state", "Save, show and delete named states");
  command->require_subcommand(1);
  command->footer(kStateFooter);
  auto flags = std::make_shared<StateFlags>();
  const auto add = [&](const char* name, const char* help, bool with_model,
                       int (*run)(const StateFlags&, Console&)) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_flag("--json", flags->json, "Print JSON, for programs");
    sub->footer(kStateFooter);
    flags->connection.add_to(*sub, with_model);
    on_chosen(*sub, command_line, [flags, sub, &command_line, run] {
      flags->command = sub;
      return run(*flags, command_line.console);
    });
    return sub;
  };
  CLI::App* save = add("save", "Keep a session's state under a name", false, run_save_state);
  save->add_option("SESSION", flags->session, "The session whose state it is")->required();
  save->add_option("NAME", flags->name, "Letters, digits, '.', '_' and '-'")->required();
  add_parsed(*save, "--position", flags->position, parse_int64, "P",
             "As of this position [the last]");
  add("list", "Show the named states one may begin with: of --model, or all", true,
      run_list_states);
  CLI::App* remove = add("delete", "Delete named states", false, run_delete_states);
  remove->add_option("NAME", flags->names, "The states")->required();
  for (CLI::App* sub : {save, remove}) {
    sub->add_flag("--public", flags->is_public, "For all callers: needs the role admin");
  }
}

}  // namespace lintel::cli
