// The tensors of a ModelInfer response, written from the values of its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/engine/token_sink.h"
#include "server/grpc/kserve/request.h"

namespace lintel {

// The result of a row. Where the request asks for them, with each value its log2-probability (NaN:
// it has none), and the k most likely ones of its position (-1 and NaN where there are none).
struct RowValues {
  std::vector<std::int32_t> tokens;      // [length]
  std::vector<float> log2_probs;         // [length]
  std::vector<std::int32_t> top_tokens;  // [length, k]
  std::vector<float> top_log2_probs;     // [length, k]
  std::int64_t position = 0;             // of the sequence after them
  std::int64_t restarts = 0;             // of the state, in a window
  std::optional<double> log2_evidence;   // of particles
};

void append_value(const TensorRequest& request, std::int32_t token, std::optional<float> log2_prob,
                  std::span<const TopValue> top, RowValues& row);

// Most bytes of a response whose rows have up to `longest` values, echoed ones included.
std::size_t most_response_bytes(const TensorRequest& request, std::int64_t longest);
// Also the position, where the request has tells_position, and the window with the most restarts
// of any row. REQUIRES: there is a row.
void write_tensor_response(const TensorRequest& request, const std::vector<RowValues>& rows,
                           inference::ModelInferResponse& wire);

}  // namespace lintel
