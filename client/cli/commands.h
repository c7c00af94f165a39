// SPDX-License-Identifier: Apache-2.0
// The sub-commands. Each function adds one to the command line; its file holds all of it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "client/cli/flags.h"
#include "client/hub/pull.h"

namespace lintel::cli {

void add_generate(CLI::App& app, CommandLine& command_line);
void add_complete(CLI::App& app, CommandLine& command_line);
void add_score(CLI::App& app, CommandLine& command_line);
void add_session(CLI::App& app, CommandLine& command_line);
void add_state(CLI::App& app, CommandLine& command_line);
void add_model(CLI::App& app, CommandLine& command_line);
void add_health(CLI::App& app, CommandLine& command_line);
void add_admin(CLI::App& app, CommandLine& command_line);
void add_chat(CLI::App& app, CommandLine& command_line);
void add_tokenize(CLI::App& app, CommandLine& command_line);  // and detokenize
void add_token(CLI::App& app, CommandLine& command_line);
void add_pull(CLI::App& app, CommandLine& command_line);
void add_run(CLI::App& app, CommandLine& command_line);

// Functions of other commands that `lintel run` calls.

// Talks to the model that the connection names. `question`: the only one; else standard input has
// the questions, or off a terminal the one question. Returns an ExitCode.
using TalkOver = std::function<int(const ConnectionFlags& connection,
                                   const std::optional<std::string>& question)>;
// Declares the flags of a conversation in `command`: all of `lintel chat` that are not of stored
// responses or of --render. What is returned reads them, so it is called once they are parsed.
TalkOver add_talk_flags(CLI::App& command, Console& console);

// Reads `text` as hub::parse_pull_source() does, with the hub that the environment names. Throws
// UsageError.
hub::PullSource parse_source(const std::string& text);
// Pulls the model, with progress on a terminal, unless the cache has all of it, and returns its
// path. `offline`: looks at the cache alone. Throws HubError.
std::string pull_if_missing(const hub::PullSource& source, bool offline, Console& console);

}  // namespace lintel::cli
