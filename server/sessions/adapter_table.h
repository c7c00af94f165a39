// SPDX-License-Identifier: Apache-2.0
// AdapterTable: the LoRA adapters of one version of a model, by name.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/core/mutex.h"
#include "server/core/notification.h"

namespace lintel {

// ServedAdapter: a LoRA adapter of a model, loaded, as requests and sessions hold it.

class Adapter;  // model/lora/adapter.h

// Constant after construction, but for the flags.
struct ServedAdapter {
  std::string name;
  std::shared_ptr<const Adapter> weights;
  // True once it is being unloaded: requests that have no memory yet end.
  mutable std::atomic<bool> retired{false};
  // True once it was unloaded and the time for its users is over: requests end.
  mutable std::atomic<bool> ended{false};
};

using SharedAdapter = std::shared_ptr<const ServedAdapter>;

// The weights, as a sequence holds them: they keep the adapter in use. Null for null.
inline std::shared_ptr<const Adapter> weights_of(const SharedAdapter& adapter) {
  if (adapter == nullptr) return nullptr;
  return {adapter, adapter->weights.get()};
}

// An adapter is ready from add() on; retired, no call finds it any more, and its name is free again
// after forget(). A call that found it keeps it: its weights are freed with the last of the
// pointers. Thread-safe; a call asks it once, not for every token. The ModelManager changes it.
class AdapterTable {
 public:
  // Names of one model, including those being unloaded: more than a server keeps in memory, and a
  // bound on the cost of a directory of a million names.
  static constexpr std::size_t kMost = 1024;

  // The ready adapter of this name; null: there is none.
  SharedAdapter find(std::string_view name) const EXCLUDES(mutex_);
  std::vector<SharedAdapter> ready() const EXCLUDES(mutex_);  // by name
  // True if the name is taken, by an adapter that is ready or is being unloaded.
  bool has(std::string_view name) const EXCLUDES(mutex_);

  // Adds a ready adapter. Null: the name is taken, or kMost are.
  SharedAdapter add(const std::string& name, std::shared_ptr<const Adapter> weights)
      EXCLUDES(mutex_);
  // Retires an adapter: find() no longer returns it. `unused_bell` is rung when its last user has
  // released it. False: no ready one has the name.
  bool retire(std::string_view name, std::shared_ptr<Notification> unused_bell) EXCLUDES(mutex_);
  // The retired adapter if it is still in use, else null.
  SharedAdapter retired(std::string_view name) const EXCLUDES(mutex_);
  // True if the weights of the retired adapter are freed.
  bool is_unused(std::string_view name) const EXCLUDES(mutex_);
  // Frees the name of a retired adapter.
  void forget(std::string_view name) EXCLUDES(mutex_);

 private:
  // The use of an adapter outside the table.
  struct Use {
    std::atomic<bool> is_used{true};            // false once the weights are freed
    std::shared_ptr<Notification> unused_bell;  // set before the table lets go; null: no waiter
  };
  struct Slot {
    SharedAdapter ready;  // null: retired
    std::weak_ptr<const ServedAdapter> in_use;
    std::shared_ptr<Use> use;
  };
  using Slots = std::map<std::string, Slot, std::less<>>;

  mutable Mutex mutex_;
  Slots slots_ GUARDED_BY(mutex_);
};

}  // namespace lintel
