// LoadRefusal: why a model or an adapter is not loaded or unloaded.
#pragma once

#include <string>

namespace lintel {

struct LoadRefusal {
  enum class Kind {
    kNotFound,          // no such model, version or adapter on the disk, or none is loaded
    kUnusable,          // its files are not those of one that can run here, or its name is taken
    kOutOfModelMemory,  // what models may take is taken
    kTooManyLoads,      // as many as may wait do
    kStopping,          // the server is shutting down
    kOutOfMemory,       // the machine's
    kFailed,            // a fault of ours
  };
  Kind kind = Kind::kFailed;
  std::string model;
  std::string text = {};  // for the caller; empty for kStopping and kOutOfMemory, which say enough
  std::string adapter = {};  // of the model; empty: it is about the model itself
};

}  // namespace lintel
