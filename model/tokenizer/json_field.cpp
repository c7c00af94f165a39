// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/json_field.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "model/core/errors.h"
#include "model/core/json_reader.h"
#include "model/core/lfs_pointer.h"
#include "model/tokenizer/limits.h"

namespace lintel {
namespace {

using nlohmann::json;

std::string description_of(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace

std::string JsonField::place() const {
  return path_.empty() ? *file_ : *file_ + ": " + one_line(shorten(path_, 200));
}

void JsonField::refuse(const std::string& expected) const {
  throw ModelError(place() + ": found " + description_of(*value_) + ", expected " + expected);
}

const json::object_t& JsonField::object() const {
  if (!value_->is_object()) refuse("an object");
  return value_->get_ref<const json::object_t&>();
}

std::optional<JsonField> JsonField::find(const std::string& name) const {
  const auto found = object().find(name);
  if (found == object().end()) return std::nullopt;
  return JsonField(*this, found->second, path_.empty() ? name : path_ + "." + name);
}

std::optional<JsonField> JsonField::find_value(const std::string& name) const {
  auto field = find(name);
  return field && !field->is_null() ? std::move(field) : std::nullopt;
}

JsonField JsonField::at(const std::string& name) const {
  if (auto field = find(name)) return *std::move(field);
  throw ModelError(place() + ": \"" + name + "\" is missing");
}

void JsonField::only(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : object()) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::string known;
    for (const std::string_view other : names)
      known.append(known.empty() ? "" : ", ").append(other);
    throw ModelError(place() + ": found " + quote(name) + ", expected of " + known);
  }
}

std::vector<std::string> JsonField::names() const {
  std::vector<std::string> names;
  for (const auto& member : object()) names.push_back(member.first);
  return names;
}

const std::string& JsonField::type() const {
  const auto found = object().find("type");
  if (found == object().end() || !found->second.is_string()) at("type").refuse("a string");
  return found->second.get_ref<const std::string&>();
}

std::vector<JsonField> JsonField::items() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<JsonField> items;
  for (const json& item : *value_) {
    items.push_back(JsonField(*this, item, path_ + "[" + std::to_string(items.size()) + "]"));
  }
  return items;
}

const std::string& JsonField::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::size_t JsonField::integer(std::size_t most) const {
  if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() > most) {
    refuse("an integer from 0 to " + std::to_string(most));
  }
  return value_->get<std::size_t>();
}

void JsonField::want_null(const std::string& name) const {
  if (const auto field = find_value(name)) field->refuse("null: nothing else is served");
}

void JsonField::want_flag(const std::string& name, bool value) const {
  const auto field = find(name);
  if (field && field->boolean() != value) {
    field->refuse(std::string(value ? "true" : "false") + ": nothing else is served");
  }
}

void JsonField::want(const std::string& name, std::string_view value) const {
  const auto field = find(name);
  if (field && field->text() != value) {
    field->refuse(quote(value) + ": nothing else is served");
  }
}

std::optional<std::string> read_tokenizer_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return std::nullopt;
  if (!std::filesystem::is_regular_file(status)) {
    throw ModelError(path + ": expected a regular file");
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw ModelError(path + ": cannot read: " + error.message());
  if (size > kMostTokenizerFileBytes) {
    throw ModelError(path + ": found " + std::to_string(size) + " bytes, expected at most " +
                     std::to_string(kMostTokenizerFileBytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) throw ModelError(path + ": cannot read: " + std::strerror(errno));
  refuse_lfs_pointer(text, path);
  return text;
}

json parse_tokenizer_tree(std::string_view text, const std::string& name) {
  JsonFailure failure;
  auto tree = read_json_tree(text, {.max_depth = 32, .takes_repeated_names = false}, failure);
  if (tree) return *std::move(tree);
  const std::string what =
      failure.kind == JsonFailure::Kind::kNotJson ? "is not JSON: " + failure.what : failure.what;
  const std::string which = failure.name.empty() ? "" : ": " + quote(failure.name);
  throw ModelError(name + ": " + what + which);
}

}  // namespace lintel
