// SPDX-License-Identifier: Apache-2.0
// Settings of the kinds that are softmax over a pattern of positions, and P_h(t) of each straight
// from its definition: what the tests of these kinds share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "model/layers/attention/attention.h"
#include "tests/model/attention/twin.h"

namespace lintel::testing {

struct PatternCase {
  std::string config;  // as in config.json
  int n_heads = 1;
  int d_head = 1;
  std::size_t n = 0;  // tokens
  std::int64_t max_length = 0;
};

// Edges first, then such as the generator draws.
std::vector<PatternCase> pattern_cases(std::mt19937& generator);

// N(0, 1); random_blocks name any block that may be named, some twice, and none.
TwinInputs pattern_inputs(const PatternCase& which, std::mt19937& generator);

// True if s is in P_h(t). By the definitions alone.
bool sees(const TwinInputs& in, std::int64_t h, std::int64_t t, std::int64_t s);

}  // namespace lintel::testing
