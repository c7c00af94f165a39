// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/grammar_cache.h"

#include <utility>

#include "model/core/sha256.h"

namespace lintel::grammar {

CompiledGrammar GrammarCache::get(std::string_view source,
                                  const std::function<CompiledGrammar()>& compile) {
  Sha256 hash;
  hash.add(source);
  std::string key = hash.hex();
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->made;
    }
  }
  CompiledGrammar made = compile();
  const std::lock_guard lock(mutex_);
  // Another thread may have compiled it meanwhile.
  if (by_key_.contains(key)) return made;
  bytes_ += made.grammar->bytes();
  entries_.push_front({key, made});
  by_key_.emplace(std::move(key), entries_.begin());
  while (bytes_ > max_bytes_ && !entries_.empty()) {
    bytes_ -= entries_.back().made.grammar->bytes();
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return made;
}

std::size_t GrammarCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace lintel::grammar
