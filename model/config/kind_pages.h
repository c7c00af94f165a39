// The kinds of attention as their declarations tell of them: to programs, and to people.
#pragma once

#include <string>
#include <vector>

#include "model/layers/attention/declaration.h"

namespace lintel {

// A JSON list of all kinds with their keys, and of each sample the attention object, projections
// and tensors of a layer of kSampleDims. `lintel-convert --kinds` prints it and training reads it.
std::string kinds_json();
inline constexpr LayerDims kSampleDims{.d_model = 24, .n_heads = 2, .d_head = 8, .max_length = 64};

// "a whole number from 1 to 256", "above 0, at most 1", "`true` or `false`".
std::string range_of(const ConfigKey& key);
// What it is when it is left out: "1e-6", "1/sqrt(d_head)"; empty where it must be given.
std::string default_of(const ConfigKey& key);

// For --help: "lsh (rounds: hash rounds, a whole number from 1 to 256; ...)" of each kind.
std::string kinds_help();

}  // namespace lintel
