// ServedModel: one version of a model, loaded, with its scheduler.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/numerics.h"
#include "model/transformer.h"
#include "server/engine/scheduler.h"
#include "server/lora/adapter_table.h"
#include "server/models/request_limits.h"

namespace lintel {

// Constant after construction, but for the scheduler and the adapters, which are thread-safe, and
// the flag.
//
// Shared by the registry and by every call that runs on it, which releases it when it is over: a
// model that only the registry holds has nothing running. The registry is the last to release it
// before the scheduler is stopped, so that no worker destroys its own scheduler.
struct ServedModel {
  std::string name;
  std::int64_t version = 1;
  std::shared_ptr<const Transformer> transformer;
  std::filesystem::path directory;  // that it was read from; empty: loaded elsewhere
  // LoRA adapters, which come and go while it is served: thread-safe. Before the scheduler, whose
  // requests use them.
  const std::unique_ptr<AdapterTable> adapters = std::make_unique<AdapterTable>();
  std::unique_ptr<Scheduler> scheduler;
  std::string weight_type_reason;     // why its weight type; empty: it was given, or is f32
  Numerics numerics;                  // of this machine with this model
  RequestLimits limits;               // max_samples no more than max_batch_rows
  std::vector<std::string> warnings;  // what an operator should know
  // It was unloaded, or another took its place: what is still running may be ended for that.
  mutable std::atomic<bool> retired{false};
};

using SharedModel = std::shared_ptr<const ServedModel>;

}  // namespace lintel
