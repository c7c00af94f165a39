// Flags of scheduling, session memory and streaming.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> scheduling_flags();
std::vector<Flag> session_flags();
std::vector<Flag> streaming_flags();

}  // namespace lintel
