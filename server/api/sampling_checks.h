// Checks of sampling options.
#pragma once

#include "lintel/v1/generation.pb.h"
#include "model/config/config.h"
#include "model/sampling/head.h"
#include "server/api/violations.h"

namespace lintel {

// Sampling as this head can honour it.
SamplingOptions read_sampling(const v1::Sampling& wire, const ModelConfig& config, const Head& head,
                              Violations& violations);

}  // namespace lintel
