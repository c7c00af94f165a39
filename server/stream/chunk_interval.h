// chunk_interval(): how often a stream gets a message.
#pragma once

#include <chrono>

namespace lintel {

// How long values of a stream gather when so many streams run: `interval` while they are few.
std::chrono::nanoseconds chunk_interval(std::chrono::nanoseconds interval, int streams);

}  // namespace lintel
