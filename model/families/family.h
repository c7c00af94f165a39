// SPDX-License-Identifier: Apache-2.0
// ModelFamily: checkpoints of one model_type, from their keys and tensors to a Decoder; and models
// of our own format.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "model/families/unknown_key.h"
#include "model/formats/weight_source.h"
#include "model/layers/mixers/decoder.h"
#include "model/ops/dense.h"
#include "model/ops/kv_type.h"

namespace lintel {

class GgufFile;

// A directory as Hugging Face's libraries write it, or a GGUF file, opened.
struct Checkpoint {
  const nlohmann::json* config = nullptr;  // config.json; null: a GGUF file
  const GgufFile* gguf = nullptr;          // the same as `tensors`; null: a directory
  std::string config_file;                 // the file that has the keys, for errors
  const WeightSource& tensors;
};

struct ModelFamily {
  std::span<const char* const> model_types;  // of config.json
  const char* architecture = nullptr;        // of GGUF files; null: there are none
  // Checks every key and fills what is common to all models. Throws ModelError naming the key, what
  // was found and what was expected. Adds to `unknown` the keys that are not known.
  ModelConfig (*read_config)(const Checkpoint& checkpoint, std::vector<UnknownKey>& unknown);
  // Reads every tensor once. Throws ModelError for a tensor that is missing, surplus, mis-shaped or
  // not finite. kv_type: of KV caches, where the layers have some. notes: what an operator should
  // know, a sentence each.
  std::unique_ptr<const Decoder> (*make)(const Checkpoint& checkpoint,
                                         const Dense::Options& options, KvType kv_type,
                                         std::vector<std::string>& notes);
};

extern const ModelFamily family_qwen3_5;
extern const ModelFamily family_qwen3_5_moe;  // and qwen3_next
extern const ModelFamily family_rwkv7;
extern const ModelFamily family_fla;

// Null where model_type is none of any family.
const ModelFamily* find_family(std::string_view model_type);
// "qwen3_5, qwen3_5_text, rwkv7".
std::string family_names();
// The same of general.architecture in GGUF files.
const ModelFamily* find_architecture(std::string_view architecture);
std::string architecture_names();

// Models of our own format, whose config.json is a ModelConfig.

// Reads every tensor that the layers use once. Throws ModelError for one that is not finite, or
// refused by its kind of attention. REQUIRES: check_tensors(tensors, config).
std::unique_ptr<const Decoder> make_native(const ModelConfig& config, const WeightSource& tensors,
                                           const Dense::Options& options);

// --attention: `tensors` of a model of `config` as those of with_attention(config, spec). They keep
// their values where the new kind has one of the same name and shape; all its other tensors are
// drawn: projections with weights from N(0, 1/E) and no bias, its own tensors as it declares, by
// the seed of the spec. `tensors` outlive the result. Throws ModelError as with_attention().
std::unique_ptr<const WeightSource> replace_attention(const AttentionSpec& spec,
                                                      const ModelConfig& config,
                                                      const WeightSource& tensors);

// Throws ModelError naming the first projection that has more inputs than `type` can sum exactly.
void check_weight_type(const ModelConfig& config, WeightType type);

// The weight type that a family's model is loaded as: int8 with a scale for each 128 inputs, but on
// AMX, which has no kernels for it.
WeightType family_type_of(WeightType type);

}  // namespace lintel
