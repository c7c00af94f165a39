#include "server/models/start_sources.h"

#include <algorithm>
#include <string>

#include "model/core/model_error.h"

namespace lintel {

std::vector<ModelSource> start_sources(const ModelOptions& options,
                                       const ModelRepository& repository) {
  std::vector<ModelSource> sources;
  for (const auto& model : options.directories) sources.push_back({model.name, 1, model.path});
  std::vector<std::string> names = options.load;
  if (std::ranges::find(names, "*") != names.end()) {
    names = repository.names();
    for (const auto& model : options.directories) {
      if (std::ranges::find(names, model.name) == names.end()) continue;
      throw ModelError("--load-model '*': model " + model.name + " of " +
                       options.repository.string() + " is given by --model, too");
    }
  }
  for (const std::string& name : names) {
    const std::vector<ModelSource> versions = repository.versions(name);
    if (versions.empty()) {
      throw ModelError("--load-model " + name + ": no such model in " +
                       options.repository.string());
    }
    sources.push_back(versions.back());
  }
  return sources;
}

}  // namespace lintel
