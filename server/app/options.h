// SPDX-License-Identifier: Apache-2.0
// The server's command line: flags, and with --config a file that has them as keys.
#pragma once

#include <string>

#include "server/config/option_values.h"
#include "server/config/server_options.h"

namespace lintel {

// Reads the flags of server_flags() and, with --config FILE, a TOML or INI file whose keys are the
// long flags; flags win. Returns false when --help or another flag that only prints was given and
// `help` holds the text. Throws UsageError; options->logging is then as far as it is known, so that
// the error can be reported in the log's format. Without --model, --models, --model-repository,
// --load-model and --config the options are those of a first start: packaged_models().
// HTTP is on 127.0.0.1:8080 where --http-listen does not say otherwise and --listen is a port on
// loopback. Reads no file but the configuration and, for packaged models, a build tree's
// CMakeCache.txt.
bool parse_server_options(int argc, const char* const* argv, ServerOptions* options,
                          std::string* help);

}  // namespace lintel
