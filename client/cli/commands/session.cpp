#include <ctime>
#include <memory>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/generate_flags.h"
#include "client/cli/commands/generate_output.h"
#include "client/cli/frame/json_writer.h"
#include "client/cli/frame/table.h"

namespace lintel::cli {
namespace {

constexpr const char* kSessionFooter = R"(
A session remembers its state on the server, so that later calls go on without resending. It belongs to
who made it, takes memory of the server until it is deleted, and may be evicted when nobody uses it.

Examples:
  id=$(lintel session create)
  lintel session continue "$id" --prompt "Once upon" --max-new-tokens 20
  lintel session continue "$id" --max-new-tokens 20
  lintel session delete "$id")";

struct SessionFlags {
  ConnectionFlags connection;
  std::string id;
  std::int64_t max_tokens = 0;
  std::string adapter;
  bool json = false;
};

// "2026-01-31T12:00:00Z"
std::string time_text(const google::protobuf::Timestamp& timestamp) {
  const std::time_t seconds = static_cast<std::time_t>(timestamp.seconds());
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "";
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

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
  json.end_object();
}

std::string max_tokens_text(const v1::Session& session) {
  return session.max_tokens() == 0 ? "unbounded" : std::to_string(session.max_tokens());
}

int run_create(const SessionFlags& flags, Console& console) {
  v1::CreateSessionRequest request;
  request.set_model(flags.connection.model);
  request.set_max_tokens(flags.max_tokens);
  request.set_adapter(flags.adapter);
  const v1::Session session =
      flags.connection.connect().create_session(request, &console.cancellation());
  JsonWriter json;
  if (flags.json) write_session(json, session);
  console.out((flags.json ? json.take() : session.id()) + "\n");
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
  console.out(format_table({
      {"id", session.id()},
      {"model", session.model()},
      {"adapter", session.adapter().empty() ? "none" : session.adapter()},
      {"position", std::to_string(session.position()) +
                       (session.has_pending_value() ? ", the last value not yet fed" : "")},
      {"busy", session.busy() ? "yes" : "no"},
      {"state", std::to_string(session.state_bytes()) + " bytes"},
      {"max tokens", max_tokens_text(session)},
      {"created", time_text(session.create_time())},
      {"last used", time_text(session.last_used_time())},
      {"idle timeout",
       std::to_string(static_cast<std::int64_t>(seconds_of(session.idle_timeout()))) + " s"},
  }));
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
  std::vector<std::vector<std::string>> rows = {
      {"ID", "MODEL", "POSITION", "MAX TOKENS", "STATE BYTES", "BUSY", "LAST USED"}};
  for (const v1::Session& session : sessions) {
    rows.push_back({session.id(), session.model(), std::to_string(session.position()),
                    max_tokens_text(session), std::to_string(session.state_bytes()),
                    session.busy() ? "yes" : "no", time_text(session.last_used_time())});
  }
  console.out(format_table(rows));
  return kOk;
}

int run_delete(const SessionFlags& flags, Console& console) {
  flags.connection.connect().delete_session(flags.id, &console.cancellation());
  if (flags.json) {
    console.out(JsonWriter().begin_object().field("deleted", flags.id).end_object().take() + "\n");
  }
  return kOk;
}

}  // namespace

void add_session(CLI::App& app, CommandLine& command_line) {
  CLI::App* command = app.add_subcommand("session", "Make, show, continue and delete sessions");
  command->require_subcommand(1);
  command->footer(kSessionFooter);

  auto flags = std::make_shared<SessionFlags>();
  const auto add = [&](const char* name, const char* help, bool with_model, bool with_id,
                       int (*run)(const SessionFlags&, Console&)) {
    CLI::App* sub = command->add_subcommand(name, help);
    if (with_id) {
      sub->add_option("ID", flags->id, "The session, as `lintel session create` printed it")
          ->required();
    }
    sub->add_flag("--json", flags->json, "Print JSON, for programs");
    sub->footer(kSessionFooter);
    flags->connection.add_to(*sub, with_model);
    on_chosen(*sub, command_line,
              [flags, &command_line, run] { return run(*flags, command_line.console); });
    return sub;
  };
  CLI::App* create = add("create", "Make a session and print its id", true, false, run_create);
  add_parsed(*create, "--max-tokens", flags->max_tokens, parse_int64, "N",
             "Most values it will ever hold, for less memory; 0: the model's limit [0]");
  add_adapter_flag(*create, flags->adapter);
  add("get", "Show one session", false, true, run_get_session);
  add("list", "Show the sessions one may see: of --model, or all", true, false, run_list_sessions);
  add("delete", "Delete a session and free its memory", false, true, run_delete);

  auto generate_flags = std::make_shared<GenerateFlags>();
  CLI::App* go_on = command->add_subcommand("continue", "Generate, going on where a session is");
  generate_flags->add_to(*go_on, /*for_session=*/true);
  go_on->footer(kSessionFooter);
  on_chosen(*go_on, command_line, [generate_flags, &command_line] {
    return run_generate(*generate_flags, command_line.console);
  });
}

}  // namespace lintel::cli
