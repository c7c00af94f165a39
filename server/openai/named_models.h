// SPDX-License-Identifier: Apache-2.0
// Names of models, as the APIs of OpenAI, Anthropic and Ollama list them.
#pragma once

#include <map>
#include <string>

#include "lintel/v1/model.pb.h"

namespace lintel {

// The models that requests may name, by name: of several versions the highest that is ready, and
// aliases that stand for one name. The models are those of `list`.
std::map<std::string, const v1::Model*> named_models(const v1::ListModelsResponse& list);

}  // namespace lintel
