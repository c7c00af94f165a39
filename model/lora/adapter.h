// SPDX-License-Identifier: Apache-2.0
// Adapter: a LoRA adapter in memory (Hu et al. 2021).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/core/errors.h"
#include "model/core/tensor.h"
#include "model/formats/safetensors.h"
#include "model/lora/low_rank.h"
#include "model/ops/weight_type.h"

namespace lintel {

// The matrices of a model that an adapter may adapt.

// Products of a model of our own format. Projections of a layer are one, side by side.
enum class AdaptedProduct { kProjections, kOut, kLinear1, kLinear2, kPredictor };
// Their numbers. weights: the set of layer tensors; 0 for the predictor.
inline std::size_t product_number(AdaptedProduct product, std::size_t weights) {
  constexpr std::size_t kLayerProducts = 4;
  if (product == AdaptedProduct::kPredictor) return 0;
  return 1 + weights * kLayerProducts + static_cast<std::size_t>(product);
}

struct AdaptableModule {
  std::string name;    // as in the state_dict: "transformer.layers.0.linear1"
  std::size_t in = 0;  // of an embedding: V
  std::size_t out = 0;
  bool is_embedding = false;     // value_embedding: of no product
  std::size_t product = 0;       // its number in the model
  std::size_t first_output = 0;  // the first of its outputs in those of the product
  bool is_read = true;           // false: stored by the format and never computed
};

// Modules of a model of our own format, in the order of its tensors.
std::vector<AdaptableModule> adaptable_modules(const ModelConfig& config);

// AdapterConfig: the contents of adapter_config.json, as PEFT writes it.

inline constexpr int kMaxAdapterRank = 1024;
inline constexpr double kMaxAdapterAlpha = 1e6;
inline constexpr std::size_t kMaxAdapterPatterns = 10'000;

// Parameters of low-rank adaptation (Hu et al. 2021, "LoRA").
struct AdapterConfig {
  int rank = 0;                     // r
  double alpha = 0.0;               // lora_alpha
  bool is_rank_stabilized = false;  // use_rslora: alpha / sqrt(r), not alpha / r
  // Ranks and alphas of single modules, in the file's order: a module's whole name, or its end
  // after a dot. The first that fits counts.
  std::vector<std::pair<std::string, int>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  // module: "transformer.layers.0.linear1".
  int rank_of(std::string_view module) const;
  double scaling_of(std::string_view module) const;
};

// Parses and checks the text of an adapter_config.json. Which modules are adapted say the tensors.
// Refused is what changes the function and is not computed here, and every key that is not known
// and says something: PEFT's new switches do change it. `file` is only used in errors. Throws
// ModelError.
AdapterConfig parse_adapter_config(std::string_view json_text, const std::string& file);

// AdapterFiles: the files of a LoRA adapter, opened once.

// A module that an adapter adapts: y += scaling B (A x), or of an embedding scaling B A[:, token].
struct AdaptedModule {
  AdaptableModule module;
  std::size_t rank = 0;
  double scaling = 0.0;
  const TensorEntry* a = nullptr;  // [rank, in]
  const TensorEntry* b = nullptr;  // [out, rank]
};

// adapter_config.json as it was read, and adapter_model.safetensors, open: as PEFT writes them
// around the model that the state_dict names are of. What is asked of it is of these two files,
// also when others take their places meanwhile.
class AdapterFiles {
 public:
  // Reads and checks both headers against a model of these modules (Transformer::modules); no
  // tensor. Throws ModelError naming file, key or tensor, and both values.
  AdapterFiles(const std::filesystem::path& directory, std::span<const AdaptableModule> modules);
  // Against a model of our own format.
  AdapterFiles(const std::filesystem::path& directory, const ModelConfig& config)
      : AdapterFiles(directory, adaptable_modules(config)) {}

  // Upper bounds: of Adapter::bytes(), and of what Adapter::load takes beside that until it
  // returns.
  std::size_t bytes() const { return bytes_; }
  std::size_t loading_bytes() const { return loading_bytes_; }

