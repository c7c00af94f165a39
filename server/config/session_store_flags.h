// Flags of session storage and durability.
#pragma once

#include <chrono>
#include <vector>

#include "server/config/flag.h"

namespace lintel {

std::vector<Flag> session_store_flags();
// Of a store that servers share.
std::vector<Flag> shared_store_flags();

// When a drain hands calls over: --drain-handover, or what stands for it.
std::chrono::milliseconds handover_after(const ServerOptions::DurableOptions& options);

}  // namespace lintel
