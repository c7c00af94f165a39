// RequestLimits: how much one request may ask for.
#pragma once

#include <cstdint>

#include "server/engine/request.h"

namespace lintel {

// What one request may ask for. Also what ModelService reports.
struct RequestLimits {
  std::int64_t max_prompt_tokens = 1'000'000;
  std::int64_t max_new_tokens = 1'000'000;
  int max_samples = 64;  // and never more than max_batch_rows
  int max_top_log2_probs = 64;
  int max_stop_strings = 16;
  std::int64_t max_given_tokens = 1'000'000;
  // All sequences of a Score request. One sequence of this length answers within the 4 MiB that
  // gRPC clients accept by default.
  std::int64_t max_score_tokens = 1'000'000;

  // Fixed limits, without a flag.
  static constexpr int max_stop_tokens = 256;
  static constexpr int max_stop_string_bytes = kMaxStopStringBytes;
};

}  // namespace lintel
