// --print-numerics: prints which bits this machine computes and exits.
#pragma once

#include <iosfwd>

#include "server/models/model_options.h"

namespace lintel {

// A line for each model that a server of these options would start with: name, version, hash, and
// what computes it, between tabs. Loads one after the other. Throws ModelError.
void print_numerics(const ModelOptions& options, std::ostream& out);

}  // namespace lintel
