// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/chat_template_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "model/core/errors.h"
#include "model/tokenizer/json_field.h"

namespace lintel {
namespace {

using TemplateTree = nlohmann::json;

constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
constexpr std::size_t kMostNamedTemplates = 64;
constexpr const char* kChatMl =
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

class ChatTemplateReader {
 public:
  explicit ChatTemplateReader(const std::filesystem::path& directory) : directory_(directory) {}

  ChatTemplateSources run() {
    const std::optional<TemplateTree> config = tree("tokenizer_config.json");
    if (auto source = text("chat_template.jinja")) {
      found_.templates["default"] = std::move(*source);
    }
    if (found_.templates.empty() && config) add_templates(*config, "tokenizer_config.json");
    if (found_.templates.empty()) {
      if (const auto file = tree("chat_template.json")) add_templates(*file, "chat_template.json");
    }
    add_named_files();
    if (config) add_special_tokens(*config);
    if (const auto map = tree("special_tokens_map.json")) add_special_tokens(*map);
    return std::move(found_);
  }

 private:
  // Nothing: there is no such file, or a note says what is wrong with it.
  std::optional<std::string> text(const std::filesystem::path& name) {
    try {
      return read_tokenizer_file((directory_ / name).string());
    } catch (const ModelError& error) {
      found_.notes.emplace_back(error.what());
      return std::nullopt;
    }
  }
  std::optional<TemplateTree> tree(const char* name) {
    const auto content = text(name);
    if (!content) return std::nullopt;
    try {
      TemplateTree parsed = parse_tokenizer_tree(*content, (directory_ / name).string());
      if (parsed.is_object()) return parsed;
      found_.notes.push_back((directory_ / name).string() + ": found no object");
    } catch (const ModelError& error) {
      found_.notes.emplace_back(error.what());
    }
    return std::nullopt;
  }

  void add_templates(const TemplateTree& root, const char* name) {
    const auto field = root.find("chat_template");
    if (field == root.end() || field->is_null()) return;
    if (field->is_string()) {
      found_.templates["default"] = field->get<std::string>();
      return;
    }
    const auto is_named = [](const TemplateTree& item) {
      return item.is_object() && item.contains("name") && item["name"].is_string() &&
             item.contains("template") && item["template"].is_string();
    };
    if (!field->is_array() || field->size() > kMostNamedTemplates ||
        !std::all_of(field->begin(), field->end(), is_named)) {
      found_.notes.push_back((directory_ / name).string() +
                             ": chat_template: expected a text or at most " +
                             std::to_string(kMostNamedTemplates) + " names with texts");
      return;
    }
    for (const TemplateTree& item : *field) {
      found_.templates[item["name"].get<std::string>()] = item["template"].get<std::string>();
    }
  }

  void add_named_files() {
    const std::filesystem::path folder = directory_ / "additional_chat_templates";
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      if (at->path().extension() == ".jinja") names.push_back(at->path().stem().string());
      if (names.size() > kMostNamedTemplates) {
        found_.notes.push_back(folder.string() + ": found more than " +
                               std::to_string(kMostNamedTemplates) + " templates");
        return;
      }
    }
    for (const std::string& name : names) {
      auto source = text(std::filesystem::path("additional_chat_templates") / (name + ".jinja"));
      if (source) found_.templates.insert_or_assign(name, std::move(*source));
    }
  }

  void add_special_tokens(const TemplateTree& root) {
    for (const char* const name : kSpecialTokens) {
      const auto field = root.find(name);
      if (field == root.end()) continue;
      const TemplateTree* value = &*field;
      if (value->is_object() && value->contains("content")) value = &(*value)["content"];
      if (value->is_string()) found_.special_tokens.try_emplace(name, value->get<std::string>());
    }
  }

  const std::filesystem::path& directory_;
  ChatTemplateSources found_;
};

}  // namespace

ChatTemplateSources load_chat_template_sources(const std::filesystem::path& directory) {
  return ChatTemplateReader(directory).run();
}

void resolve_template_names(ChatTemplateSources& sources, const std::string& file) {
  for (auto& [name, text] : sources.templates) {
    if (text.find('{') != std::string::npos) continue;
    constexpr std::string_view kSpace = " \t\r\n";  // a file ends with a line break
    text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
    text.erase(text.find_last_not_of(kSpace) + 1);
    if (text == "chatml") text = kChatMl;
  }
  std::erase_if(sources.templates, [&](const auto& named) {
    const auto& [name, text] = named;
    if (text == "rwkv-world" || text.find('{') != std::string::npos) return false;
    sources.notes.push_back(file + (name == "default" ? "" : "." + shorten(name)) + ": found " +
                            quote(text) +
                            ", expected a template, or the name chatml or rwkv-world");
    return true;
  });
}

}  // namespace lintel
