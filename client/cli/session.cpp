// SPDX-License-Identifier: Apache-2.0
// `lintel session` and `lintel state`.
#include <cctype>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/generate.h"
#include "client/cli/generate_output.h"
#include "client/cli/model_choice.h"
#include "client/cli/output.h"
#include "client/cli/program.h"

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

constexpr const char* kSessionFooter = R"(
A session keeps its state on the server, and the tokens that led to it: later calls continue without
resending, and it can be copied, rewound to a position and moved. It belongs to its creator, takes
memory of the server until it is deleted, and may be evicted while it is idle. Position P is where P
tokens have been seen: a fork or a rewind to P keeps the tokens before it.

Sessions of a server with a store outlive it (--durability): a call that a crash or a restart cuts off
resumes where it was, without a token lost or printed twice. Idle sessions are in the store alone (cold)
until the next call. A call that was never resumed is shown as interrupted: the same command with
--call-id finishes it, rewind abandons it.

Examples:
  id=$(lintel session create)
  lintel session continue "$id" --prompt "Once upon" --max-new-tokens 20 --seed 1
  id=$(lintel session create --durability token --expire-after 30d)
  lintel session continue "$id" --max-new-tokens 2000 --retry 120
  other=$(lintel session fork "$id" --position 9)
  lintel session continue "$other" --max-new-tokens 20 --seed 2
  lintel session rewind "$id" --position 9
  lintel session snapshot "$id" --out id.snapshot
  lintel session restore id.snapshot
  lintel session delete "$id" "$other")";

struct SessionFlags {
  ConnectionFlags connection;
  const CLI::App* command = nullptr;  // the owner of these flags
  std::string id;
  std::vector<std::string> ids;  // of commands with_ids
  bool json = false;
};

struct SessionCommand {
  const char* name;
  const char* help;
  bool with_model = false;
  bool with_id = false;
  bool with_ids = false;  // one or several
  bool with_json = true;
};

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
  if (session.numerics_changed_at() > 0) {
    json.field("numerics_changed_at", session.numerics_changed_at());
  }
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

// A line: its id, or all of it.
void print_id(const v1::Session& session, bool as_json, Console& console) {
  console.out(as_json ? json_line(write_session, session) : session.id() + "\n");
}

// Empty where it was not given: UNSPECIFIED.
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

// Deletes one after the other by `erase`, and prints which when `as_json`. What cannot be deleted
// is named and the others are deleted all the same, unless no server answers or knows the caller.
// Returns an ExitCode; throws CallError where the call for the only one fails.
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

// A sub-command of `command`, with the flags that all of them have.
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
    console.out(json_line(write_session, session));
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"id", session.id()},
      {"model", session.model()},
      {"adapter", session.adapter().empty() ? "none" : session.adapter()},
      {"position", std::to_string(session.position()) +
                       (session.has_pending_value() ? ", the last token not yet fed" : "")},
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
  if (session.numerics_changed_at() > 0) {
    rows.push_back(
        {"numerics changed at", "token " + std::to_string(session.numerics_changed_at())});
  }
  console.out(format_table(rows));
  return kOk;
}

