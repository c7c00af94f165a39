// From a model directory to a model that can be served.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/base/clock.h"
#include "server/models/model_options.h"
#include "server/models/served_model.h"
#include "server/sessions/session_store.h"

namespace lintel {

struct NamedTransformer {
  std::string name;
  std::shared_ptr<const Transformer> transformer;
  std::vector<std::string> warnings;  // what an operator should know
  std::int64_t version = 1;
  std::size_t resident_bytes = 0;  // measured, of the budget for models
};

// How the options have every model loaded.
Transformer::Options transformer_options(const ModelOptions& options);

// Loads a directory as the options say, compares rows alone and in a batch, and logs what it is.
// Throws ModelError.
// `sessions`: what a session of it has to fit into.
NamedTransformer load_model(const ModelOptions& options, const SessionStore::Options& sessions,
                            const std::string& name, std::int64_t version,
                            const std::filesystem::path& directory);

// With a scheduler of its own, whose workers begin at once. The clock outlives it.
std::shared_ptr<ServedModel> serve_model(const ModelOptions& options, NamedTransformer model,
                                         const Clock& clock);

}  // namespace lintel
