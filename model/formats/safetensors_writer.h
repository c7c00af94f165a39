// Writes safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/formats/safetensors_header.h"

namespace lintel {

// A tensor to write; borrows its values.
struct TensorToWrite {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
  std::optional<TensorType> type = std::nullopt;  // in place of the others' type
};

// Writes `path` with the tensors in the given order as F32, F16 or BF16 (rounded to nearest even).
// Throws ModelError when the file cannot be written, std::invalid_argument for a shape that does
// not fit its values or a name given twice.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       TensorType type = TensorType::kF32);

}  // namespace lintel
