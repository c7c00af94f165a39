// SPDX-License-Identifier: Apache-2.0
// CheckpointKeys: the keys of one object of a checkpoint's config.json.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/unknown_key.h"

namespace lintel {

// Unlike our own config.json a checkpoint's has defaults, keys of other programs, and null for what
// is not said. Every get marks its key as known; null is as absent. All throw ModelError naming the
// file, the key, what was found and what was expected.
//
// Keys that a family does not mark are looked up in two lists for all families: keys without an
// effect, and keys that change what is computed, which are refused. A key in neither is unknown.
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
  // Refuses keys that change what is computed, where they say something.
  void refuse(std::initializer_list<const char*> keys);
  // Refuses another value than `value`, which `as` names, where there is one: a copy of it.
  void same(const std::string& key, const nlohmann::json& value, const std::string& as);
  // The value that counts for a key that is absent here: a copy beside this object may have it. The
  // gets above note their `if_absent` and the texts that they accept.
  void uses(const std::string& key, nlohmann::json value);
  // Refuses a copy of a key of `inner`, an object within this one, whose value differs from the one
  // that `inner` has or uses.
  void check_copies(const CheckpointKeys& inner);
  // Refuses windows, and what else the list for all families has. Adds all other keys to `unknown`
  // but those that say nothing: null, false, 0, "" and empty.
  void finish(std::vector<UnknownKey>& unknown);

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string path_;
  std::set<std::string> known_;
  std::set<std::string> read_;                               // of these, those whose value counts
  std::map<std::string, std::vector<nlohmann::json>> used_;  // by key, where it is absent
};

// The keys that change what is computed in some model and are not served in any, as the list for
// all families has them.
std::vector<std::string_view> refused_checkpoint_keys();

}  // namespace lintel
