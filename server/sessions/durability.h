// Durability: what of a session outlives the process.
#pragma once

#include <cstdint>

namespace lintel {

// Nothing; whole calls; calls in progress, whose values are drawn again; each value before it is
// sent.
enum class Durability : std::uint8_t { kNone, kCall, kInput, kToken };

}  // namespace lintel
