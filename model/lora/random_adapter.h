// LoRA adapters with random weights, for tests and measurements, which need some adapter and
// not a trained one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "model/config/config.h"

namespace lintel {

struct RandomAdapter {
  int rank = 4;
  double alpha = 8.0;
  std::uint64_t seed = 1;
  bool b_is_zero = false;  // as before training: it changes nothing
  // Which modules, by name; null: each that can be adapted.
  std::function<bool(const std::string& module)> adapts = nullptr;
};

// Writes adapter_config.json and adapter_model.safetensors (F32) into `directory`, made if absent,
// for models of `config`. A is N(0, 1 / in), B is N(0, 0.1): outputs change visibly.
void write_random_adapter(const std::filesystem::path& directory, const ModelConfig& config,
                          const RandomAdapter& options = {});

}  // namespace lintel
