#include "model/formats/weights.h"

#include <cassert>
#include <map>
#include <set>
#include <utility>

#include "model/core/error_text.h"
#include "model/core/sinusoidal.h"
#include "model/formats/safetensors_writer.h"

namespace lintel {
namespace {

void compute_positions(const ModelConfig& config, Matrix& table) {
  const std::size_t rows = static_cast<std::size_t>(config.max_length);
  const std::size_t cols = static_cast<std::size_t>(position_width(config));
  if (rows > kMaxComputedTableBytes / sizeof(float) / cols) return;
  table = Matrix(rows, cols);
  for (std::size_t p = 0; p < rows; ++p) {
    sinusoidal_position(static_cast<std::int64_t>(p), table.row(p));
  }
}

}  // namespace

void check_tensors(const SafetensorsFile& file, const ModelConfig& config) {
  std::set<std::string, std::less<>> expected;
  for (const TensorSpec& spec : list_tensors(config)) {
    expected.insert(spec.name);
    const auto found = file.tensors().find(spec.name);
    if (found == file.tensors().end()) {
      if (spec.optional) continue;
      throw ModelError(file.name() + ": tensor \"" + spec.name + "\": missing, expected shape " +
                       shape_to_string(spec.shape));
    }
    const TensorEntry& entry = found->second;
    if (entry.shape != spec.shape) {
      throw ModelError(file.name() + ": tensor \"" + spec.name + "\": found shape " +
                       shape_to_string(entry.shape) + ", expected " + shape_to_string(spec.shape));
    }
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (!expected.contains(name)) {
      throw ModelError(file.name() + ": tensor " + quote(name) + ": surplus, found shape " +
                       shape_to_string(entry.shape) + ", expected no such tensor");
    }
  }
}

ModelWeights load_weights(const SafetensorsFile& file, const ModelConfig& config,
                          const SafetensorsFile::BytesRead& bytes_read) {
  check_tensors(file, config);
  ModelWeights weights;
  std::multimap<std::uint64_t, std::pair<const TensorEntry*, Matrix*>> by_place;
  std::vector<std::pair<TensorSpec, const Matrix*>> with_rules;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, Matrix& matrix) {
    const auto found = file.tensors().find(spec.name);
    if (found == file.tensors().end()) return;  // optional
    matrix = spec.new_matrix();
    by_place.insert({found->second.begin, {&found->second, &matrix}});
    if (spec.refuse) with_rules.emplace_back(spec, &matrix);
  });
  for (const auto& [begin, tensor] : by_place) {
    file.read_f32(*tensor.first, tensor.second->values(), bytes_read);
  }
  file.check_unchanged();
  for (const auto& [spec, matrix] : with_rules) {
    const std::string wrong = spec.refuse(matrix->values());
    if (!wrong.empty()) throw ModelError(file.name() + ": tensor \"" + spec.name + "\": " + wrong);
  }
  const bool sinusoidal = config.position_encoding == PositionEncoding::kSinusoidal;
  if (sinusoidal && weights.position_embedding.rows() == 0) {
    compute_positions(config, weights.position_embedding);
  }
  return weights;
}

void save_weights(const std::filesystem::path& file, const ModelConfig& config,
                  const ModelWeights& weights,
                  const std::function<TensorType(const TensorSpec&)>& type_of) {
  std::vector<TensorToWrite> tensors;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, const Matrix& matrix) {
    if (spec.optional && matrix.values().empty()) return;
    const TensorType type = type_of ? type_of(spec) : TensorType::kF32;
    tensors.push_back({spec.name, spec.shape, matrix.values(), type});
  });
  write_safetensors(file, tensors);
}

}  // namespace lintel
