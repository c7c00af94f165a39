// SPDX-License-Identifier: Apache-2.0
// ChatModel: what a served model has for conversations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/chat/template/template.h"
#include "server/chat/template/traits.h"

namespace lintel {

// The sampling that a checkpoint recommends (generation_config.json). Members that it does not name
// are not set.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::uint32_t> top_k;
  std::vector<std::string> stop_strings;  // texts that end an answer, as eos_token_id does
};
// Reads the defaults of a model directory; none if the file is missing, larger than 1 MiB or has no
// such values. stop_strings is a text or a list: at most 16 texts of at most 256 bytes each.
SamplingDefaults load_sampling_defaults(const std::filesystem::path& directory);

// Made once when a model is loaded; shared by threads.
class ChatModel {
 public:
  // dialect: used in place of the one that the templates show.
  ChatModel(ChatTemplates templates, SamplingDefaults defaults,
            std::optional<ToolDialect> dialect = std::nullopt);

  const ChatTemplates& templates() const { return templates_; }
  const SamplingDefaults& defaults() const { return defaults_; }
  // Null: chat is not served, failure() says why.
  const ChatTemplate* find(bool has_tools) const { return templates_.find(has_tools); }
  // The traits of a template that find() returned.
  const TemplateTraits& traits(const ChatTemplate& chat_template) const;
  std::string failure() const;

 private:
  ChatTemplates templates_;
  SamplingDefaults defaults_;
  std::vector<std::pair<const ChatTemplate*, TemplateTraits>> traits_;
};

}  // namespace lintel
