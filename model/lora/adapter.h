// Adapter: a LoRA adapter in memory (Hu et al. 2021).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/core/tensor.h"
#include "model/lora/adapter_files.h"
#include "model/lora/low_rank.h"
#include "model/ops/prefetch_list.h"

namespace lintel {

// Immutable; const and shareable between threads. For models of the config that its files were
// opened with. Its matrices are f32 in every model, and never merged into those.
class Adapter {
 public:
  // Reads every byte of the tensors once. Throws ModelError for a tensor that is not finite, and
  // for a file that changes meanwhile.
  static std::shared_ptr<const Adapter> load(const AdapterFiles& files);

  // SHA-256 over, for adapter_config.json and adapter_model.safetensors in this order, the length
  // (8 bytes, little-endian) and the bytes. Hexadecimal, 64 characters.
  const std::string& fingerprint() const { return fingerprint_; }
  std::size_t bytes() const { return bytes_; }
  int max_rank() const { return max_rank_; }
  // Names of the modules that it adapts, as in the state_dict.
  const std::vector<std::string>& modules() const { return modules_; }

  // For Transformer. Adds to a product of rows `rows` of x; nothing where the adapter leaves the
  // product as it is. `weights`: the set of layer tensors; 0 for the predictor.
  void add(AdaptedProduct product, std::size_t weights, std::span<const std::uint32_t> rows,
           MatrixView<const float> x, MatrixView<float> y) const;
  // The matrices that add() reads there.
  void list(AdaptedProduct product, std::size_t weights, PrefetchList& prefetch) const;
  // The same to the value's part of an embedded row.
  void add_value(std::int32_t token, std::span<float> row) const;
  std::size_t num_layer_weights() const { return layers_.size(); }  // of its models

  // What a module's matrices take, and an adapter beside them.
  static std::size_t bytes_of(const AdaptedModule& adapted);
  static std::size_t object_bytes(std::size_t num_modules, std::size_t num_layer_weights);

 private:
  // A module's outputs among those of its product.
  struct Part {
    std::size_t first_output = 0;
    LowRank matrices;
  };
  using Product = std::vector<Part>;

  explicit Adapter(const AdapterFiles& files);
  void read_tensors(const AdapterFiles& files);
  Product& product(const AdaptableModule& module);
  const Product& product(AdaptedProduct which, std::size_t weights) const {
    return which == AdaptedProduct::kPredictor ? predictor_
                                               : layers_[weights][static_cast<std::size_t>(which)];
  }

  std::string fingerprint_;
  std::size_t bytes_ = 0;
  int max_rank_ = 0;
  std::vector<std::string> modules_;
  std::vector<std::array<Product, kLayerProducts>> layers_;  // [sets of layer tensors]
  Product predictor_;
  Matrix value_numbers_;  // [V, r]: A of the embedding, transposed; empty where it is not adapted
  LowRankOutput value_output_;
  float value_scaling_ = 0.0f;
};

}  // namespace lintel
