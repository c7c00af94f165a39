// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/multi_replica/value_line.h"

namespace lintel::testing {

std::optional<std::string> ValueLine::received(const std::string& call, std::int64_t position,
                                               std::int32_t value) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = values_.try_emplace(position, Received{call, value});
  const Received& known = place->second;
  const std::string at = "position " + std::to_string(position);
  if (known.call != call) return at + " was sent to " + known.call + " and to " + call;
  if (known.value != value) {
    return at + " was sent as " + std::to_string(known.value) + " and as " + std::to_string(value);
  }
  return std::nullopt;
}

std::optional<std::string> ValueLine::ended(const std::string& call, std::int64_t position) {
  const std::lock_guard lock(mutex_);
  const auto next = values_.lower_bound(position);
  for (auto later = next; later != values_.end(); ++later) {
    if (later->second.call == call) {
      return call + " has ended before position " + std::to_string(later->first) +
             ", which it sent";
    }
  }
  if (next == values_.begin() || std::prev(next)->first != position - 1) {
    return call + " has ended at " + std::to_string(position) + ", but did not send all before it";
  }
  return std::nullopt;
}

std::string ValueLine::difference(const std::vector<std::int32_t>& stored,
                                  std::int64_t first) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t end = first + static_cast<std::int64_t>(stored.size());
  for (auto next = values_.lower_bound(first); next != values_.end(); ++next) {
    const auto& [position, received] = *next;
    const std::string what = "position " + std::to_string(position) + " of " + received.call;
    if (position >= end) return what + " is gone";
    const std::int32_t value = stored[static_cast<std::size_t>(position - first)];
    if (value != received.value) {
      return what + " is " + std::to_string(value) + ", not " + std::to_string(received.value);
    }
  }
  const auto count = static_cast<std::int64_t>(values_.size());
  if (end == count) return "";
  std::int64_t untold = 0;
  while (values_.contains(untold)) ++untold;
  return std::to_string(end) + " values are stored, " + std::to_string(count) +
         " were sent, not that at position " + std::to_string(untold);
}

std::size_t ValueLine::size() const {
  const std::lock_guard lock(mutex_);
  return values_.size();
}

}  // namespace lintel::testing
