// SPDX-License-Identifier: Apache-2.0
// ModelWeights from a file and to one, each tensor checked against the list.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/core/tensor.h"
#include "model/formats/safetensors.h"
#include "model/formats/weight_source.h"

namespace lintel {

// The sinusoidal table of positions (Vaswani et al. 2017, section 3.5).

// One row of the table, out.size() even: out[2i] = sin(p * 10000^(-2i/d)), out[2i+1] = cos of the
// same. The angle is a double: rows far beyond 2^24 stay distinct.
void sinusoidal_position(std::int64_t position, std::span<float> out);

// The one list of a model's tensors: names and shapes, and the member of ModelWeights that holds
// each.

// y = x W^T + b as PyTorch stores it.
struct LinearWeights {
  Matrix weight;  // [out, in]
  Matrix bias;    // [1, out]; empty without
};

struct NormWeights {
  Matrix weight;  // [1, width]
  Matrix bias;    // [1, width]
};

struct LayerWeights {
  std::vector<LinearWeights>
      projections;          // [width, E] each, as the kind of attention declares them
  LinearWeights out;        // [E, out_width]
  std::vector<Matrix> own;  // other tensors that it declares
  LinearWeights linear1;    // [F, E]
  LinearWeights linear2;    // [E, F]
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
  Matrix step_embedding;             // [n_layers, E]; empty without
  std::vector<LayerWeights> layers;  // [num_layer_weights()]
  NormWeights final_norm;            // of last_width(); empty without final_norm
  LinearWeights predictor;           // [num_outputs, last_width()]
};

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
  bool is_own = false;         // of a kind of attention, beside its projections
  // Returns the error of values that were read, as OwnTensor::refuse; null: any values are valid.
  std::function<std::string(std::span<const float> values)> refuse;
  // Fills one of a random model, where its kind of attention declares how.
  std::function<void(std::span<float> values, std::uint64_t seed)> draw;

  std::int64_t num_elements() const;
  Matrix new_matrix() const;  // zeroed
  // Throws ModelError naming the file for values that `refuse` refuses.
  void check(std::span<const float> values, const std::string& file) const;
};

// Calls visit for every tensor a model of this config has, in a fixed order, with the member of
// `weights` that holds it, those that layers share once; used to load, count, fill and write. Makes
// room in `weights` for what the layers declare; the matrices are the caller's to allocate.
void for_each_tensor(const ModelConfig& config, ModelWeights& weights,
                     const std::function<void(const TensorSpec&, Matrix&)>& visit);
// The same over weights that exist. REQUIRES: they are of this config.
void for_each_tensor(const ModelConfig& config, const ModelWeights& weights,
                     const std::function<void(const TensorSpec&, const Matrix&)>& visit);
// Names and shapes alone.
std::vector<TensorSpec> list_tensors(const ModelConfig& config);

// Learned values: position tables that are not learned and hash planes do not count.
std::int64_t count_parameters(const ModelConfig& config);

inline constexpr std::size_t kMaxComputedTableBytes = std::size_t{64} << 20;

// The table of positions where it is sinusoidal and not too large; else empty.
Matrix computed_positions(const ModelConfig& config);

// Throws ModelError naming file, tensor and both shapes for a missing, surplus or mis-shaped
// tensor.
void check_tensors(const WeightSource& tensors, const ModelConfig& config);

// All tensors at once, for tools and tests: a Transformer reads one at a time. Throws ModelError as
// check_tensors does, for a tensor that is not finite, and for a file that changes meanwhile. Fills
// position_embedding when it may be left out.
ModelWeights load_weights(const WeightSource& tensors, const ModelConfig& config);

// Writes `file` in F32, or each tensor in the type of floats that `type_of` says; empty optional
// tensors are left out. REQUIRES: shapes as in the list.
void save_weights(const std::filesystem::path& file, const ModelConfig& config,
                  const ModelWeights& weights,
                  const std::function<TensorType(const TensorSpec&)>& type_of = nullptr);

}  // namespace lintel