int run_list_sessions(const SessionFlags& flags, Console& console) {
  const auto sessions =
      flags.connection.connect().list_sessions(flags.connection.model, &console.cancellation());
  if (flags.json) {
    console.out(json_array_line(write_session, sessions));
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
             "Most tokens it will ever hold, for less memory; 0: the model's limit [0]");
  add_adapter_flag(sub, create->adapter);
  add_text(sub, "--initial-state", create->initial_state, "NAME",
           "Begin with this named state: see lintel state --help");
  add_parsed(sub, "--checkpoint-every", create->checkpoint_every, parse_uint32, "N",
             "Keep a state every N tokens, so that rewinding and forking re-read less [none]");
  add_parsed(sub, "--checkpoints", create->checkpoints, parse_uint32, "K",
             "States kept so, at most; each takes memory of the server [0]");
  add_parsed(sub, "--history-tokens", create->history_tokens, parse_int64, "N",
             "Tokens that can be gone back to; 0: the server's choice [0]");
  add_parsed(
      sub, "--window", create->window, parse_int64, "N",
      "Reset the state whenever it has read N tokens, and re-read the last N/2; 0: never [the "
      "server's choice: the initial state's, or what the model was trained on where that is "
      "known]");
  add_durability_flag(
      sub, create->durability,
      "What of it outlives the server, which needs a store for it. none: nothing; call: calls that "
      "were seen to end; input: every call, interrupted ones are continued; token: each token "
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

// `lintel session fork|rewind|snapshot|restore`.

struct CopyFlags {
  std::optional<std::int64_t> position;
  std::uint32_t count = 1;
  std::string expected_digest;
  std::string durability;
  std::string out;
  bool without_history = false, without_state = false;
  std::string snapshot;
  bool verify = false, accept_other_numerics = false;
};

int run_fork(const SessionFlags& flags, const CopyFlags& copy, Console& console) {
  v1::ForkSessionRequest request;
  request.set_id(flags.id);
  request.set_count(copy.count);
  request.set_durability(durability_of(copy.durability));
  if (copy.position) request.set_position(*copy.position);
  const Client client = flags.connection.connect();
  try {
    for (const v1::Session& fork : client.fork_session(request, &console.cancellation())) {
      print_id(fork, flags.json, console);
    }
  } catch (const CallError& error) {
    // Held by another server it is in use as well, and a position does not help.
    const bool is_busy = error.code() == grpc::StatusCode::ABORTED && error.error_reason().empty();
    if (!is_busy || copy.position) throw;
    throw CallError(error.code(), error.message() +
                                      ": a copy of it needs --position P, how many of its tokens "
                                      "the copy has");
  }
  return kOk;
}

int run_rewind(const SessionFlags& flags, const CopyFlags& copy, Console& console) {
  v1::RewindSessionRequest request;
  request.set_id(flags.id);
  request.set_position(copy.position.value_or(0));
  if (!copy.expected_digest.empty()) request.set_expected_digest(copy.expected_digest);
  const v1::Session session =
      flags.connection.connect().rewind_session(request, &console.cancellation());
  if (flags.json) print_id(session, /*as_json=*/true, console);
  return kOk;
}

int run_snapshot(const SessionFlags& flags, const CopyFlags& copy, Console& console) {
  v1::SnapshotSessionRequest request;
  request.set_id(flags.id);
  if (copy.position) request.set_position(*copy.position);
  request.set_without_history(copy.without_history);
  request.set_without_state(copy.without_state);
  const Client client = flags.connection.connect();
  OutputFile file("--out", copy.out);
  std::string snapshot;  // written when it is whole: half of one is of no use
  std::unique_ptr<Progress> progress;
  client.snapshot_session(
      request,
      [&](std::string_view piece, std::int64_t total) {
        if (progress == nullptr) progress = std::make_unique<Progress>(console, total, "bytes");
        progress->add(static_cast<std::int64_t>(piece.size()));
        snapshot += piece;
      },
      &console.cancellation());
  file.write(snapshot);
  return kOk;
}

int run_restore(const SessionFlags& flags, const CopyFlags& copy, Console& console) {
  v1::RestoreHeader header;
  header.set_model(flags.connection.model);
  header.set_verify(copy.verify);
  header.set_durability(durability_of(copy.durability));
  header.set_accept_other_numerics(copy.accept_other_numerics);
  const std::string snapshot = console.read_file("FILE", copy.snapshot);
  const Client client = flags.connection.connect();
  const v1::Session session = [&] {
    Progress progress(console, static_cast<std::int64_t>(snapshot.size()), "bytes");
    return client.restore_session(
        header, snapshot, [&progress](std::int64_t bytes) { progress.add(bytes); },
        &console.cancellation());
  }();
  print_id(session, flags.json, console);
  return kOk;
}

void add_session_copies(CLI::App& command, CommandLine& command_line) {
  auto copy = std::make_shared<CopyFlags>();
  const auto add = [&](const SessionCommand& about,
                       int (*run)(const SessionFlags&, const CopyFlags&, Console&)) -> CLI::App& {
    return add_session_command(command, command_line, about,
                               [copy, run](const SessionFlags& flags, Console& console) {
                                 return run(flags, *copy, console);
                               });
  };
  const auto add_position = [&](CLI::App& sub, const char* help) {
    return add_parsed(sub, "--position", copy->position, parse_int64, "P", help);
  };

  CLI::App& fork = add({.name = "fork",
                        .help = "Copy a session, also one in use, and print the copies' ids",
                        .with_id = true},
                       run_fork);
  add_position(fork, "Tokens that the copies have; needed while it is in use [all]");
  add_parsed(fork, "--count", copy->count, parse_uint32, "N", "Copies, at most 64 [1]");
  add_durability_flag(fork, copy->durability,
                      "What of the copies outlives the server, as of `session create` [as this "
                      "one's]");

  CLI::App& rewind = add({.name = "rewind",
                          .help = "Take back a session's tokens from a position on",
                          .with_id = true},
                         run_rewind);
  add_position(rewind, "Tokens that remain")->required();
  add_text(rewind, "--expected-digest", copy->expected_digest, "DIGEST",
           "Only while its history is this one: see lintel session get");

  CLI::App& snapshot = add({.name = "snapshot",
                            .help = "Write all that a session is to a file",
                            .with_id = true,
                            .with_json = false},
                           run_snapshot);
  add_text(snapshot, "--out", copy->out, "FILE", "Where to write it")->required();
  add_position(snapshot, "As of this position [the last]");
  snapshot.add_flag("--without-history", copy->without_history,
                    "Leave out the tokens: smaller, and what is restored cannot be taken back");
  snapshot.add_flag("--without-state", copy->without_state,
                    "Leave out the state: much smaller, and the tokens are re-read");

  CLI::App& restore = add({.name = "restore",
                           .help = "Make a session of a snapshot, and print its id",
                           .with_model = true},
                          run_restore);
  restore.add_option("FILE", copy->snapshot, "The snapshot; - is standard input")->required();
  restore.add_flag("--verify", copy->verify,
                   "Re-read its tokens and compare the states, bit for bit");
  restore.add_flag("--accept-other-numerics", copy->accept_other_numerics,
                   "Also where this machine computes other bits than the snapshot's did");
  add_durability_flag(restore, copy->durability,
                      "What of it outlives the server, as of `session create` [input where the "
                      "server has a store, else none]");
}

// `lintel session history`.

struct HistoryFlags {
  std::optional<std::int64_t> from, to;
  std::string format;
};

const char* source_name(v1::ValueSource source) {
  switch (source) {
    case v1::VALUE_SOURCE_SAMPLED:
      return "sampled";
    case v1::VALUE_SOURCE_GIVEN:
      return "given";
    case v1::VALUE_SOURCE_PROMPT:
      return "prompt";
    default:
      return "";
  }
}

std::string chunk_json(const v1::Chunk& chunk) {
  JsonWriter json;
  json.begin_object().field("first_position", chunk.first_position());
  json.field("source", source_name(chunk.source())).key("tokens").begin_array();
  for (const std::int32_t token : chunk.tokens()) json.value(token);
  return json.end_array().end_object().take() + "\n";
}

// Bytes as they are, or ids with commas between them.
std::string chunk_text(const v1::Chunk& chunk, bool as_bytes, bool is_first) {
  std::string text;
  for (const std::int32_t token : chunk.tokens()) {
    if (as_bytes) {
      text.push_back(static_cast<char>(token));
    } else {
      text += (is_first ? "" : ",") + std::to_string(token);
    }
    is_first = false;
  }
  return text;
}

int run_history(const SessionFlags& flags, const HistoryFlags& history, Console& console) {
  const Client client = flags.connection.connect();
  std::string format = history.format;
  if (format.empty() || format == "text") {
    const v1::Session session = client.get_session(flags.id, &console.cancellation());
    const bool is_bytes =
        client.get_model(session.model(), &console.cancellation()).modality() == "bytes";
    if (format == "text" && !is_bytes) {
      throw UsageError("--format text: this model's tokens are no bytes; use ids or jsonl");
    }
    format = is_bytes ? "text" : "ids";
  }
  v1::ReadHistoryRequest request;
  request.set_id(flags.id);
  request.set_from_position(history.from.value_or(0));
  if (history.to) request.set_to_position(*history.to);
  // Without --from what is left of a history that was cut off at its beginning.
  if (!history.from) {
    const v1::Session session = client.get_session(flags.id, &console.cancellation());
    request.set_from_position(session.oldest_position());
  }
  bool is_first = true;
  client.read_history(
      request,
      [&](const v1::Chunk& chunk) {
        console.out(format == "jsonl" ? chunk_json(chunk)
                                      : chunk_text(chunk, format == "text", is_first));
        is_first = false;
      },
      &console.cancellation());
  if (format == "ids" || (format == "text" && console.out_is_terminal())) console.out("\n");
  return kOk;
}

void add_session_history(CLI::App& command, CommandLine& command_line) {
  auto history = std::make_shared<HistoryFlags>();
  CLI::App& sub = add_session_command(command, command_line,
                                      {.name = "history",
                                       .help = "Print the tokens of a session",
                                       .with_id = true,
                                       .with_json = false},
                                      [history](const SessionFlags& flags, Console& console) {
                                        return run_history(flags, *history, console);
                                      });
  add_parsed(sub, "--from", history->from, parse_int64, "P",
             "First position [the oldest there is]");
  add_parsed(sub, "--to", history->to, parse_int64, "P", "Position behind the last [all]");
  sub.add_option("--format", history->format,
                 "text: bytes as they are; ids: token ids; jsonl: an object for each run of tokens "
                 "with their source [text for byte models, else ids]")
      ->check(CLI::IsMember({"text", "ids", "jsonl"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

// `lintel state save|list|delete`.

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
  const CLI::App* command = nullptr;  // the owner of these flags
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
  console.out(flags.json ? json_line(write_state, state)
                         : state.name() + ": " + std::to_string(state.position()) + " tokens, " +
                               std::to_string(state.bytes()) + " bytes\n");
  return kOk;
}

int run_list_states(const StateFlags& flags, Console& console) {
  const auto states =
      flags.connection.connect().list_states(flags.connection.model, &console.cancellation());
  if (flags.json) {
    console.out(json_array_line(write_state, states));
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
