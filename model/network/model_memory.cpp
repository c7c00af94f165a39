#include "model/network/model_memory.h"

#include <cstdint>

#include "model/dense/dense.h"
#include "model/files/model_directory.h"
#include "model/files/weights.h"
#include "model/network/layer.h"

namespace lintel {
namespace {

std::size_t product(std::size_t a, std::size_t b) {
  std::size_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? SIZE_MAX : result;
}

void add(std::size_t& sum, std::size_t bytes) {
  if (__builtin_add_overflow(sum, bytes, &sum)) sum = SIZE_MAX;
}

std::size_t f32_bytes_of(const TensorSpec& spec) {
  std::size_t bytes = sizeof(float);
  for (const std::int64_t size : spec.shape) bytes = product(bytes, static_cast<std::size_t>(size));
  return bytes;
}

}  // namespace

ModelMemory measure_model(const std::filesystem::path& directory,
                          const Transformer::Options& options) {
  const ModelDirectory files(directory);
  const ModelConfig& config = files.config();
  const SafetensorsFile& file = files.weights();
  check_tensors(file, config);
  check_weight_type(config, options.weight_type);
  ModelMemory memory;
  for (const TensorSpec& spec : list_tensors(config)) {
    const std::size_t f32_bytes = f32_bytes_of(spec);
    // A table the file leaves out is computed while loading, or, where it is large, at every call.
    if (!file.tensors().contains(spec.name) && f32_bytes > kMaxComputedTableBytes) continue;
    add(memory.loading_bytes, f32_bytes);
    const bool is_predictor = spec.name == "predictor.weight";
    if (!spec.is_projection && !is_predictor) {
      add(memory.resident_bytes, f32_bytes);
      continue;
    }
    add(memory.resident_bytes,
        Dense::most_weight_bytes(static_cast<std::size_t>(spec.shape[1]),
                                 static_cast<std::size_t>(spec.shape[0]),
                                 is_predictor ? WeightType::kF32 : options.weight_type));
  }
  // Queries, keys and values of a layer are put together before they are packed.
  const std::size_t heads = product(static_cast<std::size_t>(config.n_heads), config.d_head);
  add(memory.loading_bytes, product(3 * heads * sizeof(float), config.d_model));
  if (options.attention.has_value()) {  // hash planes of its own
    for (const AttentionConfig& own : config.attention) {
      const AttentionConfig now = options.attention->applied_to(own);
      const std::size_t planes = product(static_cast<std::size_t>(now.rounds) * now.bits,
                                         static_cast<std::size_t>(config.d_head) * sizeof(float));
      add(memory.loading_bytes, planes);
      add(memory.resident_bytes, planes);
    }
  }
  return memory;
}

}  // namespace lintel
