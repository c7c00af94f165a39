// What calls about sessions, and calls whose prompts came before, cost over gRPC, on loopback.
#pragma once

#include <memory>
#include <vector>

#include "bench/session_figure.h"
#include "model/transformer.h"

namespace lintel::bench {

std::vector<SessionFigure> call_costs(const std::shared_ptr<const Transformer>& model,
                                      std::int64_t num_values, int repeats, int count);

// Prompts of num_values that differ in their last value alone: how many are read from their
// beginning, and what that costs.
std::vector<SessionFigure> prefix_costs(const std::shared_ptr<const Transformer>& model,
                                        std::int64_t num_values, int repeats);

}  // namespace lintel::bench
