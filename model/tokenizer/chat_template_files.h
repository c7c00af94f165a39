// SPDX-License-Identifier: Apache-2.0
// The texts of a model's chat templates and special tokens, as its files have them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lintel {

struct ChatTemplateSources {
  // Templates by name; the unnamed one is "default". Empty: the model has none.
  std::map<std::string, std::string> templates;
  // Tokens by variable: bos_token, eos_token, pad_token, unk_token. Those that a model does not
  // have are not there.
  std::map<std::string, std::string, std::less<>> special_tokens;
  // Errors of files that could not be read, for the log. A model is served without them.
  std::vector<std::string> notes;
};

// Reads a model directory in Hugging Face's form. The template is that of chat_template.jinja, else
// of tokenizer_config.json (a text or a list of names and texts), else of chat_template.json;
// additional_chat_templates/NAME.jinja adds names. Special tokens are those of
// tokenizer_config.json, and of special_tokens_map.json where the first has none. Throws nothing
// else than std::bad_alloc: files that cannot be read are among the notes.
ChatTemplateSources load_chat_template_sources(const std::filesystem::path& directory);

// Templates may be the name of one, between blanks: "chatml" becomes the text of that name, and
// "rwkv-world" stays, which the compiler of templates knows. Another text without "{", which would
// make one prompt of all conversations, goes, with a note. file: and key, for it.
void resolve_template_names(ChatTemplateSources& sources, const std::string& file);

}  // namespace lintel
