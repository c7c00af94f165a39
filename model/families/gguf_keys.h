// SPDX-License-Identifier: Apache-2.0
// GgufKeys of one architecture: those below "qwen35." and the like.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/unknown_key.h"
#include "model/formats/gguf.h"

namespace lintel {

// Every get marks its key as known. All throw ModelError naming the file, the key, what was found
// and what was expected.
class ArchitectureKeys {
 public:
  // architecture: "qwen35". REQUIRES: file outlives this.
  ArchitectureKeys(const GgufFile& file, const std::string& architecture);

  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;
  // Null where there is no such key.
  const GgufValue* find(const std::string& key);
  std::optional<std::int64_t> integer(const std::string& key, std::int64_t low, std::int64_t high);
  std::int64_t required(const std::string& key, std::int64_t low, std::int64_t high);
  // The largest of one number for each block, or the number for all blocks.
  std::int64_t largest(const std::string& key, std::int64_t low, std::int64_t high);
  double positive(const std::string& key, double high, std::optional<double> if_absent);
  bool boolean(const std::string& key, bool if_absent);
  // Refuses the other truth value.
  void only(const std::string& key, bool value);
  // Keys without an effect.
  void ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }
  void ignore_prefix(const std::string& prefix);
  // Refuses scaled rotations, and what else one list for all architectures has. Adds all other keys
  // below the architecture's name to `unknown` but those that are 0, false, "" or empty.
  void finish(std::vector<UnknownKey>& unknown);

 private:
  void refuse_rope_scaling();

  const GgufFile& file_;
  const std::string prefix_;
  std::set<std::string> known_;
};

// The keys that change what is computed in some model and are served in none, without the
// architecture.
std::vector<std::string_view> refused_gguf_keys();

// V: the key `vocab_size`, or the rows of token_embd.weight. Throws ModelError where there is none.
std::size_t vocabulary_of(ArchitectureKeys& keys, const GgufFile& file);

}  // namespace lintel
