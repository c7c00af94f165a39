// Sessions that outlive the server: where they are, and what of them.
#pragma once

#include <vector>

#include "server/flags/flag.h"

namespace lintel {

std::vector<Flag> session_store_flags();
// Of a store that servers share.
std::vector<Flag> shared_store_flags();

}  // namespace lintel
