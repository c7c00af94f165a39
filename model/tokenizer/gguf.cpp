// SPDX-License-Identifier: Apache-2.0
// The tokenizer that a GGUF file describes in its keys (as ggml's gguf.md and llama.cpp's converter
// have them).
#include <algorithm>
#include <set>

#include "model/core/errors.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/world.h"

namespace lintel {
namespace {

// tokenizer.ggml.token_type.
enum TokenType : std::int32_t {
  kNormalType = 1,
  kUnknownType = 2,
  kControlType = 3,
  kUserDefinedType = 4,
  kUnusedType = 5,
  kByteType = 6,
};

struct GgufSplit {
  std::string_view pre;
  SplitPattern pattern;
  bool nfc;  // as the tokenizer.json of these models has it; GGUF has no normaliser
  bool ignore_merges;
  bool add_bos;  // the default of the file's key
};
constexpr GgufSplit kGgufSplits[] = {
    {"gpt-2", SplitPattern::kGpt2, false, false, false},
    {"qwen2", SplitPattern::kQwen2, true, false, false},
    {"qwen35", SplitPattern::kQwen35, true, false, false},
    {"llama-bpe", SplitPattern::kLlama3, false, true, true},
    {"lfm2", SplitPattern::kLlama3, false, true, true},
};

// Control tokens that end texts, by how they are spelt.
constexpr std::string_view kStopTexts[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>",
                                           "<|end_of_text|>", "<|fim_pad|>",   "<|repo_name|>",
                                           "<|file_sep|>"};

class GgufReader {
 public:
  explicit GgufReader(const GgufVocabulary& vocabulary) : vocabulary_(vocabulary) {
    const std::size_t count = vocabulary.tokens.size();
    if (count == 0 || count > kMostTokens) {
      fail("tokens", std::to_string(count) + " tokens", "from 1 to " + std::to_string(kMostTokens));
    }
    const std::size_t types = vocabulary.types.size();
    if (types != 0 && types != count) {
      fail("token_type", std::to_string(types) + " types", std::to_string(count));
    }
    for (std::size_t i = 0; i < types; ++i) {
      const std::int32_t type = vocabulary.types[i];
      if (type >= kNormalType && type <= kByteType) continue;
      fail("token_type[" + std::to_string(i) + "]", std::to_string(type), "a type from 1 to 6");
    }
    for (const auto& [name, id] : {std::pair("bos", vocabulary.bos),
                                   {"eos", vocabulary.eos},
                                   {"eot", vocabulary.eot},
                                   {"padding", vocabulary.padding}}) {
      if (!id || (*id >= 0 && static_cast<std::size_t>(*id) < count)) continue;
      fail(std::string(name) + "_token_id", std::to_string(*id),
           "an id below " + std::to_string(count));
    }
  }

  std::unique_ptr<Tokenizer> make_bpe(const GgufSplit& split) const {
    BpeSource source;
    source.vocab_place = place("tokens");
    source.merges_place = place("merges");
    source.rules.split = split.pattern;
    source.rules.nfc = split.nfc;
    source.rules.ignore_merges = split.ignore_merges;
    for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      const std::int32_t type = type_of(i);
      if (type == kControlType || type == kUserDefinedType) {
        check_added(i);
        source.added.push_back({vocabulary_.tokens[i], id, type == kControlType, false});
        source.added_places.push_back(place("tokens") + "[" + std::to_string(i) + "]");
        continue;
      }
      source.texts.add(vocabulary_.tokens[i]);
      source.ids.push_back(id);
      if (type != kNormalType) source.unused.push_back(id);
    }
    add_merges(source.merges);
    if (vocabulary_.bos && vocabulary_.add_bos.value_or(split.add_bos)) {
      source.rules.before.push_back(static_cast<std::int32_t>(*vocabulary_.bos));
    }
    if (vocabulary_.eos && vocabulary_.add_eos.value_or(false)) {
      source.rules.after.push_back(static_cast<std::int32_t>(*vocabulary_.eos));
    }
    auto tokenizer = make_bpe_tokenizer(std::move(source));
    tokenizer->set_eos(stops());
    return tokenizer;
  }

  std::unique_ptr<Tokenizer> make_world() const {
    std::vector<std::string> entries(vocabulary_.tokens.size());
    std::vector<AddedToken> added;
    std::set<std::string_view> texts;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string& token = vocabulary_.tokens[i];
      const std::int32_t type = type_of(i);
      if (type == kControlType || type == kUserDefinedType) {
        check_added(i);
        if (!texts.insert(token).second) fail_token(i, "each token once");
        added.push_back({token, static_cast<std::int32_t>(i), type == kControlType, false});
      } else if (type == kNormalType) {
        if (i == 0) fail_token(i, "a control token: id 0 ends texts");
        constexpr LiteralForm kForm{.is_bytes = true, .is_bare = true};
        if (!read_python_literal(token, kForm, entries[i]) || entries[i].empty() ||
            entries[i].size() > kMostEntryBytes) {
          fail_token(i, "the inside of a bytes literal of Python, of 1 to " +
                            std::to_string(kMostEntryBytes) + " bytes");
        }
      }
    }
    check_world_bytes(entries, place("tokens"));
    return make_world_tokenizer(entries, added, place("tokens"));
  }

