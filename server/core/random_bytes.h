// SPDX-License-Identifier: Apache-2.0
// Bytes that cannot be guessed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lintel {

// Fills `bytes` from the system's generator. Throws std::system_error.
void fill_with_random(std::span<std::byte> bytes);

// The name of one server among several.

// 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'.
bool is_replica_id(std::string_view text);

// The id made of this machine's host name; "lintel" if it has none.
std::string default_replica_id();

}  // namespace lintel
