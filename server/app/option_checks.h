// Checks of combinations of flags.
#pragma once

#include "server/config/server_options.h"

namespace lintel {

// Throws UsageError. Lowers a default of --prefill-rows to fit --max-batch-rows.
void check_together(ServerOptions& options, bool prefill_rows_given);

}  // namespace lintel
