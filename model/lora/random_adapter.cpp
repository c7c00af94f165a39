#include "model/lora/random_adapter.h"

#include <cmath>
#include <fstream>
#include <list>
#include <random>
#include <vector>

#include "model/formats/safetensors_writer.h"
#include "model/lora/adaptable_modules.h"

namespace lintel {

void write_random_adapter(const std::filesystem::path& directory, const ModelConfig& config,
                          const RandomAdapter& options) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "adapter_config.json")
      << "{\"peft_type\": \"LORA\", \"r\": " << options.rank
      << ", \"lora_alpha\": " << options.alpha << "}";
  std::mt19937_64 generator(options.seed);
  std::normal_distribution<double> normal;
  std::list<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::size_t rows, std::size_t cols, double scale) {
    values.emplace_back(rows * cols);
    for (float& value : values.back()) value = static_cast<float>(scale * normal(generator));
    tensors.push_back(
        {name, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)}, values.back()});
  };
  const auto rank = static_cast<std::size_t>(options.rank);
  for (const AdaptableModule& module : adaptable_modules(config)) {
    if (options.adapts != nullptr && !options.adapts(module.name)) continue;
    const std::string name = "base_model.model." + module.name;
    const double a_scale = module.is_embedding ? 1.0 : 1.0 / std::sqrt(module.in);
    const double b_scale = options.b_is_zero ? 0.0 : std::sqrt(0.1);
    add(name + (module.is_embedding ? ".lora_embedding_A" : ".lora_A.weight"), rank, module.in,
        a_scale);
    add(name + (module.is_embedding ? ".lora_embedding_B" : ".lora_B.weight"), module.out, rank,
        b_scale);
  }
  write_safetensors(directory / "adapter_model.safetensors", tensors);
}

}  // namespace lintel
