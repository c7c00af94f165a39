// SPDX-License-Identifier: Apache-2.0
// What a request with particles has to give: the naive twin, and requests to compare it by.
#pragma once

#include <vector>

#include "tests/server/support/harness.h"

namespace lintel::testing {

struct Filtered {
  std::vector<std::vector<RecordedToken>> samples;
  double log2_evidence = 0;
};

// All particles one position on, one row at a time, with their weights beside them.
Filtered filter_naively(const Transformer& model, const GenerationRequest& request);

// Eight of them, different in what is known, and how it is drawn.
std::vector<GenerationRequest> particle_requests(const Transformer& model);

// The samples, and the evidence, bit for bit.
void require_twin(const RecordingSink& sink, const Filtered& twin);

}  // namespace lintel::testing
