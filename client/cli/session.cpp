#include "client/cli/session.h"

#include <cctype>
#include <chrono>
#include <ctime>
#include <memory>

#include "client/cli/error_text.h"
#include "client/cli/generate.h"
#include "client/cli/generate_flags.h"
#include "client/cli/generate_output.h"
#include "client/cli/model_choice.h"
#include "client/cli/session_commands.h"
#include "client/cli/table.h"

namespace lintel::cli {
namespace {

// "2026-01-31T12:00:00Z"
std::string time_text(const google::protobuf::Timestamp& timestamp) {
  const std::time_t seconds = static_cast<std::time_t>(timestamp.seconds());
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "";
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

std::string max_tokens_text(const v1::Session& session) {
  return session.max_tokens() == 0 ? "unbounded" : std::to_string(session.max_tokens());
}

std::string durability_text(v1::Durability durability) {
  std::string name = v1::Durability_Name(durability);
  name.erase(0, std::string("DURABILITY_").size());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Servers from before there was any say nothing.
  return durability == v1::DURABILITY_UNSPECIFIED || name.empty() ? "none" : name;
}

bool outlives_server(const v1::Session& session) {
  return session.durability() > v1::DURABILITY_NONE;
}

// A session that goes with the server is nowhere else.
std::string where_text(const v1::Session& session) {
  return session.in_memory() || !outlives_server(session) ? "memory" : "cold";
}

std::string interrupted_text(const v1::InterruptedCall& call) {
  return (call.call_id().empty() ? "one without a name" : call.call_id()) + ", from position " +
         std::to_string(call.start_position()) + ", stored up to " +
         std::to_string(call.stored_position());
}

struct CreateFlags {
  std::int64_t max_tokens = 0;
  std::string adapter, initial_state;
  std::uint32_t checkpoint_every = 0, checkpoints = 0;
  std::int64_t history_tokens = 0;
  std::optional<std::int64_t> window;
  std::string durability;
  std::optional<std::chrono::seconds> expire_after;
};

int run_create(const SessionFlags& flags, const CreateFlags& create, Console& console) {
  v1::CreateSessionRequest request;
  request.set_model(flags.connection.model);
  request.set_max_tokens(create.max_tokens);
  request.set_adapter(create.adapter);
  request.set_initial_state(create.initial_state);
  request.set_history_tokens(create.history_tokens);
  if (create.window) request.set_window(*create.window);
  request.set_durability(durability_of(create.durability));
  if (create.expire_after) {
    request.mutable_expire_after()->set_seconds(create.expire_after->count());
  }
  if (create.checkpoint_every != 0 || create.checkpoints != 0) {
    v1::CheckpointPolicy& policy = *request.mutable_checkpoints();
    policy.set_every_tokens(create.checkpoint_every);
    policy.set_keep(create.checkpoints);
  }
  const Client client = flags.connection.connect();
  const v1::Session session = with_load_hint(client, console.cancellation(), [&] {
    return client.create_session(request, &console.cancellation());
  });
  print_id(session, flags.json, console);
  return kOk;
}

int run_get_session(const SessionFlags& flags, Console& console) {
  const v1::Session session =
      flags.connection.connect().get_session(flags.id, &console.cancellation());
  if (flags.json) {
    JsonWriter json;
    write_session(json, session);
    console.out(json.take() + "\n");
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"id", session.id()},
      {"model", session.model()},
      {"adapter", session.adapter().empty() ? "none" : session.adapter()},
      {"position", std::to_string(session.position()) +
                       (session.has_pending_value() ? ", the last value not yet fed" : "")},
      {"oldest position", std::to_string(session.oldest_position())},
      {"window", session.window() == 0 ? "none" : std::to_string(session.window())},
      {"busy", session.busy() ? "yes" : "no"},
      {"state", std::to_string(session.state_bytes()) + " bytes"},
      {"max tokens", max_tokens_text(session)},
      {"created", time_text(session.create_time())},
      {"last used", time_text(session.last_used_time())},
      {"idle timeout",
       std::to_string(static_cast<std::int64_t>(seconds_of(session.idle_timeout()))) + " s"},
      {"durability", durability_text(session.durability())},
      {"where", where_text(session)},
  };
  if (session.has_interrupted()) {
    rows.push_back({"interrupted call", interrupted_text(session.interrupted())});
  }
  if (session.has_expire_time()) rows.push_back({"expires", time_text(session.expire_time())});
  rows.push_back({"digest", session.digest()});
  rows.push_back({"numerics", session.numerics()});
  console.out(format_table(rows));
  return kOk;
}

int run_list_sessions(const SessionFlags& flags, Console& console) {
  const auto sessions =
      flags.connection.connect().list_sessions(flags.connection.model, &console.cancellation());
  if (flags.json) {
    JsonWriter json;
    json.begin_array();
    for (const v1::Session& session : sessions) write_session(json, session);
    json.end_array();
    console.out(json.take() + "\n");
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"ID", "MODEL", "POSITION", "MAX TOKENS",
                                                 "STATE BYTES", "BUSY", "LAST USED", "DURABILITY",
                                                 "WHERE", "INTERRUPTED", "EXPIRES"}};
  for (const v1::Session& session : sessions) {
    rows.push_back({session.id(), session.model(), std::to_string(session.position()),
                    max_tokens_text(session), std::to_string(session.state_bytes()),
                    session.busy() ? "yes" : "no", time_text(session.last_used_time()),
                    durability_text(session.durability()), where_text(session),
                    session.has_interrupted() ? "yes" : "no",
                    session.has_expire_time() ? time_text(session.expire_time()) : "never"});
  }
  console.out(format_table(rows));
  return kOk;
}

int run_delete(const SessionFlags& flags, Console& console) {
  const Client client = flags.connection.connect();
  return delete_each(flags.ids, flags.json, *flags.command, console, [&](const std::string& id) {
    client.delete_session(id, &console.cancellation());
  });
}

void add_create(CLI::App& command, CommandLine& command_line) {
  auto create = std::make_shared<CreateFlags>();
  CLI::App& sub = add_session_command(
      command, command_line,
      {.name = "create", .help = "Make a session and print its id", .with_model = true},
      [create](const SessionFlags& flags, Console& console) {
        return run_create(flags, *create, console);
      });
  add_parsed(sub, "--max-tokens", create->max_tokens, parse_int64, "N",
             "Most values it will ever hold, for less memory; 0: the model's limit [0]");
  add_adapter_flag(sub, create->adapter);
  add_text(sub, "--initial-state", create->initial_state, "NAME",
           "Begin with this named state: see lintel state --help");
  add_parsed(sub, "--checkpoint-every", create->checkpoint_every, parse_uint32, "N",
             "Keep a state every N values, so that rewinding and forking re-read less [none]");
  add_parsed(sub, "--checkpoints", create->checkpoints, parse_uint32, "K",
             "States kept so, at most; each takes memory of the server [0]");
  add_parsed(sub, "--history-tokens", create->history_tokens, parse_int64, "N",
             "Values that can be gone back to; 0: the server's choice [0]");
  add_parsed(
      sub, "--window", create->window, parse_int64, "N",
      "Reset the state whenever it has read N values, and re-read the last N/2; 0: never [the "
      "server's choice: the initial state's, or what the model was trained on where that is "
      "known]");
  add_durability_flag(
      sub, create->durability,
      "What of it outlives the server, which needs a store for it. none: nothing; call: calls that "
      "were seen to end; input: every call, interrupted ones are continued; token: each value "
      "before it is sent, which is slower [input where the server has a store, else none]");
  add_parsed(sub, "--expire-after", create->expire_after, parse_duration, "DURATION",
             "Remove it, if it outlives the server, when unused for so long: 90s, 30m, 72h, 30d "
             "[the server's choice]");
}

void add_continue(CLI::App& command, CommandLine& command_line) {
  auto generate_flags = std::make_shared<GenerateFlags>();
  CLI::App* go_on = command.add_subcommand("continue", "Generate, continuing a session");
  generate_flags->add_to(*go_on, /*for_session=*/true);
  go_on->footer(kSessionFooter);
  on_chosen(*go_on, command_line, [generate_flags, &command_line] {
    return run_generate(*generate_flags, command_line.console);
  });
}

}  // namespace

