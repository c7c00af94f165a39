// `lintel session fork|rewind|snapshot|restore`.
#include <memory>
#include <optional>
#include <utility>

#include "client/cli/output_file.h"
#include "client/cli/progress.h"
#include "client/cli/session_commands.h"

namespace lintel::cli {
namespace {

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
                                      ": a copy of it needs --position P, how many of its values "
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

}  // namespace

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
  add_position(fork, "Values that the copies have; needed while it is in use [all]");
  add_parsed(fork, "--count", copy->count, parse_uint32, "N", "Copies, at most 64 [1]");
  add_durability_flag(fork, copy->durability,
                      "What of the copies outlives the server, as of `session create` [as this "
                      "one's]");

  CLI::App& rewind = add({.name = "rewind",
                          .help = "Take back a session's values from a position on",
                          .with_id = true},
                         run_rewind);
  add_position(rewind, "Values that remain")->required();
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
                    "Leave out the values: smaller, and what is restored cannot be taken back");
  snapshot.add_flag("--without-state", copy->without_state,
                    "Leave out the state: much smaller, and the values are re-read");

  CLI::App& restore = add({.name = "restore",
                           .help = "Make a session of a snapshot, and print its id",
                           .with_model = true},
                          run_restore);
  restore.add_option("FILE", copy->snapshot, "The snapshot; - is standard input")->required();
  restore.add_flag("--verify", copy->verify,
                   "Re-read its values and compare the states, bit for bit");
  restore.add_flag("--accept-other-numerics", copy->accept_other_numerics,
                   "Also where this machine computes other bits than the snapshot's did");
  add_durability_flag(restore, copy->durability,
                      "What of it outlives the server, as of `session create` [input where the "
                      "server has a store, else none]");
}

}  // namespace lintel::cli
