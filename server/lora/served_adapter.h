// ServedAdapter: a LoRA adapter of a model, loaded, as requests and sessions hold it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace lintel {

class Adapter;  // model/lora/adapter.h

// Constant after construction, but for the flag.
struct ServedAdapter {
  std::string name;
  std::shared_ptr<const Adapter> weights;
  // It was unloaded, and the time for what still uses it is over: requests end.
  mutable std::atomic<bool> ended{false};
};

using SharedAdapter = std::shared_ptr<const ServedAdapter>;

// What a sequence holds: its weights, which keep the adapter in use. Null for null.
inline std::shared_ptr<const Adapter> weights_of(const SharedAdapter& adapter) {
  if (adapter == nullptr) return nullptr;
  return {adapter, adapter->weights.get()};
}

}  // namespace lintel