void write_session(JsonWriter& json, const v1::Session& session) {
  json.begin_object();
  json.field("id", session.id()).field("model", session.model());
  json.field("adapter", session.adapter());
  json.field("position", session.position());
  json.field("has_pending_value", session.has_pending_value()).field("busy", session.busy());
  json.field("state_bytes", session.state_bytes()).field("max_tokens", session.max_tokens());
  json.field("create_time", time_text(session.create_time()));
  json.field("last_used_time", time_text(session.last_used_time()));
  json.field("idle_timeout_seconds", seconds_of(session.idle_timeout()));
  json.field("oldest_position", session.oldest_position()).field("digest", session.digest());
  json.field("numerics", session.numerics()).field("window", session.window());
  json.field("durability", durability_text(session.durability()));
  json.field("in_memory", where_text(session) == "memory");
  if (session.has_interrupted()) {
    const v1::InterruptedCall& call = session.interrupted();
    json.key("interrupted").begin_object().field("call_id", call.call_id());
    json.field("start_position", call.start_position());
    json.field("stored_position", call.stored_position()).end_object();
  }
  if (session.has_expire_time()) json.field("expire_time", time_text(session.expire_time()));
  json.end_object();
}

int delete_each(const std::vector<std::string>& names, bool as_json, const CLI::App& command,
                Console& console, const std::function<void(const std::string&)>& erase) {
  int code = kOk;
  for (const std::string& name : names) {
    try {
      erase(name);
    } catch (const CallError& error) {
      if (names.size() == 1 || console.cancellation().cancelled() ||
          error.code() == grpc::StatusCode::UNAVAILABLE ||
          error.code() == grpc::StatusCode::UNAUTHENTICATED) {
        throw;
      }
      console.flush();
      console.err("lintel: " + call_error_text(error, command) + "\n");
      code = kFailed;
      continue;
    }
    if (as_json) {
      console.out(JsonWriter().begin_object().field("deleted", name).end_object().take() + "\n");
    }
  }
  return code;
}

