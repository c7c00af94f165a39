// ModelWeights from a file and to one, each tensor checked against the list.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "model/config/config.h"
#include "model/formats/safetensors.h"
#include "model/formats/tensor_list.h"

namespace lintel {

inline constexpr std::size_t kMaxComputedTableBytes = std::size_t{64} << 20;

// Throws ModelError naming file, tensor and both shapes for a missing, surplus or mis-shaped
// tensor.
void check_tensors(const SafetensorsFile& file, const ModelConfig& config);

// Reads all tensors, in the order they have in the file: `bytes_read` receives everything after the
// header. Throws ModelError as check_tensors does, for a tensor that is not finite, and for a
// file that changes meanwhile. All is copied: afterwards the file may go. Fills position_embedding
// when it may be left out.
ModelWeights load_weights(const SafetensorsFile& file, const ModelConfig& config,
                          const SafetensorsFile::BytesRead& bytes_read = nullptr);

// Writes `file` in F32, or each tensor in the type of floats that `type_of` says; empty optional
// tensors are left out. REQUIRES: shapes as in the list.
void save_weights(const std::filesystem::path& file, const ModelConfig& config,
                  const ModelWeights& weights,
                  const std::function<TensorType(const TensorSpec&)>& type_of = nullptr);

}  // namespace lintel
