// Which models are served, and how much one request may ask of them.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> model_flags();
std::vector<Flag> request_limit_flags();

}  // namespace lintel
