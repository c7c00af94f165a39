// SPDX-License-Identifier: Apache-2.0
// A directory's tokenizer, and the tokens that end its texts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/core/errors.h"
#include "model/core/non_finite.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/json_field.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/world.h"

namespace lintel {
namespace {

using nlohmann::json;

constexpr const char* kWorldKind = "World";

// eos_token_id of an object: an id, a list of them, null or missing.
void add_stop_ids(const JsonField& object, std::set<std::int32_t>& ids) {
  constexpr std::size_t kMost = 64;
  const auto field = object.find_value("eos_token_id");
  if (!field) return;
  const auto add = [&](const JsonField& id) {
    ids.insert(static_cast<std::int32_t>(id.integer(kMostTokens - 1)));
  };
  if (!field->is_array()) return add(*field);
  const std::vector<JsonField> items = field->items();
  if (items.size() > kMost) field->refuse("at most " + std::to_string(kMost) + " ids");
  std::ranges::for_each(items, add);
}

template <typename Read>
void read_tree(const std::filesystem::path& path, Read read) {
  const std::string name = path.string();
  const auto text = read_tokenizer_file(name);
  if (!text) return;
  const json tree = parse_tokenizer_tree(quote_non_finite(*text), name);
  read(JsonField(tree, name));
}

// eos_token: a text, or an object with one.
void add_eos_token(const JsonField& config, const Tokenizer& tokenizer,
                   std::set<std::int32_t>& ids) {
  const auto field = config.find_value("eos_token");
  if (!field) return;
  const JsonField content = field->is_object() ? field->at("content") : *field;
  if (const auto id = tokenizer.find_token(content.text())) ids.insert(*id);
}

}  // namespace

std::vector<std::int32_t> stop_ids(const std::filesystem::path& directory,
                                   const Tokenizer* tokenizer) {
  if (tokenizer != nullptr && tokenizer->kind() == kWorldKind) return {0};
  std::set<std::int32_t> ids;
  read_tree(directory / "generation_config.json",
            [&](const JsonField& root) { add_stop_ids(root, ids); });
  read_tree(directory / "config.json", [&](const JsonField& root) {
    add_stop_ids(root, ids);
    const auto text = root.find_value("text_config");
    if (text && text->is_object()) add_stop_ids(*text, ids);
  });
  if (tokenizer != nullptr) {
    read_tree(directory / "tokenizer_config.json",
              [&](const JsonField& root) { add_eos_token(root, *tokenizer, ids); });
  }
  return {ids.begin(), ids.end()};
}

namespace {

constexpr const char* kWorldFile = "rwkv_vocab_v20230424.txt";
constexpr const char* kJsonFile = "tokenizer.json";

}  // namespace

bool has_tokenizer_file(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::exists(directory / kWorldFile, error) ||
         std::filesystem::exists(directory / kJsonFile, error);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
  const std::string world = (directory / kWorldFile).string();
  if (const auto text = read_tokenizer_file(world)) {
    return make_world_tokenizer(parse_world_vocabulary(*text, world), {}, world);
  }
  const std::string name = (directory / kJsonFile).string();
  const auto text = read_tokenizer_file(name);
  if (!text) return nullptr;
  const std::string config_name = (directory / "tokenizer_config.json").string();
  const auto config = read_tokenizer_file(config_name);
  auto tokenizer = parse_tokenizer_json(*text, name, config.value_or(""), config_name);
  tokenizer->set_eos(stop_ids(directory, tokenizer.get()));
  return tokenizer;
}

}  // namespace lintel
