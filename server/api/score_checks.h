// Checks of a Score request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "model/config/config.h"
#include "server/api/violations.h"
#include "server/models/request_limits.h"

namespace lintel {

// Most sequences of a Score request: each takes some memory of its own, however short it is, on its
// way here and while it waits. Far more than are worth sending at once.
inline constexpr int kMaxScoreSequences = 65'536;

// The sequences of a Score request, concatenated.
struct ScoreSequences {
  std::vector<std::int32_t> values;
  std::vector<std::size_t> ends;  // of each sequence in `values`

  std::size_t size() const { return ends.size(); }
  std::span<const std::int32_t> operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends[index - 1];
    return std::span(values).subspan(begin, ends[index] - begin);
  }
};

// Fills none when something is wrong.
ScoreSequences check_score(const v1::ScoreRequest& wire, const ModelConfig& config,
                           const RequestLimits& limits, Violations& violations);

}  // namespace lintel
