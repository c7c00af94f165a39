// SPDX-License-Identifier: Apache-2.0
#include "server/ollama/models.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "model/core/sha256.h"
#include "server/core/clock.h"
#include "server/http/encoding/json_bodies.h"
#include "server/ollama/answer.h"
#include "server/openai/named_models.h"

namespace lintel {
namespace {

using ModelJson = nlohmann::ordered_json;

std::string modified_time() {
  return ollama_time(std::chrono::system_clock::time_point(std::chrono::seconds(kStartSeconds)));
}

// The configuration of the checkpoint; not an object if the model is not loaded.
ModelJson config_of(const v1::Model& model) {
  return ModelJson::parse(model.config_json(), nullptr, /*allow_exceptions=*/false);
}

// "rwkv7", also of a GGUF file. Lintel's own format has no names of families.
std::string family_of(const ModelJson& config) {
  for (const char* const member : {"model_type", "general.architecture"}) {
    if (!config.is_object() || !config.contains(member)) continue;
    if (config[member].is_string()) return config[member].get<std::string>();
  }
  return "lintel";
}

// "596.0M" of 596,049,920.
std::string parameter_size(std::int64_t parameters) {
  constexpr std::array<std::pair<double, char>, 4> kUnits = {
      {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}}};
  const auto count = static_cast<double>(parameters);
  for (const auto& [size, letter] : kUnits) {
    if (count < size) continue;
    char text[32];
    std::snprintf(text, sizeof text, "%.1f%c", count / size, letter);
    return text;
  }
  return std::to_string(parameters);
}

// 64 hexadecimal digits: the fingerprint, which a model has once it is loaded.
std::string digest_of(const v1::Model& model) {
  if (!model.fingerprint().empty()) return model.fingerprint();
  Sha256 hash;
  hash.add(model.name());
  return hash.hex();
}

// The most tokens of a prompt and its answer; for an unbounded model the most of a prompt.
std::int64_t context_length(const v1::Model& model) {
  return model.max_length() > 0 ? model.max_length() : model.limits().max_prompt_tokens();
}

ModelJson details_json(const v1::Model& model) {
  const std::string family = family_of(config_of(model));
  std::string quantization = model.weight_type();
  std::ranges::transform(quantization, quantization.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  ModelJson details = {
      {"parent_model", ""},
      {"format", model.weight_type() == "blocks" ? "gguf" : "safetensors"},
      {"family", family},
      {"families", ModelJson::array({family})},
      {"parameter_size", model.parameters() > 0 ? parameter_size(model.parameters()) : ""},
      {"quantization_level", quantization}};
  if (context_length(model) > 0) details["context_length"] = context_length(model);
  return details;
}

// A name with its tag, which is latest unless it has one.
std::string tagged(const std::string& name) {
  const std::size_t last = name.rfind('/') + 1;  // 0: there is none
  return name.find(':', last) == std::string::npos ? name + ":latest" : name;
}

// `id`: its name, or another that means it.
ModelJson model_json(const v1::Model& model, const std::string& id) {
  ModelJson details = details_json(model);
  if (id != model.name()) details["parent_model"] = tagged(model.name());
  const std::string name = tagged(id);
  return {{"name", name},
          {"model", name},
          {"modified_at", modified_time()},
          {"size", model.weight_bytes()},
          {"digest", digest_of(model)},
          {"details", std::move(details)}};
}

// Lines of a name and a value, as in a Modelfile.
std::string parameters_text(const v1::Sampling& sampling) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.empty() ? "" : "\n") + std::string(name) + " " + value;
  };
  if (sampling.has_temperature()) add("temperature", dumped(short_number(sampling.temperature())));
  if (sampling.has_top_k()) add("top_k", std::to_string(sampling.top_k()));
  if (sampling.has_top_p()) add("top_p", dumped(short_number(sampling.top_p())));
  if (sampling.has_min_p()) add("min_p", dumped(short_number(sampling.min_p())));
  if (sampling.has_repetition_penalty()) {
    add("repeat_penalty", dumped(short_number(sampling.repetition_penalty())));
  }
  return text;
}

// Members with GGUF's names, most of which begin with the architecture.
ModelJson model_info(const v1::Model& model) {
  const ModelJson config = config_of(model);
  const std::string architecture = family_of(config);
  ModelJson info = {{"general.architecture", architecture}, {"general.basename", model.name()}};
  const auto add_known = [&](const std::string& name, std::int64_t number) {
    if (number > 0) info[name] = number;  // 0: the model is not loaded
  };
  add_known("general.parameter_count", model.parameters());
  add_known(architecture + ".context_length", context_length(model));
  add_known(architecture + ".vocab_size", model.vocab_size());
  const auto add = [&](const std::string& name, std::initializer_list<const char*> members) {
    const std::string ours = architecture + "." + name;
    std::vector<std::string> names(members.begin(), members.end());
    names.push_back(ours);  // of a GGUF file
    for (const std::string& member : names) {
      if (!config.is_object() || !config.contains(member)) continue;
      if (!config[member].is_number_integer()) continue;
      info[ours] = config[member];
      return;
    }
  };
  add("embedding_length", {"hidden_size", "d_model"});
  add("block_count", {"num_hidden_layers", "n_layers"});
  return info;
}

}  // namespace

ModelJson tags_json(const v1::ListModelsResponse& list) {
  ModelJson models = ModelJson::array();
  for (const auto& [id, model] : named_models(list)) models.push_back(model_json(*model, id));
  return {{"models", std::move(models)}};
}

ModelJson running_json(const v1::ListModelsResponse& list) {
  // Models stay until an operator or another model's request removes them.
  constexpr std::chrono::hours kLong{24 * 365 * 100};
  const std::string end = ollama_time(std::chrono::system_clock::now() + kLong);
  ModelJson models = ModelJson::array();
  for (const auto& [id, model] : named_models(list)) {
    if (id != model->name() || model->state() != v1::MODEL_STATE_READY) continue;
    ModelJson json = model_json(*model, id);
    json.erase("modified_at");
    json["expires_at"] = end;
    json["size_vram"] = 0;
    json["context_length"] = context_length(*model);
    models.push_back(std::move(json));
  }
  return {{"models", std::move(models)}};
}

ModelJson show_json(const v1::Model& model, const OllamaCapabilities& capabilities) {
  ModelJson names = ModelJson::array({"completion"});
  if (capabilities.tools) names.push_back("tools");
  if (capabilities.thinking) names.push_back("thinking");
  return {{"parameters", parameters_text(model.sampling_defaults())},
          {"template", model.chat_template()},
          {"details", details_json(model)},
          {"model_info", model_info(model)},
          {"capabilities", std::move(names)},
          {"modified_at", modified_time()}};
}

}  // namespace lintel
