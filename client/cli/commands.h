// SPDX-License-Identifier: Apache-2.0
// The sub-commands. Each function adds one to the command line; its file holds all of it.
#pragma once

#include "client/cli/flags.h"

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

}  // namespace lintel::cli
