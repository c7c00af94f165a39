// SPDX-License-Identifier: Apache-2.0
// Tokenizers whose model is BPE, made from a vocabulary, merges and rules of any kind of file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/split.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel {

// Many short texts in one piece of memory.
class TextList {
 public:
  void add(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }
  std::size_t size() const { return ends_.size(); }
  // Valid until the next add().
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

struct BpeRules {
  // The parts of a byte-fallback text that get a marked space (U+2581) in front.
  enum class Mark {
    kNone,
    kEachPart,        // normalizer Prepend
    kWhereNone,       // Metaspace "always": unless one is there
    kFirstWhereNone,  // Metaspace "first": only at the beginning of the text
  };

  // False: byte-level. True: characters that the vocabulary lacks become tokens of bytes, and the
  // text is not split.
  bool byte_fallback = false;
  SplitPattern split = SplitPattern::kGpt2;  // byte-level
  bool nfc = false;                          // byte-level
  bool ignore_merges = false;                // a piece that is an entry is that token
  Mark mark = Mark::kNone;                   // byte fallback
  std::vector<std::int32_t> before;          // ids around a text, with add_special
  std::vector<std::int32_t> after;
};

struct BpeSource {
  std::string vocab_place;  // for errors: the file and the path in it
  std::string merges_place;
  TextList texts;                         // of the vocabulary, in the file's letters
  std::vector<std::int32_t> ids;          // of each, below kMostTokens
  TextList merges;                        // left and right in turn
  std::vector<AddedToken> added;          // in the vocabulary or not
  std::vector<std::string> added_places;  // of each, for errors
  // Ids that have no text and are never encoded; they are in the vocabulary.
  std::vector<std::int32_t> unused;
  BpeRules rules;
};

// Throws ModelError where texts or ids are there twice, where a merge names or makes a token that
// is not there, or where a byte has no token.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSource source);

// World: `entries` by id, empty where there is none. Special tokens are of added ones; they are not
// among the entries. Throws ModelError where two entries are equal.
std::unique_ptr<Tokenizer> make_world_tokenizer(const std::vector<std::string>& entries,
                                                const std::vector<AddedToken>& added,
                                                const std::string& name);

// The tokenizer of a tokenizer.json; `config`: of tokenizer_config.json, empty if there is none.
// Names are for errors. eos() is empty. Throws ModelError.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& name,
                                                std::string_view config,
                                                const std::string& config_name);

}  // namespace lintel
