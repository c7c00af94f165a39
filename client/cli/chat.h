// SPDX-License-Identifier: Apache-2.0
// `lintel chat` for other commands.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "client/cli/flags.h"

namespace lintel::cli {

// Talks to the model that the connection names. `question`: the only one; else standard input has
// the questions, or off a terminal the one question. Returns an ExitCode.
using TalkOver = std::function<int(const ConnectionFlags& connection,
                                   const std::optional<std::string>& question)>;

// Declares the flags of a conversation in `command`: all of `lintel chat` that are not of stored
// responses or of --render. What is returned reads them, so it is called once they are parsed.
TalkOver add_talk_flags(CLI::App& command, Console& console);

}  // namespace lintel::cli
