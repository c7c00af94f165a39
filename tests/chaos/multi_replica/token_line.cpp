// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/multi_replica/token_line.h"

namespace lintel::testing {

std::optional<std::string> TokenLine::received(const std::string& call, std::int64_t position,
                                               std::int32_t token) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = tokens_.try_emplace(position, Received{call, token});
  const Received& known = place->second;
  const std::string at = "position " + std::to_string(position);
  if (known.call != call) return at + " was sent to " + known.call + " and to " + call;
  if (known.token != token) {
    return at + " was sent as " + std::to_string(known.token) + " and as " + std::to_string(token);
  }
  return std::nullopt;
}

std::optional<std::string> TokenLine::ended(const std::string& call, std::int64_t position) {
  const std::lock_guard lock(mutex_);
  const auto next = tokens_.lower_bound(position);
  for (auto later = next; later != tokens_.end(); ++later) {
    if (later->second.call == call) {
      return call + " has ended before position " + std::to_string(later->first) +
             ", which it sent";
    }
  }
  if (next == tokens_.begin() || std::prev(next)->first != position - 1) {
    return call + " has ended at " + std::to_string(position) + ", but did not send all before it";
  }
  return std::nullopt;
}

std::string TokenLine::difference(const std::vector<std::int32_t>& stored,
                                  std::int64_t first) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t end = first + static_cast<std::int64_t>(stored.size());
  for (auto next = tokens_.lower_bound(first); next != tokens_.end(); ++next) {
    const auto& [position, received] = *next;
    const std::string what = "position " + std::to_string(position) + " of " + received.call;
    if (position >= end) return what + " is gone";
    const std::int32_t token = stored[static_cast<std::size_t>(position - first)];
    if (token != received.token) {
      return what + " is " + std::to_string(token) + ", not " + std::to_string(received.token);
    }
  }
  const auto count = static_cast<std::int64_t>(tokens_.size());
  if (end == count) return "";
  std::int64_t unknown = 0;
  while (tokens_.contains(unknown)) ++unknown;
  return std::to_string(end) + " tokens are stored, " + std::to_string(count) +
         " were sent, not that at position " + std::to_string(unknown);
}

std::size_t TokenLine::size() const {
  const std::lock_guard lock(mutex_);
  return tokens_.size();
}

}  // namespace lintel::testing
