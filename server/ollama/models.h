// SPDX-License-Identifier: Apache-2.0
// Models of lintel.v1 as /api/tags, /api/ps and /api/show have them.
#pragma once

#include <nlohmann/json.hpp>

#include "lintel/v1/model.pb.h"

namespace lintel {

// {"models": [...]}, of all names that requests may have, aliases among them.
nlohmann::ordered_json tags_json(const v1::ListModelsResponse& list);
// The same of the models in memory, each once.
nlohmann::ordered_json running_json(const v1::ListModelsResponse& list);

// Capabilities of a template, which /api/show determines by rendering it.
struct OllamaCapabilities {
  bool tools = false;
  bool thinking = false;
};
nlohmann::ordered_json show_json(const v1::Model& model, const OllamaCapabilities& capabilities);

}  // namespace lintel
