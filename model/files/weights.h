// ModelWeights: every tensor of a model as f32, and the one list of their names and shapes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/base/tensor.h"
#include "model/config/config.h"
#include "model/files/safetensors.h"

namespace lintel {

// y = x W^T + b as PyTorch stores it.
struct LinearWeights {
  Matrix weight;  // [out, in]
  Matrix bias;    // [1, out]
};

struct NormWeights {
  Matrix weight;  // [1, E]
  Matrix bias;    // [1, E]
};

struct LayerWeights {
  LinearWeights query;    // [H*D, E]
  LinearWeights key;      // [H*D, E]; stored for lsh too, which does not use it
  LinearWeights value;    // [H*D, E]
  LinearWeights out;      // [E, H*D]
  Matrix planes;          // [rounds * bits, D]; lsh, else empty
  LinearWeights linear1;  // [F, E]
  LinearWeights linear2;  // [E, F]
  NormWeights norm1;
  NormWeights norm2;
};

// Weights as read from the file, before packing. Large: drop it once the model is built.
struct ModelWeights {
  Matrix value_embedding;  // [V, E/2] (concat) or [V, E]
  // [max_length, position_width()]. Empty where positions are computed as they come: sinusoidal
  // with max_length 0, or a table of more than kMaxComputedTableBytes that the file leaves out; and
  // where there are no positions.
  Matrix position_embedding;
  std::vector<LayerWeights> layers;  // [n_layers]
  NormWeights final_norm;            // empty without final_norm
  LinearWeights predictor;           // [num_outputs, E]
};

inline constexpr std::size_t kMaxComputedTableBytes = std::size_t{64} << 20;

// Width of the value and of the position part of an embedded row; the latter 0 without positions.
int value_width(const ModelConfig& config);
int position_width(const ModelConfig& config);

// Name and shape of a tensor in the file. It is held as a Matrix [product of all but the last,
// last].
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  bool optional = false;       // the file may leave it out
  bool is_parameter = true;    // learned: not a table or hash planes
  bool is_projection = false;  // a layer's matrix: what --weight-type converts

  std::int64_t num_values() const;
};

// The one list: calls visit for every tensor a model of this config has, in a fixed order, with the
// member of `weights` that holds it; used to load, count, fill and write. Resizes weights.layers;
// the matrices are the caller's to allocate.
void for_each_tensor(const ModelConfig& config, ModelWeights& weights,
                     const std::function<void(const TensorSpec&, Matrix&)>& visit);
// The same over weights that exist. REQUIRES: weights.layers.size() == config.n_layers.
void for_each_tensor(const ModelConfig& config, const ModelWeights& weights,
                     const std::function<void(const TensorSpec&, const Matrix&)>& visit);
// Names and shapes alone.
std::vector<TensorSpec> list_tensors(const ModelConfig& config);

// Learned values: position tables that are not learned and hash planes do not count.
std::int64_t count_parameters(const ModelConfig& config);

// Throws ModelError naming file, tensor and both shapes for a missing, surplus or mis-shaped
// tensor.
void check_tensors(const SafetensorsFile& file, const ModelConfig& config);

// Reads all tensors. Throws ModelError as check_tensors does, for a tensor that is
// not finite, and for a file that changes meanwhile. All is copied: afterwards the file may go.
// Fills position_embedding when it may be left out.
ModelWeights load_weights(const SafetensorsFile& file, const ModelConfig& config);

// Writes `file` in F32, or each tensor in the type of floats that `type_of` says; empty optional
// tensors are left out. REQUIRES: shapes as in the list.
void save_weights(const std::filesystem::path& file, const ModelConfig& config,
                  const ModelWeights& weights,
                  const std::function<TensorType(const TensorSpec&)>& type_of = nullptr);

// One row of the sinusoidal table, out.size() even: out[2i] = sin(p * 10000^(-2i/d)), out[2i+1] =
// cos of the same. The angle is a double: rows far beyond 2^24 stay distinct.
void sinusoidal_position(std::int64_t position, std::span<float> out);

}  // namespace lintel
