// What the server tells of itself.
#pragma once

#include <vector>

#include "server/flags/flag.h"

namespace lintel {

std::vector<Flag> logging_flags();
std::vector<Flag> monitoring_flags();

}  // namespace lintel
