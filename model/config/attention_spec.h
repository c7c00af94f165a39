// SPDX-License-Identifier: Apache-2.0
// AttentionSpec: what runs in place of the attention that config.json names.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/layers/attention/attention.h"

namespace lintel {

// The attention of a layer as JSON, as its kind declares its keys.

// One "attention" object, at `path` of `file`: both are only used in errors. Throws ModelError.
AttentionConfig read_attention(const nlohmann::json& value, const std::string& file,
                               const std::string& path);
// The object that read_attention reads back as the same: every key, in the declared order.
nlohmann::ordered_json attention_json(const AttentionConfig& attention);

// The same of text.
AttentionConfig parse_attention_config(std::string_view json_text, const std::string& name);
std::string to_json(const AttentionConfig& attention);

// "TYPE" or "TYPE:key=value,key=value": a type of attention/kinds.inc, keys of config.json's
// attention object, and
//   recompute=true  no state is kept: for every token the whole prefix is run again, as published
//                   baselines of softmax and LSH attention did. For comparison, not for production
//   seed=N          tensors of the type's own are drawn by this seed (default 0) where the weights
//                   have none of this shape, and always when it is given
// e.g. "softmax:recompute=true", "lsh:rounds=4,bits=32,chunk_size=29,seed=7".
struct AttentionSpec {
  std::string text;  // as it was given
  std::string type;
  std::map<std::string, std::string> keys;  // of config.json, each with its value as JSON
  std::optional<std::uint64_t> seed;
  bool recompute = false;

  // The attention of a layer whose own is `own`. Keys that were not given are the layer's own where
  // the types agree and they do not contradict the others, else config.json's defaults. Throws
  // ModelError naming a key that has neither.
  AttentionConfig applied_to(const AttentionConfig& own, const LayerDims& dims) const;
};

// Throws ModelError naming what is unknown, given twice, out of range or of the wrong type.
AttentionSpec parse_attention_spec(const std::string& text);

// The model with `spec` in place of every layer's attention. Throws ModelError as applied_to does,
// and for keys that do not go together.
ModelConfig with_attention(ModelConfig config, const AttentionSpec& spec);

// The configuration that a spec describes by itself: keys that it leaves out have config.json's
// defaults. Throws ModelError.
AttentionConfig attention_of(const std::string& spec);

// The specs of a kind's samples, "lsh:rounds=2,bits=4,chunk_size=8", and the first of them. Throws
// ModelError for a type that is not in kinds.inc.
std::vector<std::string> sample_specs(std::string_view type);
AttentionConfig sample_attention(std::string_view type);

// The kinds of attention as their declarations tell of them: to programs, and to people.

// A JSON list of all kinds with their keys, and of each sample the attention object, projections
// and tensors of a layer of kSampleDims. `lintel-convert --kinds` prints it and training reads it.
std::string kinds_json();
inline constexpr LayerDims kSampleDims{.d_model = 24, .n_heads = 2, .d_head = 8, .max_length = 64};

// "a whole number from 1 to 256", "above 0, at most 1", "`true` or `false`".
std::string range_of(const ConfigKey& key);
// The default of a key, as text: "1e-6", "1/sqrt(d_head)"; empty: the key is required.
std::string default_of(const ConfigKey& key);

// For --help: "lsh (rounds, bits, chunk_size)" of each kind.
std::string kinds_help();

}  // namespace lintel
