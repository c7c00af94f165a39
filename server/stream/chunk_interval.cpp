#include "server/stream/chunk_interval.h"

#include <algorithm>

namespace lintel {
namespace {

// Every message costs the two ends some 50 us of a core, whatever is in it. So many streams get one
// in every interval; when there are more, all wait longer, up to so many intervals.
constexpr int kStreamsAtFullRate = 8;
constexpr int kLongestIntervals = 16;

}  // namespace

std::chrono::nanoseconds chunk_interval(std::chrono::nanoseconds interval, int streams) {
  return std::clamp(streams / kStreamsAtFullRate, 1, kLongestIntervals) * interval;
}

}  // namespace lintel
