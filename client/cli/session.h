// SPDX-License-Identifier: Apache-2.0
// `lintel session` and `lintel state`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace lintel::cli {

// What the commands of `lintel session` share.

inline constexpr const char* kSessionFooter = R"(
A session keeps its state on the server, and the values that led to it: later calls continue without
resending, and it can be copied, rewound to a position and moved. It belongs to its creator, takes
memory of the server until it is deleted, and may be evicted while it is idle. Position P is where P
values have been seen: a fork or a rewind to P keeps the values before it.

Sessions of a server with a store outlive it (--durability): a call that a crash or a restart cuts off
resumes where it was, without a value lost or printed twice. Idle sessions are in the store alone (cold)
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
  const CLI::App* command = nullptr;  // whose flags these are
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

// A sub-command of `command`, with the flags that all of them have.
CLI::App& add_session_command(CLI::App& command, CommandLine& command_line,
                              const SessionCommand& about,
                              std::function<int(const SessionFlags&, Console&)> run);

// Deletes one after the other by `erase`, and prints which when `as_json`. What cannot be deleted
// is named and the others are deleted all the same, unless no server answers or knows the caller.
// Returns an ExitCode; throws CallError where the call for the only one fails.
int delete_each(const std::vector<std::string>& names, bool as_json, const CLI::App& command,
                Console& console, const std::function<void(const std::string&)>& erase);

// --durability: empty where it was not given, which durability_of takes for UNSPECIFIED.
void add_durability_flag(CLI::App& app, std::string& durability, const std::string& help);
v1::Durability durability_of(const std::string& name);

void write_session(JsonWriter& json, const v1::Session& session);
// A line: its id, or all of it.
void print_id(const v1::Session& session, bool as_json, Console& console);

void add_session_copies(CLI::App& command, CommandLine& command_line);
void add_session_history(CLI::App& command, CommandLine& command_line);

void add_session(CLI::App& app, CommandLine& command_line);
void add_state(CLI::App& app, CommandLine& command_line);

}  // namespace lintel::cli
