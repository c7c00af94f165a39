// What Snapshot and Restore cost over gRPC, on loopback.
#pragma once

#include <memory>
#include <vector>

#include "bench/sessions/session_figure.h"
#include "model/network/transformer.h"

namespace lintel::bench {

std::vector<SessionFigure> call_costs(const std::shared_ptr<const Transformer>& model,
                                      std::int64_t num_values, int repeats, int count);

}  // namespace lintel::bench
