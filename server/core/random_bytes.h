// Bytes that cannot be guessed.
#pragma once

#include <cstddef>
#include <span>

namespace lintel {

// Fills `bytes` from the system's generator. Throws std::system_error.
void fill_with_random(std::span<std::byte> bytes);

}  // namespace lintel
