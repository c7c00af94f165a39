// Flags of logs, metrics and channelz.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> logging_flags();
std::vector<Flag> monitoring_flags();

}  // namespace lintel
