// ModelError: why a model directory cannot be served.
#pragma once

#include <stdexcept>

namespace lintel {

// A model directory that cannot be served. what() names the file, the key or tensor, and both
// values.
class ModelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace lintel
