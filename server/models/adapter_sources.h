// Where the LoRA adapters of a model lie on the disk.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lintel {

// A directory with adapter_config.json and adapter_model.safetensors, as PEFT writes them.
struct AdapterSource {
  std::string name;
  std::filesystem::path directory;
};

// DIR/adapters/NAME/ of the model in DIR, by name. Entries whose names could name no model are
// passed over. Empty where there is no such directory, or `model_directory` is empty.
std::vector<AdapterSource> adapters_in(const std::filesystem::path& model_directory);

}  // namespace lintel
