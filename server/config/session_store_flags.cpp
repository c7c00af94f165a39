#include "server/config/session_store_flags.h"

#include <optional>

namespace lintel {
namespace {

using std::chrono::milliseconds;

using Handover = std::optional<std::chrono::milliseconds>;

Handover parse_handover(const std::string& text) {
  if (text == "off") return ServerOptions::DurableOptions::kNever;
  return parse_duration(text);
}

std::string show_handover(const Handover& after) {
  if (!after) return "";
  return *after == ServerOptions::DurableOptions::kNever ? "off" : format_duration(*after);
}

ServerOptions::DurableOptions& durable(ServerOptions& options) { return options.durable; }
ServerOptions::SharedStoreOptions& shared(ServerOptions& options) { return options.shared; }

}  // namespace

std::chrono::milliseconds handover_after(const ServerOptions::DurableOptions& options) {
  constexpr std::chrono::milliseconds kShared{5000};
  const std::string store = options.store.string();
  const bool is_shared = store.rfind("redis://", 0) == 0 || store.rfind("rediss://", 0) == 0;
  return options.drain_handover_ms.value_or(is_shared ? kShared
                                                      : ServerOptions::DurableOptions::kNever);
}

std::vector<Flag> session_store_flags() {
  using Options = ServerOptions::DurableOptions;
  using Level = std::optional<Durability>;
  return {
      path_flag("--session-store", durable, &Options::store, "DIR",
                "Directory, of this server alone, in which sessions outlive it: after an end, a "
                "crash or a loss of power they are there under their ids when a server begins on "
                "it. Made where it is not there, readable by its user alone. Or a store that "
                "servers share: redis://HOST:PORT, of a Redis or Valkey server, or of some of a "
                "cluster's with commas between; rediss:// with TLS. Without it sessions are in "
                "memory"),
      choice_flag<Options, Level>(
          "--session-durability", durable, &Options::durability, "LEVEL",
          {{"none", Level(Durability::kNone)},
           {"call", Level(Durability::kCall)},
           {"input", Level(Durability::kInput)},
           {"token", Level(Durability::kToken)}},
          "What of a session outlives the server, unless its maker says: none; call: calls whose "
          "end was seen; input: also a call in progress, which repeated by its call_id gives the "
          "same values and continues; token: the same, and each value is on the disk before it is "
          "sent. Default: input with --session-store, else none"),
      duration_flag("--session-commit-interval", durable, &Options::commit_interval_ms,
                    milliseconds(0),
                    "What calls have to write is gathered for this long into one commit where "
                    "several write; so much later come values at the level token, and up to four "
                    "times as much where more than 16 streams write"),
      number_flag(
          "--session-park-tokens", durable, &Options::park_tokens, 1, 1'000'000'000,
          "The state is stored, too, on a call's way and at its end, if so many values have "
          "come since the last time; at its end a quarter of them where memory is short, and "
          "when the server ends. A session that is not in memory reads the others again, at "
          "the speed of a prompt"),
      bytes_flag("--session-store-size", durable, &Options::store_size_bytes, 1 << 20, kMostBytes,
                 "Room on the disk for states of each size; where it is full, sessions read their "
                 "values again"),
      number_flag("--session-store-threads", durable, &Options::store_threads, 1, 64,
                  "Threads that wait for the disk: calls that name a session begin on them"),
      number_flag("--session-load-queue", durable, &Options::load_queue, 1, 1'000'000,
                  "Calls that wait for one of them; one more is refused"),
      duration_flag("--session-expire", durable, &Options::expire, std::chrono::seconds(1),
                    "A stored session that is unused for this long is removed, unless its maker "
                    "says"),
      choice_flag<Options, bool>(
          "--session-numerics", durable, &Options::takes_other_numerics, "WHAT",
          {{"warn", true}, {"strict", false}},
          "Stored sessions that were computed with other numerics. warn: they continue, the log "
          "and Session.numerics_changed_at say so; strict: calls on them are refused"),
      duration_flag("--store-broken-timeout", durable, &Options::store_broken_timeout_ms,
                    milliseconds(0),
                    "Time after a failed write to the store until /healthz and v2/health/live "
                    "fail, so that the server is restarted: only a start opens the store again. "
                    "Readiness fails at once. 0: never"),
      text_flag("--drain-handover", durable, &Options::drain_handover_ms, "DURATION",
                parse_handover, show_handover,
                "After SIGTERM calls on such sessions that have a call_id may run for this long; "
                "then they end with CALL_MOVED, and resume where they are repeated: on another "
                "server of the store, or on this one's successor. off: only at the end of "
                "--drain-timeout. Default: 5s with a store that servers share, else off"),
  };
}

std::vector<Flag> shared_store_flags() {
  using Options = ServerOptions::SharedStoreOptions;
  return {
      duration_flag("--session-lease", shared, &Options::lease_ms, std::chrono::seconds(2),
                    "For so long at most a session stays with a server that is gone while a call "
                    "of it ran; a call whose server does not reach the store for this long, less "
                    "a second, ends. Above cluster-node-timeout"),
      text_flag(
          "--session-store-wait-replicas", shared, &Options::wait_replicas, "N",
          [](const std::string& text) {
            return std::optional<int>(static_cast<int>(parse_whole_number(text, 0, 16)));
          },
          [](const std::optional<int>& replicas) {
            return replicas ? std::to_string(*replicas) : std::string();
          },
          "What is written counts as stored when so many replicas of its Redis master have it. "
          "Default: 1 where there are replicas"),
      duration_flag("--session-store-wait", shared, &Options::wait_ms, milliseconds(1),
                    "For so long these are waited for; then it is written again"),
      path_flag("--session-store-credentials", shared, &Options::credentials, "FILE",
                "How the store knows this server: a line with the name of a user and a line with "
                "its password; of the password alone where it is that of the default user"),
      path_flag("--session-store-ca", shared, &Options::ca, "FILE",
                "Certificates of who signed those of a rediss:// store, PEM. Default: the "
                "system's"),
      path_flag("--session-store-cert", shared, &Options::cert, "FILE",
                "This server's certificate for a rediss:// store that asks for one, PEM"),
      path_flag("--session-store-key", shared, &Options::key, "FILE",
                "Its private key, PEM, without a password"),
  };
}

}  // namespace lintel
