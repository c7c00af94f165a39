// AdapterConfig: what adapter_config.json says, as PEFT writes it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/model_error.h"

namespace lintel {

inline constexpr int kMaxAdapterRank = 1024;
inline constexpr double kMaxAdapterAlpha = 1e6;
inline constexpr std::size_t kMaxAdapterPatterns = 10'000;

// Of low-rank adaptation (Hu et al. 2021, "LoRA").
struct AdapterConfig {
  int rank = 0;                     // r
  double alpha = 0.0;               // lora_alpha
  bool is_rank_stabilized = false;  // use_rslora: alpha / sqrt(r), not alpha / r
  // Of modules of their own, in the file's order: a whole name or what follows one of its dots. The
  // first that fits counts.
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

}  // namespace lintel
