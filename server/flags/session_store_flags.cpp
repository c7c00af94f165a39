#include "server/flags/session_store_flags.h"

#include <optional>

namespace lintel {
namespace {

using std::chrono::milliseconds;

ServerOptions::DurableOptions& durable(ServerOptions& options) { return options.durable; }

}  // namespace

std::vector<Flag> session_store_flags() {
  using Options = ServerOptions::DurableOptions;
  using Level = std::optional<Durability>;
  return {
      path_flag("--session-store", durable, &Options::store, "DIR",
                "Directory, of this server alone, in which sessions outlive it: after an end, a "
                "crash or a loss of power they are there under their ids when a server begins on "
                "it. Made where it is not there, readable by its user alone. Without it sessions "
                "are in memory"),
      choice_flag<Options, Level>(
          "--session-durability", durable, &Options::durability, "LEVEL",
          {{"none", Level(Durability::kNone)},
           {"call", Level(Durability::kCall)},
           {"input", Level(Durability::kInput)},
           {"token", Level(Durability::kToken)}},
          "What of a session outlives the server, unless its maker says: none; call: calls whose "
          "end was seen; input: also a call in progress, which repeated by its call_id gives the "
          "same values and goes on; token: the same, and each value is on the disk before it is "
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
          "when the server ends. A session that is not in memory reads the others anew, at "
          "the speed of a prompt"),
      bytes_flag("--session-store-size", durable, &Options::store_size_bytes, 1 << 20, kMostBytes,
                 "Room on the disk for states of each size; where it is full, sessions read their "
                 "values anew"),
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
          "Of stored sessions whose values a machine of other bits computed: warn: they go on, the "
          "log and Session.numerics_changed_at say so; strict: calls on them are refused"),
  };
}

}  // namespace lintel
