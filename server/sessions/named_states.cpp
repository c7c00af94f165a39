// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/named_states.h"

#include <algorithm>

namespace lintel {

NamedState::~NamedState() { zero(image); }

bool NamedStates::save(const Owner& owner, Shared state) {
  Shared before;  // freed without the mutex
  MutexLock lock(mutex_);
  ByName& states = of(owner, state->is_public);
  const auto found = states.find(state->name);
  if (found != states.end()) {
    before = std::exchange(found->second, std::move(state));
    return true;
  }
  if (states.size() >= kMostOfOwner) return false;
  const std::string name = state->name;
  states.emplace(name, std::move(state));
  return true;
}

bool NamedStates::has_place(const Owner& owner, const std::string& name, bool is_public) const {
  MutexLock lock(mutex_);
  const auto owned = owned_.find(owner);
  if (!is_public && owned == owned_.end()) return true;
  const ByName& states = is_public ? public_ : owned->second;
  return states.size() < kMostOfOwner || states.contains(name);
}

NamedStates::Shared NamedStates::find(const Owner& owner, const std::string& name) const {
  MutexLock lock(mutex_);
  if (const auto owned = owned_.find(owner); owned != owned_.end()) {
    const auto found = owned->second.find(name);
    if (found != owned->second.end()) return found->second;
  }
  const auto found = public_.find(name);
  return found == public_.end() ? nullptr : found->second;
}

bool NamedStates::remove(const Owner& owner, const std::string& name, bool is_public) {
  ByName::node_type gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const auto owned = owned_.find(owner);
  if (!is_public && owned == owned_.end()) return false;
  ByName& states = is_public ? public_ : owned->second;
  gone = states.extract(name);
  if (!is_public && states.empty()) owned_.erase(owned);
  return !gone.empty();
}

std::vector<NamedStates::Shared> NamedStates::list(const Owner& owner, const std::string& model,
                                                   const std::optional<Place>& after,
                                                   std::size_t limit) const {
  std::vector<Shared> found;
  const auto add = [&](const ByName& states) {
    std::size_t taken = 0;
    auto state = after ? states.lower_bound(after->name) : states.begin();
    for (; state != states.end() && taken < limit; ++state) {
      const Place place{state->first, state->second->is_public};
      if (after && place <= *after) continue;
      if (!model.empty() && state->second->image.model != model) continue;
      found.push_back(state->second);
      ++taken;
    }
  };
  {
    MutexLock lock(mutex_);
    if (const auto owned = owned_.find(owner); owned != owned_.end()) add(owned->second);
    add(public_);
  }
  std::sort(found.begin(), found.end(), [](const Shared& a, const Shared& b) {
    return Place{a->name, a->is_public} < Place{b->name, b->is_public};
  });
  if (found.size() > limit) found.resize(limit);
  return found;
}

}  // namespace lintel
