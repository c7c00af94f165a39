// Flags of authentication and of the limits of one identity.
#pragma once

#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> security_flags();
std::vector<Flag> identity_flags();

}  // namespace lintel