v1::Durability durability_of(const std::string& name) {
  if (name == "none") return v1::DURABILITY_NONE;
  if (name == "call") return v1::DURABILITY_CALL;
  if (name == "input") return v1::DURABILITY_INPUT;
  if (name == "token") return v1::DURABILITY_TOKEN;
  return v1::DURABILITY_UNSPECIFIED;
}

void add_durability_flag(CLI::App& app, std::string& durability, const std::string& help) {
  add_text(app, "--durability", durability, "LEVEL", help)
      ->check(CLI::IsMember({"none", "call", "input", "token"}));
}

void print_id(const v1::Session& session, bool as_json, Console& console) {
  JsonWriter json;
  if (as_json) write_session(json, session);
  console.out((as_json ? json.take() : session.id()) + "\n");
}

CLI::App& add_session_command(CLI::App& command, CommandLine& command_line,
                              const SessionCommand& about,
                              std::function<int(const SessionFlags&, Console&)> run) {
  auto flags = std::make_shared<SessionFlags>();
  CLI::App* sub = command.add_subcommand(about.name, about.help);
  flags->command = sub;
  if (about.with_id) {
    sub->add_option("ID", flags->id, "The session, as `lintel session create` printed it")
        ->required();
  }
  if (about.with_ids) {
    sub->add_option("ID", flags->ids, "The sessions, as `lintel session create` printed them")
        ->required();
  }
  if (about.with_json) sub->add_flag("--json", flags->json, "Print JSON, for programs");
  sub->footer(kSessionFooter);
  flags->connection.add_to(*sub, about.with_model);
  on_chosen(*sub, command_line, [flags, &command_line, run = std::move(run)] {
    return run(*flags, command_line.console);
  });
  return *sub;
}

void add_session(CLI::App& app, CommandLine& command_line) {
  CLI::App* command =
      app.add_subcommand("session", "Make, show, continue, copy and delete sessions");
  command->require_subcommand(1);
  command->footer(kSessionFooter);
  add_create(*command, command_line);
  add_session_command(*command, command_line,
                      {.name = "get", .help = "Show one session", .with_id = true},
                      run_get_session);
  add_session_command(*command, command_line,
                      {.name = "list",
                       .help = "Show the sessions one may see: of --model, or all",
                       .with_model = true},
                      run_list_sessions);
  add_session_command(
      *command, command_line,
      {.name = "delete", .help = "Delete sessions and free their memory", .with_ids = true},
      run_delete);
  add_continue(*command, command_line);
  add_session_copies(*command, command_line);
  add_session_history(*command, command_line);
}

}  // namespace lintel::cli
