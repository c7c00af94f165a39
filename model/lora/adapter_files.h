// AdapterFiles: the files of a LoRA adapter, opened once.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/formats/safetensors.h"
#include "model/lora/adaptable_modules.h"
#include "model/lora/adapter_config.h"

namespace lintel {

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
  // Reads and checks both headers against a model of `config`; no tensor. Throws ModelError naming
  // file, key or tensor, and both values.
  AdapterFiles(const std::filesystem::path& directory, const ModelConfig& config);

  // Upper bounds: of Adapter::bytes(), and of what Adapter::load takes beside that until it
  // returns.
  std::size_t bytes() const { return bytes_; }
  std::size_t loading_bytes() const { return loading_bytes_; }

  const std::string& config_json() const { return config_json_; }
  const SafetensorsFile& tensors() const { return tensors_; }
  std::span<const AdaptedModule> modules() const { return modules_; }   // at least one
  std::size_t num_layer_weights() const { return num_layer_weights_; }  // of the model

 private:
  void find_modules(const std::string& file, const ModelConfig& config);
  void measure();

  const std::string config_json_;
  const AdapterConfig config_;
  const SafetensorsFile tensors_;
  const std::size_t num_layer_weights_;
  std::vector<AdaptedModule> modules_;
  std::size_t bytes_ = 0;
  std::size_t loading_bytes_ = 0;
};

}  // namespace lintel
