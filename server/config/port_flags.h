// Flags of addresses and connections.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> network_flags();
std::vector<Flag> http_flags();

}  // namespace lintel
