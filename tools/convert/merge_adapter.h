// A LoRA adapter into the weights that it adapts.
#pragma once

#include <set>
#include <string>

#include "model/config/config.h"
#include "model/formats/tensor_list.h"
#include "model/lora/adapter_files.h"

namespace lintel {

// W += scaling B A of every module, computed in double and rounded to f32 once; of an embedding
// row by row. Returns the names of the tensors that changed. `weights` are of the config that the
// files were opened with. Throws ModelError for tensors of the adapter that are not finite.
std::set<std::string> merge_adapter(const AdapterFiles& files, const ModelConfig& config,
                                    ModelWeights& weights);

}  // namespace lintel
