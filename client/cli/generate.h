// SPDX-License-Identifier: Apache-2.0
// `lintel generate`, and what `lintel session continue` does.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/generate_output.h"

namespace lintel::cli {

struct GenerateFlags {
  ConnectionFlags connection;
  FieldFlags fields;

  std::optional<std::string> prompt, prompt_tokens, prompt_file;
  std::optional<std::uint32_t> max_new_tokens;
  std::optional<std::uint32_t> samples;
  std::vector<std::string> stop_strings, stop_tokens;
  bool include_stop = false;
  bool no_special = false;
  bool log_probs = false;
  std::optional<std::uint32_t> top_log_probs;
  bool echo = false;
  std::string session_id;
  std::string adapter;
  std::vector<std::string> given;
  std::optional<double> time_limit_seconds;
  double retry_seconds = 30;  // of sessions that outlive the server
  std::string call_id;        // of a call on such a session; empty: a random one
  std::string format;         // "text", "tokens", "jsonl"; empty: by the model
  bool stats = false, quiet = false;
  bool interactive = false;
  const CLI::App* command = nullptr;  // the owner of these flags

  // `for_session`: the session's id is the command's argument and --samples makes no sense.
  void add_to(CLI::App& app, bool for_session);
  // Reads the prompt's file, or standard input. Throws UsageError.
  v1::GenerateRequest request(Console& console) const;
};

// Says that the server chose a window of so many tokens.
std::string window_note(std::int64_t window);

// Calls the server and prints in the format asked for; with --interactive a session that is typed
// to. Returns an ExitCode.
int run_generate(const GenerateFlags& flags, Console& console);

// `lintel generate --interactive`.

// All of it outlives the call.
struct InteractiveSetting {
  const Client& client;
  const GenerateFlags& flags;
  const v1::Model& model;
  const ViewOptions& view;
};

// Refuses flags that make no sense with it. Throws UsageError.
void check_interactive(const GenerateFlags& flags);

// Reads lines of a terminal or a pipe until /quit or their end: each is a session's prompt or a
// command. `request`: how each turn is generated; its prompt is the first turn's. Returns an
// ExitCode: kFailed where a line of a pipe failed.
int run_interactive(const InteractiveSetting& setting, v1::GenerateRequest request,
                    Console& console);

}  // namespace lintel::cli
