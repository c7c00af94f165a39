// ValueSource: where a value of a sequence came from.
#pragma once

#include <cstdint>

namespace lintel {

enum class ValueSource : std::uint8_t { kSampled, kGiven, kPrompt };

}  // namespace lintel
