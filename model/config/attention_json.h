// The attention of a layer as JSON, as its kind declares its keys.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "model/layers/attention/declaration.h"

namespace lintel {

// One "attention" object, at `path` of `file`: both are only used in errors. Throws ModelError.
AttentionConfig read_attention(const nlohmann::json& value, const std::string& file,
                               const std::string& path);
// The object that read_attention reads back as the same: every key, in the declared order.
nlohmann::ordered_json attention_json(const AttentionConfig& attention);

// The same of text.
AttentionConfig parse_attention_config(std::string_view json_text, const std::string& name);
std::string to_json(const AttentionConfig& attention);

}  // namespace lintel
