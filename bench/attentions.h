// SPDX-License-Identifier: Apache-2.0
// The attentions that are compared, each under the name of its rows.
#pragma once

#include <string>
#include <vector>

#include "bench/sequences.h"

namespace lintel::bench {

struct NamedAttention {
  std::string name;   // "lsh4": of --attention, of trained weights (mnist-lsh4-small), of curves
  std::string title;  // "LSH-4": of tables
  std::string spec;   // the value of the server's --attention
  // Published as code that runs the whole prefix again for every token, so that there is a row of
  // it in that mode.
  bool recomputes = false;
};

// The attentions to compare for a shape, linear first. Blocks and windows are rows of its image.
// Only keys that work without a max_length, too.
std::vector<NamedAttention> compared_attentions(const Shape& shape);

// "all", or names with commas, in their order. Throws cli::UsageError naming `flag` and those there
// are.
std::vector<NamedAttention> find_attentions(const Shape& shape, const std::string& flag,
                                            const std::string& names);

// The same in recompute mode.
std::string recomputing(const std::string& spec);
// The type alone: for weights that were trained with it, whose own keys it keeps.
std::string type_of(const std::string& spec);

}  // namespace lintel::bench