 private:
  std::string place(const std::string& key) const {
    return vocabulary_.file + ": tokenizer.ggml." + key;
  }
  [[noreturn]] void fail(const std::string& key, const std::string& found,
                         const std::string& expected) const {
    throw ModelError(place(key) + ": found " + found + ", expected " + expected);
  }
  [[noreturn]] void fail_token(std::size_t i, const std::string& expected) const {
    fail("tokens[" + std::to_string(i) + "]", quote(vocabulary_.tokens[i]), expected);
  }
  std::int32_t type_of(std::size_t i) const {
    return vocabulary_.types.empty() ? std::int32_t{kNormalType} : vocabulary_.types[i];
  }
  void check_added(std::size_t i) const {
    const std::size_t bytes = vocabulary_.tokens[i].size();
    if (bytes == 0 || bytes > kMostEntryBytes) {
      fail_token(i, "from 1 to " + std::to_string(kMostEntryBytes) + " bytes");
    }
  }

  // A token of several letters is encoded only by a merge that makes it: a vocabulary has about as
  // many of both. With fewer than half, as of a file that has lost its merges, texts would be read
  // letter by letter.
  void check_merged_tokens() const {
    std::size_t merged = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
      const std::string_view token = vocabulary_.tokens[i];
      const bool is_letter =
          std::ranges::count_if(token, [](char c) { return (c & '\xC0') != '\x80'; }) <= 1;
      if (type_of(i) != kNormalType || is_letter) continue;
      if (merged++ == 0) first = i;
    }
    const std::size_t merges = vocabulary_.merges.size();
    if (merges >= merged - merged / 2) return;
    fail("merges", merges == 0 ? "none" : std::to_string(merges) + " merges",
         "at least half as many as the " + std::to_string(merged) +
             " normal tokens of several letters, such as " + quote(vocabulary_.tokens[first]));
  }

  void add_merges(TextList& merges) const {
    if (vocabulary_.merges.size() > kMostMerges) {
      fail("merges", std::to_string(vocabulary_.merges.size()) + " merges",
           "at most " + std::to_string(kMostMerges));
    }
    check_merged_tokens();
    for (std::size_t i = 0; i < vocabulary_.merges.size(); ++i) {
      const std::string_view merge = vocabulary_.merges[i];
      const std::size_t space = merge.find(' ', 1);
      if (merge.empty() || space == std::string_view::npos || space + 1 == merge.size()) {
        fail("merges[" + std::to_string(i) + "]", quote(merge), "a merge: \"LEFT RIGHT\"");
      }
      merges.add(merge.substr(0, space));
      merges.add(merge.substr(space + 1));
    }
  }

  std::vector<std::int32_t> stops() const {
    std::set<std::int32_t> ids;
    if (vocabulary_.eos) ids.insert(static_cast<std::int32_t>(*vocabulary_.eos));
    if (vocabulary_.eot) ids.insert(static_cast<std::int32_t>(*vocabulary_.eot));
    for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
      if (type_of(i) != kControlType) continue;
      const bool stops =
          std::ranges::find(kStopTexts, vocabulary_.tokens[i]) != std::end(kStopTexts);
      if (stops) ids.insert(static_cast<std::int32_t>(i));
    }
    return {ids.begin(), ids.end()};
  }

  const GgufVocabulary& vocabulary_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_gguf_tokenizer(const GgufVocabulary& vocabulary, std::string* why) {
  std::string unused;
  std::string& reason = why != nullptr ? *why : unused;
  reason.clear();
  const std::string& model = vocabulary.model;
  if (model.empty() || model == "none" || model == "no_vocab") return nullptr;
  if (model == "rwkv") return GgufReader(vocabulary).make_world();
  if (model != "gpt2") {
    reason = "tokenizer.ggml.model " + quote(model) + " is not served, expected gpt2 or rwkv";
    return nullptr;
  }
  const auto split = std::ranges::find(kGgufSplits, vocabulary.pre, &GgufSplit::pre);
  if (split != std::end(kGgufSplits)) return GgufReader(vocabulary).make_bpe(*split);
  reason = "tokenizer.ggml.pre " + quote(vocabulary.pre) +
           " is not served, expected gpt-2, qwen2, qwen35, llama-bpe or lfm2";
  return nullptr;
}

}  // namespace lintel
