// SPDX-License-Identifier: Apache-2.0
#include "server/openai/named_models.h"

namespace lintel {

std::map<std::string, const v1::Model*> named_models(const v1::ListModelsResponse& list) {
  std::map<std::string, const v1::Model*> models;
  for (const v1::Model& model : list.models()) {
    const bool is_ready = model.state() == v1::MODEL_STATE_READY;
    if (!is_ready && !model.loads_on_request()) continue;
    const v1::Model*& named = models[model.name()];
    if (named == nullptr || is_ready || named->state() != v1::MODEL_STATE_READY) named = &model;
  }
  std::map<std::string, const v1::Model*> aliases;
  for (const auto& [name, model] : models) {
    for (const std::string& alias : model->aliases()) {
      if (alias.find('*') == std::string::npos) aliases[alias] = model;
    }
  }
  models.merge(aliases);
  return models;
}

}  // namespace lintel
