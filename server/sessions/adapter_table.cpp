// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/adapter_table.h"

#include <utility>

namespace lintel {

SharedAdapter AdapterTable::find(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = slots_.find(name);
  return found == slots_.end() ? nullptr : found->second.ready;
}

std::vector<SharedAdapter> AdapterTable::ready() const {
  std::vector<SharedAdapter> all;
  MutexLock lock(mutex_);
  for (const auto& [name, slot] : slots_) {
    if (slot.ready != nullptr) all.push_back(slot.ready);
  }
  return all;
}

bool AdapterTable::has(std::string_view name) const {
  MutexLock lock(mutex_);
  return slots_.contains(name);
}

SharedAdapter AdapterTable::add(const std::string& name, std::shared_ptr<const Adapter> weights) {
  auto served = std::make_unique<ServedAdapter>();
  served->name = name;
  served->weights = std::move(weights);
  auto use = std::make_shared<Use>();
  // The last user reports that the weights are freed, on its own thread.
  SharedAdapter adapter(served.release(), [use](const ServedAdapter* last) {
    delete last;
    use->is_used.store(false);
    if (use->unused_bell != nullptr) use->unused_bell->ring();
  });
  MutexLock lock(mutex_);
  if (slots_.size() >= kMost) return nullptr;
  const bool added =
      slots_.try_emplace(name, Slot{.ready = adapter, .in_use = adapter, .use = use}).second;
  return added ? adapter : nullptr;
}

bool AdapterTable::retire(std::string_view name, std::shared_ptr<Notification> unused_bell) {
  SharedAdapter last;  // freed without the mutex
  MutexLock lock(mutex_);
  const auto found = slots_.find(name);
  if (found == slots_.end() || found->second.ready == nullptr) return false;
  found->second.use->unused_bell = std::move(unused_bell);
  last = std::move(found->second.ready);
  last->retired.store(true);
  found->second.ready = nullptr;
  return true;
}

SharedAdapter AdapterTable::retired(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = slots_.find(name);
  if (found == slots_.end() || found->second.ready != nullptr) return nullptr;
  return found->second.in_use.lock();
}

bool AdapterTable::is_unused(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = slots_.find(name);
  return found == slots_.end() || !found->second.use->is_used.load();
}

void AdapterTable::forget(std::string_view name) {
  MutexLock lock(mutex_);
  const auto found = slots_.find(name);
  if (found != slots_.end() && found->second.ready == nullptr) slots_.erase(found);
}

}  // namespace lintel
