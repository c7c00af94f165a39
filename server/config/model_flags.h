// Flags of models and of the limits of one request.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> model_flags();
std::vector<Flag> request_limit_flags();

}  // namespace lintel