  const std::string& config_json() const { return config_json_; }
  const SafetensorsFile& tensors() const { return tensors_; }
  std::span<const AdaptedModule> modules() const { return modules_; }  // at least one
  std::size_t num_products() const { return num_products_; }           // of the model

 private:
  void find_modules(const std::string& file, std::span<const AdaptableModule> modules);
  void measure();

  const std::string config_json_;
  const AdapterConfig config_;
  const SafetensorsFile tensors_;
  std::size_t num_products_ = 0;
  std::vector<AdaptedModule> modules_;
  std::size_t bytes_ = 0;
  std::size_t loading_bytes_ = 0;
};

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
  // product as it is.
  void add(std::size_t product, std::span<const std::uint32_t> rows, MatrixView<const float> x,
           MatrixView<float> y) const;
  // The matrices that add() reads there.
  void list(std::size_t product, PrefetchList& prefetch) const;
  // The same to the value's part of an embedded row.
  void add_value(std::int32_t token, std::span<float> row) const;
  std::size_t num_products() const { return products_.size(); }  // of its models

  // Bytes of a module's matrices, and of an adapter beside them.
  static std::size_t bytes_of(const AdaptedModule& adapted);
  static std::size_t object_bytes(std::size_t num_modules, std::size_t num_products);

 private:
  // A module's outputs among those of its product.
  struct Part {
    std::size_t first_output = 0;
    LowRank matrices;
  };
  using Product = std::vector<Part>;

  explicit Adapter(const AdapterFiles& files);
  void read_tensors(const AdapterFiles& files);

  std::string fingerprint_;
  std::size_t bytes_ = 0;
  int max_rank_ = 0;
  std::vector<std::string> modules_;
  std::vector<Product> products_;  // by number
  Matrix value_numbers_;  // [V, r]: A of the embedding, transposed; empty where it is not adapted
  LowRankOutput value_output_;
  float value_scaling_ = 0.0f;
};

// AdaptedRows: which rows of a pass go through an adapter.

// Grouped by adapter, so that the matrices of each are read once a product. Working memory of one
// thread: it allocates nothing within what was reserved.
class AdaptedRows {
 public:
  void reserve(std::size_t max_rows);
  void clear() { rows_.clear(), groups_.clear(), found_.clear(); }
  // Row by row; null: it has none. The adapter outlives the pass.
  void note(std::size_t row, const Adapter* adapter) {
    if (adapter != nullptr) found_.emplace_back(adapter, static_cast<std::uint32_t>(row));
  }
  void group();  // once all are noted

  // Lists the memory that add() will read, as far as a core's cache is likely to hold it: the
  // product before it prefetches this memory.
  void list(std::size_t product, PrefetchList& prefetch) const;

  bool empty() const { return rows_.empty(); }
  // Adds the adapters' outputs to a product of x.
  void add(std::size_t product, MatrixView<const float> x, MatrixView<float> y) const;

 private:
  struct Group {
    const Adapter* adapter;
    std::size_t first;  // of rows_
    std::size_t count;
  };
  std::vector<std::pair<const Adapter*, std::uint32_t>> found_;
  std::vector<std::uint32_t> rows_;
  std::vector<Group> groups_;
};

// LoRA adapters with random weights, for tests and measurements, which need some adapter and
// not a trained one.

struct RandomAdapter {
  int rank = 4;
  double alpha = 8.0;
  std::uint64_t seed = 1;
  bool b_is_zero = false;  // as before training: it changes nothing
  // Selects modules by name; null: each that can be adapted.
  std::function<bool(const std::string& module)> adapts = nullptr;
};

// Writes adapter_config.json and adapter_model.safetensors (F32) into `directory`, made if absent,
// for models of these modules. A is N(0, 1 / in), B is N(0, 0.1): outputs change visibly.
void write_random_adapter(const std::filesystem::path& directory,
                          std::span<const AdaptableModule> modules,
                          const RandomAdapter& options = {});
inline void write_random_adapter(const std::filesystem::path& directory, const ModelConfig& config,
                                 const RandomAdapter& options = {}) {
  write_random_adapter(directory, adaptable_modules(config), options);
}

}  // namespace lintel
