// ServedModel and ModelRegistry: the loaded models by name, each with its scheduler.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/transformer.h"
#include "server/options.h"
#include "server/scheduler.h"

namespace lintel {

// Constant after construction, but for the scheduler, which is thread-safe.
struct ServedModel {
  std::string name;
  std::shared_ptr<const Transformer> transformer;
  std::unique_ptr<Scheduler> scheduler;
  RequestLimits limits;               // max_samples no more than max_batch_rows
  std::vector<std::string> warnings;  // what an operator should know
};

// Owned by the server; constant once the services have it, so any thread may read.
class ModelRegistry {
 public:
  void add(ServedModel model) {
    std::string name = model.name;
    models_.emplace(std::move(name), std::move(model));
  }

  // Null when there is no such model. An empty name is not resolved here.
  const ServedModel* find(std::string_view name) const {
    const auto found = models_.find(name);
    return found == models_.end() ? nullptr : &found->second;
  }
  // The model when exactly one is loaded, else null.
  const ServedModel* only() const {
    return models_.size() == 1 ? &models_.begin()->second : nullptr;
  }
  // Ordered by name.
  const std::map<std::string, ServedModel, std::less<>>& all() const { return models_; }

 private:
  std::map<std::string, ServedModel, std::less<>> models_;
};

}  // namespace lintel
