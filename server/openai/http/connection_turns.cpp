// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/connection_turns.h"

#include <algorithm>
#include <utility>

namespace lintel {

ConnectionTurns::~ConnectionTurns() { all_bytes_->fetch_sub(bytes_); }

std::optional<std::string> ConnectionTurns::find(const std::string& id) const {
  const auto found = std::ranges::find(turns_, id, &Turn::id);
  if (found == turns_.end()) return std::nullopt;
  return found->items;
}

void ConnectionTurns::add(const std::string& id, const std::string& previous,
                          const std::string& items) {
  std::string all = find(previous).value_or("[]");
  all.pop_back();  // its ']'
  if (all.size() > 1) all += ',';
  all += items.substr(1);  // without its '['
  if (all.size() > kMostBytes) return;
  while (!turns_.empty() && (turns_.size() == kMostTurns || bytes_ + all.size() > kMostBytes ||
                             *all_bytes_ + all.size() > kMostBytesOfAll)) {
    drop(turns_.begin());
  }
  if (all_bytes_->fetch_add(all.size()) + all.size() > kMostBytesOfAll) {
    all_bytes_->fetch_sub(all.size());
    return;
  }
  bytes_ += all.size();
  turns_.push_back({id, std::move(all)});
}

void ConnectionTurns::forget(const std::string& id) {
  const auto found = std::ranges::find(turns_, id, &Turn::id);
  if (found != turns_.end()) drop(found);
}

void ConnectionTurns::drop(std::deque<Turn>::iterator turn) {
  bytes_ -= turn->items.size();
  all_bytes_->fetch_sub(turn->items.size());
  turns_.erase(turn);
}

}  // namespace lintel
