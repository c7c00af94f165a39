#include "server/kserve/sequence_names.h"

#include <algorithm>

namespace lintel {

std::optional<std::string> SequenceNames::put(const Owner& owner, const std::string& model,
                                              const std::string& name,
                                              const std::string& session_id) {
  MutexLock lock(mutex_);
  if (ids_.size() >= next_cleaning_) forget_evicted();
  const auto [found, is_new] = ids_.try_emplace(Key(owner, model, name), session_id);
  if (is_new) return std::nullopt;
  std::string before = session_id;
  before.swap(found->second);
  return before;
}

std::optional<std::string> SequenceNames::find(const Owner& owner, const std::string& model,
                                               const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = ids_.find(std::tie(owner, model, name));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void SequenceNames::forget(const Owner& owner, const std::string& model, const std::string& name,
                           const std::string& session_id) noexcept {
  MutexLock lock(mutex_);
  const auto found = ids_.find(std::tie(owner, model, name));
  if (found != ids_.end() && found->second == session_id) ids_.erase(found);
}

std::size_t SequenceNames::size() const {
  MutexLock lock(mutex_);
  return ids_.size();
}

void SequenceNames::forget_evicted() {
  std::erase_if(ids_, [this](const auto& entry) {
    return !store_.get(entry.second, std::get<0>(entry.first));
  });
  next_cleaning_ = std::max<std::size_t>(2 * ids_.size(), 64);
}

}  // namespace lintel
