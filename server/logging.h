// Logging: spdlog to standard error, as text or as one JSON object a line. Standard output is not
// touched.
#pragma once

#include "server/options.h"

namespace lintel {

// Sets up spdlog's default logger and sends gRPC's own messages there. Once, from main, before
// threads.
void set_up_logging(const ServerOptions::Logging& options);

}  // namespace lintel
