// `lintel generate --interactive`.
#pragma once

#include "client/cli/conversation.h"

namespace lintel::cli {

// Refuses flags that make no sense with it. Throws UsageError.
void check_interactive(const GenerateFlags& flags);

// Reads lines of a terminal or a pipe until /quit or their end: each is a session's prompt or a
// command. Returns an ExitCode: kFailed where a line of a pipe failed.
int run_interactive(const Conversation::Setting& setting, v1::GenerateRequest request,
                    Console& console);

}  // namespace lintel::cli
