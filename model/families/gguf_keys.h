// SPDX-License-Identifier: Apache-2.0
// GgufKeys of one architecture: those below "qwen35." and the like.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

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
  // Of every block one number, or one for all: the largest.
  std::int64_t largest(const std::string& key, std::int64_t low, std::int64_t high);
  double positive(const std::string& key, double high, std::optional<double> if_absent);
  void ignore(const std::string& key) { known_.insert(key); }
  // Refuses every other key below the architecture's name that is not 0, false, "" or empty.
  void finish() const;

 private:
  const GgufFile& file_;
  const std::string prefix_;
  std::set<std::string> known_;
};

// V: the key `vocab_size`, or the rows of token_embd.weight. Throws ModelError where there is none.
std::size_t vocabulary_of(ArchitectureKeys& keys, const GgufFile& file);

}  // namespace lintel
