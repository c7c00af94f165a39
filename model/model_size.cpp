#include "model/model_size.h"

#include <algorithm>
#include <cstdint>

#include "model/formats/weights.h"
#include "model/layer.h"
#include "model/ops/dense.h"

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
  for (const std::int64_t n : spec.shape) bytes = product(bytes, static_cast<std::size_t>(n));
  return bytes;
}

// Projections of a layer are put together before they are packed.
std::size_t stacked_bytes(const ModelConfig& config) {
  std::size_t most = 0;
  for (const AttentionConfig& attention : config.attention) {
    std::size_t width = 0;
    for (const Projection& p : attention.kind().projections(attention, config.dims())) {
      if (p.is_read) width += static_cast<std::size_t>(p.width);
    }
    most = std::max(most, product(width * sizeof(float), static_cast<std::size_t>(config.d_model)));
  }
  return most;
}

}  // namespace

ModelSize measure_model(const ModelFiles& files, const Transformer::Options& options) {
  const ModelConfig& config = files.config();
  const SafetensorsFile& file = files.weights();
  check_tensors(file, config);
  check_weight_type(config, options.weight_type);
  ModelSize size;
  const auto is_left_out = [&](const TensorSpec& spec) {
    // A table the file leaves out is computed while loading, or, where it is large, at every call.
    return !file.tensors().contains(spec.name) && f32_bytes_of(spec) > kMaxComputedTableBytes;
  };
  for (const TensorSpec& spec : list_tensors(config)) {
    if (!is_left_out(spec)) add(size.loading_bytes, f32_bytes_of(spec));
  }
  const ModelConfig running =
      options.attention.has_value() ? with_attention(config, *options.attention) : config;
  const bool is_seeded = options.attention.has_value() && options.attention->seed.has_value();
  for (const TensorSpec& spec : list_tensors(running)) {
    // Drawn in place of what the file has.
    const auto found = file.tensors().find(spec.name);
    const bool is_drawn = (is_seeded && spec.is_own) || found == file.tensors().end() ||
                          found->second.shape != spec.shape;
    if (is_drawn && !spec.optional) {
      add(size.loading_bytes, f32_bytes_of(spec));
    }
    const bool is_predictor = spec.name == "predictor.weight";
    if (!spec.is_projection && !is_predictor) {
      if (!is_left_out(spec)) add(size.resident_bytes, f32_bytes_of(spec));
      continue;
    }
    add(size.resident_bytes,
        Dense::most_weight_bytes(static_cast<std::size_t>(spec.shape[1]),
                                 static_cast<std::size_t>(spec.shape[0]),
                                 is_predictor ? WeightType::kF32 : options.weight_type));
  }
  for (int i = 0; i < running.num_layer_weights(); ++i) {
    const AttentionConfig& attention = running.attention[running.first_layer_with(i)];
    const auto table_floats = attention.kind().table_floats;
    if (table_floats == nullptr) continue;
    add(size.resident_bytes, product(table_floats(attention, running.dims()), sizeof(float)));
  }
  add(size.loading_bytes, stacked_bytes(running));
  return size;
}

}  // namespace lintel
