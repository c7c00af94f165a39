// Model shapes that are compared, and where their weights come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/transformer.h"

namespace lintel::bench {

// A model of the literature: Katharopoulos et al. 2020, section 4.2, and the small one of weights/.
struct Shape {
  std::string name;    // "mnist"
  ModelConfig config;  // with linear attention
  int lsh_bits = 32;   // half the buckets of a round
  int lsh_chunk = 32;

  // What --attention takes: LSH as the paper ran it.
  std::string lsh_spec(int rounds) const;
};

// "mnist", "cifar10", "mnist-small". Throws cli::UsageError for another name.
Shape find_shape(const std::string& name);
std::vector<std::string> shape_names();

// A model directory, or one with random weights that lives as long as this.
class ModelFiles {
 public:
  explicit ModelFiles(std::filesystem::path directory);  // existing files
  // Random weights in the system's temporary directory.
  explicit ModelFiles(const ModelConfig& config);
  ~ModelFiles();
  ModelFiles(const ModelFiles&) = delete;
  ModelFiles& operator=(const ModelFiles&) = delete;

  const std::filesystem::path& directory() const { return directory_; }
  bool random() const { return random_; }
  std::string name() const;  // "random weights" or the directory's name
  // `attention` empty: the model's own. Throws ModelError.
  std::shared_ptr<const Transformer> load(WeightType weight_type,
                                          const std::string& attention = "") const;

 private:
  std::filesystem::path directory_;
  bool random_ = false;
};

// "mnist: 8 layers, 8 heads of 32, d_model 256, feed-forward 1024, 784 values"
std::string describe(const std::string& name, const ModelConfig& config);

}  // namespace lintel::bench
