// SPDX-License-Identifier: Apache-2.0
// CheckpointKeys: the keys of one object of a checkpoint's config.json.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

namespace lintel {

// Unlike our own config.json a checkpoint's has defaults, keys of other programs, and null for what
// is not said. Every get marks its key as known; null is as absent. All throw ModelError naming the
// file, the key, what was found and what was expected.
class CheckpointKeys {
 public:
  // path: of this object within the file, "" or "text_config.". REQUIRES: object outlives this.
  CheckpointKeys(const nlohmann::json& object, std::string file, std::string path);

  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;
  // Null where the key is absent or null.
  const nlohmann::json* find(const std::string& key);

  std::optional<std::int64_t> integer(const std::string& key, std::int64_t low, std::int64_t high);
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::int64_t if_absent);
  std::int64_t required(const std::string& key, std::int64_t low, std::int64_t high);
  double positive(const std::string& key, double high, double if_absent);
  bool boolean(const std::string& key, bool if_absent);
  // Refuses every text but these, where there is one.
  void only(const std::string& key, std::initializer_list<const char*> texts);
  // Refuses the other truth value.
  void only(const std::string& key, bool value);

  // Keys without an effect.
  void ignore(std::initializer_list<const char*> keys);
  void ignore_prefix(const std::string& prefix);
  // Refuses every other key but those that say nothing: null, false, 0, "" and empty.
  void finish() const;

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string path_;
  std::set<std::string> known_;
};

}  // namespace lintel
