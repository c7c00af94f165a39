// SPDX-License-Identifier: Apache-2.0
// A value of a tokenizer's JSON file with its path, for errors that name it.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// Refers to a tree and a file's name, which outlive it. All functions throw ModelError: "FILE:
// PATH: found VALUE, expected ...".
class JsonField {
 public:
  JsonField(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  const std::string& path() const { return path_; }
  std::string place() const;
  [[noreturn]] void refuse(const std::string& expected) const;

  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_string() const { return value_->is_string(); }
  bool is_array() const { return value_->is_array(); }

  // A member of an object; nothing if it is missing.
  std::optional<JsonField> find(const std::string& name) const;
  // The same, and nothing if it is null.
  std::optional<JsonField> find_value(const std::string& name) const;
  JsonField at(const std::string& name) const;
  // Refuses an object with other names than these.
  void only(std::initializer_list<std::string_view> names) const;
  std::vector<std::string> names() const;
  // The member "type" of an object.
  const std::string& type() const;

  std::vector<JsonField> items() const;
  const std::string& text() const;
  bool boolean() const;
  std::size_t integer(std::size_t most) const;

  // Members that may be missing or have one value.
  void want_null(const std::string& name) const;
  void want_flag(const std::string& name, bool value) const;
  void want(const std::string& name, std::string_view value) const;

 private:
  JsonField(const JsonField& parent, const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)), file_(parent.file_) {}
  const nlohmann::json::object_t& object() const;

  const nlohmann::json* value_;
  std::string path_;  // empty: the root
  const std::string* file_;
};

// A file's text; nothing if there is no such file. Throws ModelError if it cannot be read or is
// larger than kMostTokenizerFileBytes.
std::optional<std::string> read_tokenizer_file(const std::string& path);

// A file's text as a tree. Throws ModelError.
nlohmann::json parse_tokenizer_tree(std::string_view text, const std::string& name);

}  // namespace lintel
