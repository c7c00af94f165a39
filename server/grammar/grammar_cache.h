// SPDX-License-Identifier: Apache-2.0
// GrammarCache: compiled grammars, by what they were made of.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/schema.h"

namespace lintel::grammar {

struct CompiledGrammar {
  std::shared_ptr<const Grammar> grammar;
  std::vector<RelaxedKeyword> relaxed;
};

// Safe for several threads. Grammars in use outlive the cache.
class GrammarCache {
 public:
  explicit GrammarCache(std::size_t max_bytes = std::size_t{64} << 20) : max_bytes_(max_bytes) {}

  // The grammar of `source`, which names its kind, its options and its text; else what `compile`
  // makes, on this thread and without a lock. Those used least recently are dropped first.
  // `compile` may throw; then nothing is kept.
  CompiledGrammar get(std::string_view source, const std::function<CompiledGrammar()>& compile);

  std::size_t bytes() const;

 private:
  struct Entry {
    std::string key;  // SHA-256 of the source
    CompiledGrammar made;
  };

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::map<std::string, std::list<Entry>::iterator> by_key_;
  std::size_t bytes_ = 0;
};

}  // namespace lintel::grammar
