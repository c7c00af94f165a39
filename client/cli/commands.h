// SPDX-License-Identifier: Apache-2.0
// The sub-commands. Each function adds one to the command line; its file holds all of it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "client/cli/flags.h"
#include "client/hub/pull.h"
#include "client/lib/call_error.h"

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

// Says how the server of the conversation, this command's own, ended before this call failed, which
// ends the conversation; nothing: it runs. Empty: the server is another's.
using ServerEnd = std::function<std::optional<std::string>(const CallError& error)>;
// Talks to the model that the connection names. Returns an ExitCode.
using TalkOver = std::function<int(const ConnectionFlags& connection, const ServerEnd& server_end)>;
// Checks the flags of a conversation and reads its input that needs no server: files, and off a
// terminal the question, unless `question` is the only one. Throws UsageError and Failure.
using PrepareTalk = std::function<TalkOver(std::optional<std::string> question)>;
// Declares the flags of a conversation in `command`: all of `lintel chat` that are not of stored
// responses or of --render. The result reads them, so it is called once they are parsed.
PrepareTalk add_talk_flags(CLI::App& command, Console& console);

// Reads `text` as hub::parse_pull_source() does, with the hub that the environment names. Throws
// UsageError.
hub::PullSource parse_source(const std::string& text);
// Pulls the model, with progress on a terminal, unless the cache has all of it, and returns its
// path. `offline`: looks at the cache alone. Throws HubError.
std::string pull_if_missing(const hub::PullSource& source, bool offline, Console& console);

}  // namespace lintel::cli
