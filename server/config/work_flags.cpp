#include "server/config/work_flags.h"

namespace lintel {
namespace {

using std::chrono::milliseconds;

Scheduler::Options& scheduling(ServerOptions& options) { return options.models.scheduling; }
SessionStore::Options& session_options(ServerOptions& options) { return options.sessions; }
PrefixCache::Options& prefix_options(ServerOptions& options) { return options.prefixes; }
ServerOptions::InitialStates& initial_states(ServerOptions& options) {
  return options.initial_states;
}
StreamingOptions& streaming(ServerOptions& options) { return options.streaming; }

Flag workers_flag() {
  Flag flag =
      number_flag("--workers", scheduling, &Scheduler::Options::workers, 1, 1024,
                  "Worker threads; the default is one per processor that this process, or its "
                  "container, has time on");
  flag.default_of_machine = true;
  return flag;
}

// A number, or "auto", which is held as 0.
Flag number_or_auto(std::string name, int Scheduler::Options::*member, int low, int high,
                    std::string help) {
  const auto parse = [low, high](const std::string& text) {
    return text == "auto" ? 0 : static_cast<int>(parse_whole_number(text, low, high));
  };
  const auto show = [](int number) { return number == 0 ? "auto" : std::to_string(number); };
  Flag flag = text_flag(std::move(name), scheduling, member, "N", parse, show, std::move(help));
  flag.type = Flag::Type::kNumber;
  flag.low = low;
  flag.high = high;
  return flag;
}

Flag batch_rows_flag() {
  return number_or_auto(
      "--max-batch-rows", &Scheduler::Options::max_batch_rows, 1, 4096,
      "Sequences a worker decodes together, and rows of its step. auto: 64 in f32; in bf16 and "
      "int8 as many, 16 to 64, as keep the states of all workers in a quarter of the last cache; a "
      "step that reads nothing but prompts then has up to 64 rows in f32 and 128 else");
}

}  // namespace

std::vector<Flag> scheduling_flags() {
  using Options = Scheduler::Options;
  return {
      workers_flag(),
      batch_rows_flag(),
      number_flag("--prefill-rows", scheduling, &Options::prefill_rows_per_step, 1, 4096,
                  "Rows of a step that read prompts while others decode; at most "
                  "--max-batch-rows"),
      number_flag("--max-queued-requests", scheduling, &Options::max_queued_requests, 1, 1'000'000,
                  "Requests accepted but not yet in a batch; one more is refused"),
      bytes_flag("--max-queued-bytes", scheduling, &Options::max_queued_bytes, 1, kMostBytes,
                 "Memory held by those requests, the messages they came in included; one more is "
                 "refused, but for the only one",
                 "no request fits into 0 bytes"),
      choice_flag<Options, Speculation>(
          "--speculation", scheduling, &Options::speculation, "MODE",
          {{"off", Speculation::kOff}, {"auto", Speculation::kAuto}, {"on", Speculation::kOn}},
          "Speculative decoding: feeding draft tokens in the same step, which makes few streams "
          "faster and changes no token: off; auto: where the draft is likely and the step has few "
          "rows; on: every draft, for tests"),
      number_flag(
          "--speculation-rows", scheduling, &Options::speculation_rows, 1, 1024,
          "Rows of a step up to which draft tokens are added to it; at most as many as a step "
          "that reads nothing but prompts has"),
      number_or_auto(
          "--step-threads", &Options::step_threads, 1, 32,
          "Threads that share a step while other workers have nothing to do, which makes "
          "few streams faster and changes no value. auto: as many as save a tenth of its "
          "time with each doubling, as tried while serving, and no more than there are "
          "processors"),
  };
}

std::vector<Flag> session_flags() {
  using Options = SessionStore::Options;
  return {
      number_flag("--max-sessions", session_options, &Options::max_sessions, 0, 100'000'000,
                  "Sessions at a time; 0: only --session-memory limits them"),
      bytes_flag("--session-memory", session_options, &Options::session_memory_bytes, 1, kMostBytes,
                 "Memory for sessions and running calls, in bytes (suffixes as above): their "
                 "states, histories and records; while a call runs, also 40 KB a sample for draft "
                 "tokens, and the values that may wait for a slow client, at most --outbox-tokens "
                 "of 64 bytes, and 8 more for each of top_log2_probs. Calls on sessions are "
                 "never refused for want of this memory",
                 "no session fits into 0 bytes"),
      duration_flag("--session-idle-timeout", session_options, &Options::idle_timeout,
                    milliseconds(0), "A session unused for this long is evicted; 0: never"),
      number_flag(
          "--session-history-tokens", session_options, &Options::history_tokens, 1, 1'000'000'000,
          "Values of a session that are kept, in addition to its state, to go back to and to "
          "read: 1 to 4 bytes each, and a quarter; a session can ask for fewer"),
      bytes_flag("--prefix-cache-memory", prefix_options, &PrefixCache::Options::memory_bytes, 0,
                 kMostBytes,
                 "Memory for states after earlier prompts, so that a prompt that begins as "
                 "an earlier one of the same caller need not be read from its beginning; of what "
                 "--session-memory has left: sessions and calls come first. 0: every prompt is "
                 "read"),
      path_flag(
          "--initial-states", initial_states, &ServerOptions::InitialStates::directory, "DIR",
          "Directory of snapshots (`lintel session snapshot`), each a state for all callers to "
          "begin with, named as its file without the ending: `lintel generate "
          "--initial-state NAME`. Read at the start, for models that are loaded then; one "
          "that is damaged or of other weights keeps the server from starting"),
      switch_flag("--accept-other-numerics", initial_states,
                  &ServerOptions::InitialStates::accept_other_numerics,
                  "Also states of --initial-states that machines made which compute other bits"),
  };
}

std::vector<Flag> streaming_flags() {
  using Options = StreamingOptions;
  return {
      duration_flag("--chunk-interval", streaming, &Options::chunk_interval_ms, milliseconds(0),
                    "Tokens of a stream are gathered for this long into one message, and from four "
                    "streams a worker on for longer, half of a worker's streams times and 16 times "
                    "at most; 0: every step is a message"),
      number_flag("--outbox-tokens", streaming, &Options::outbox_tokens, 1, 10'000'000,
                  "A stream whose reader leaves more tokens than this unread is paused"),
  };
}

}  // namespace lintel
