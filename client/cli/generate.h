// `lintel generate`, and what `lintel session continue` does.
#pragma once

#include "client/cli/generate_flags.h"

namespace lintel::cli {

// Calls the server and prints in the format asked for; with --interactive a session that is typed
// to. Returns an ExitCode.
int run_generate(const GenerateFlags& flags, Console& console);

}  // namespace lintel::cli
