// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/chat_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

namespace lintel {
namespace {

// Transformers takes a text or a list of them. What is no text, empty or too long is left out.
std::vector<std::string> read_stop_strings(const nlohmann::json& value) {
  constexpr std::size_t kMostTexts = 16, kMostBytes = 256;
  std::vector<std::string> texts;
  const auto take = [&texts](const nlohmann::json& one) {
    if (!one.is_string() || texts.size() == kMostTexts) return;
    const auto& text = one.get_ref<const std::string&>();
    if (!text.empty() && text.size() <= kMostBytes) texts.push_back(text);
  };
  if (value.is_array()) {
    for (const auto& one : value) take(one);
  } else {
    take(value);
  }
  return texts;
}

}  // namespace

SamplingDefaults load_sampling_defaults(const std::filesystem::path& directory) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 20;
  SamplingDefaults defaults;
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code none;
  if (const std::uintmax_t size = std::filesystem::file_size(path, none);
      none || size > kMostBytes) {
    return defaults;
  }
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return defaults;
  const auto read = [&](const char* name, double least, double most) -> std::optional<float> {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number()) return std::nullopt;
    const double value = found->get<double>();
    return value >= least && value <= most ? std::optional(static_cast<float>(value))
                                           : std::nullopt;
  };
  defaults.temperature = read("temperature", 0.0, 100.0);
  defaults.top_p = read("top_p", 1e-6, 1.0);
  defaults.min_p = read("min_p", 0.0, 1.0);
  defaults.repetition_penalty = read("repetition_penalty", 0.01, 100.0);
  if (const auto top_k = read("top_k", 0.0, 1e6)) {
    defaults.top_k = static_cast<std::uint32_t>(*top_k);
  }
  if (const auto stops = json.find("stop_strings"); stops != json.end()) {
    defaults.stop_strings = read_stop_strings(*stops);
  }
  return defaults;
}

ChatModel::ChatModel(ChatTemplates templates, SamplingDefaults defaults,
                     std::optional<ToolDialect> dialect)
    : templates_(std::move(templates)), defaults_(std::move(defaults)) {
  for (const bool has_tools : {false, true}) {
    const ChatTemplate* const found = find(has_tools);
    if (found == nullptr || (!traits_.empty() && traits_.back().first == found)) continue;
    traits_.emplace_back(found, probe(*found));
    if (dialect) traits_.back().second.dialect = *dialect;
  }
}

const TemplateTraits& ChatModel::traits(const ChatTemplate& chat_template) const {
  return std::ranges::find(traits_, &chat_template, [](const auto& each) { return each.first; })
      ->second;
}

std::string ChatModel::failure() const {
  if (templates_.failures.empty()) return "the model has no chat template (--chat-template)";
  const auto& [name, error] = *templates_.failures.begin();
  return "the chat template '" + name + "' is not served: line " + std::to_string(error.line()) +
         ": " + error.what();
}

}  // namespace lintel
