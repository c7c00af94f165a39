// LoadRefusal: why a model is not loaded or unloaded.
#pragma once

#include <string>

namespace lintel {

struct LoadRefusal {
  enum class Kind {
    kNotFound,          // no such model or version in the repository, or none is loaded
    kUnusable,          // its files are not those of a model that can run here
    kOutOfModelMemory,  // what models may take is taken
    kTooManyLoads,      // as many as may wait do
    kStopping,          // the server is shutting down
    kOutOfMemory,       // the machine's
    kFailed,            // a fault of ours
  };
  Kind kind = Kind::kFailed;
  std::string model;
  std::string text = {};  // for whoever asked; without kStopping and kOutOfMemory, which say enough
};

}  // namespace lintel
