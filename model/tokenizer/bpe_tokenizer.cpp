// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <utility>

#include "model/core/errors.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/text_index.h"
#include "model/tokenizer/unicode.h"
#include "model/tokenizer/world.h"

namespace lintel {
namespace {

constexpr std::string_view kMarkedSpace = "\xE2\x96\x81";  // U+2581

// Tokens of single characters, of byte-fallback vocabularies.
class CharacterIds {
 public:
  static constexpr std::int32_t kNone = -1;

  CharacterIds() { ascii_.fill(kNone); }
  void add(char32_t character, std::int32_t id) {
    if (character < ascii_.size()) {
      ascii_[character] = id;
    } else {
      others_.push_back({character, id});
    }
  }
  void sort() { std::ranges::sort(others_, {}, &Other::character); }
  std::int32_t find(char32_t character) const {
    if (character < ascii_.size()) return ascii_[character];
    const auto found = std::ranges::lower_bound(others_, character, {}, &Other::character);
    return found != others_.end() && found->character == character ? found->id : kNone;
  }

 private:
  struct Other {
    char32_t character;
    std::int32_t id;
  };
  std::array<std::int32_t, 128> ascii_;
  std::vector<Other> others_;
};

// The pieces of one text that were encoded before: texts repeat their words. Holds views into the
// text and places in the ids made of it.
class PieceCache {
 public:
  explicit PieceCache(std::size_t text_bytes) {
    constexpr std::size_t kWorthIt = 2048;
    if (text_bytes >= kWorthIt) entries_.resize(kNumEntries);
  }
  // Repeats the ids of an equal piece, or remembers where those of this one will begin.
  template <typename Encode>
  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Encode encode_piece) {
    if (entries_.empty() || piece.size() > kMostBytes) return encode_piece(piece, ids);
    Entry& entry = entries_[hash(piece) % kNumEntries];
    const std::size_t begin = ids.size();
    if (entry.count > 0 && entry.piece == piece) {
      ids.resize(begin + entry.count);
      std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(entry.begin), entry.count,
                  ids.begin() + static_cast<std::ptrdiff_t>(begin));
      return;
    }
    encode_piece(piece, ids);
    entry = {piece, begin, ids.size() - begin};
  }

 private:
  static constexpr std::size_t kNumEntries = 8192;
  static constexpr std::size_t kMostBytes = 32;
  struct Entry {
    std::string_view piece;
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  static std::size_t hash(std::string_view piece) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    const std::size_t bytes = std::min<std::size_t>(8, piece.size());
    std::memcpy(&first, piece.data(), bytes);
    std::memcpy(&last, piece.data() + piece.size() - bytes, bytes);
    const std::uint64_t h = (first * 0x9E3779B97F4A7C15 ^ last) * 0xD6E8FEB86659FD93;
    return static_cast<std::size_t>(h >> 40) + piece.size();
  }
  std::vector<Entry> entries_;
};

// Members of both kinds of BPE, besides their parts of Tokenizer.
struct BpeModel {
  BpeRules rules;
  std::array<std::int32_t, 256> byte_ids;
  BpeMerges merges;
  std::vector<std::int32_t> whole_ids;  // with ignore_merges: entries that a piece may be
  CharacterIds characters;              // byte fallback
  // Byte fallback: no merge joins a marked space to something else before it, so that pieces that
  // begin with marked spaces have the tokens that they have in the whole text.
  bool words_are_apart = true;
  AddedTokens raw_added;
  AddedTokens normalized_added;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Parts parts, BpeModel model)
      : Tokenizer(std::move(parts)), model_(std::move(model)), whole_(model_.whole_ids.size()) {
    for (const std::int32_t id : model_.whole_ids) whole_.insert(bytes_of(id), id);
  }
  static std::unique_ptr<Tokenizer> make(BpeSource source);

  std::vector<std::int32_t> encode(std::string_view text,
                                   const EncodeOptions& options) const override;

 private:
  // The place of a part in the text: at its beginning, or after other text.
  enum class Position { kBegin, kContinued, kInside };

  void encode_part(std::string_view part, std::size_t offset, Position begin,
                   const EncodeOptions& options, std::vector<std::int32_t>& ids) const;
  void encode_split(std::string_view text, std::vector<std::int32_t>& ids) const;
  bool gets_mark(std::string_view text, Position position) const;
  void encode_marked(std::string_view text, Position position,
                     std::vector<std::int32_t>& ids) const;
  void encode_bytes(std::string_view piece, std::vector<std::int32_t>& tokens,
                    std::vector<std::int32_t>& ids) const;
  void encode_characters(std::string_view piece, std::vector<std::int32_t>& tokens,
                         std::vector<std::int32_t>& ids) const;

  BpeModel model_;
  TextIndex whole_;  // of texts_
};

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  const BpeRules& rules = model_.rules;
  if (options.add_special) ids = rules.before;
  model_.raw_added.cut(
      text, options,
      [&](std::string_view part) {
        const Position begin = options.continues ? Position::kContinued : Position::kBegin;
        encode_part(part, static_cast<std::size_t>(part.data() - text.data()), begin, options, ids);
      },
      [&](std::int32_t id) { ids.push_back(id); });
  if (options.add_special) ids.insert(ids.end(), rules.after.begin(), rules.after.end());
  return ids;
}

// Encodes the text between added tokens of the raw text, from `offset` on. begin: position of the
// text's first part.
void BpeTokenizer::encode_part(std::string_view part, std::size_t offset, Position begin,
                               const EncodeOptions& options, std::vector<std::int32_t>& ids) const {
  const Position position = offset == 0 ? begin : Position::kInside;
  std::string normalized;
  const bool is_changed = model_.rules.nfc && normalize_nfc(part, normalized);
  const std::string_view text = is_changed ? std::string_view(normalized) : part;
  // Joined characters move plain parts to other places: no token is cut out of the whole.
  const PlainText whole{.begin = offset, .end = offset + text.size()};
  EncodeOptions changed = options;
  if (is_changed && !options.plain.empty()) changed.plain = std::span(&whole, 1);
  model_.normalized_added.cut(
      text, changed,
      [&](std::string_view piece) {
        if (model_.rules.byte_fallback) {
          const bool is_front = piece.data() == text.data();
          encode_marked(piece, is_front ? position : Position::kInside, ids);
        } else {
          encode_split(piece, ids);
        }
      },
      [&](std::int32_t id) { ids.push_back(id); }, offset);
}

void BpeTokenizer::encode_split(std::string_view text, std::vector<std::int32_t>& ids) const {
  PieceCache cache(text.size());
  std::vector<std::int32_t> tokens;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of_piece(model_.rules.split, text, begin);
    cache.encode(text.substr(begin, end - begin), ids,
                 [&](std::string_view piece, std::vector<std::int32_t>& out) {
                   encode_bytes(piece, tokens, out);
                 });
    begin = end;
  }
}

void BpeTokenizer::encode_bytes(std::string_view piece, std::vector<std::int32_t>& tokens,
                                std::vector<std::int32_t>& ids) const {
  if (model_.rules.ignore_merges) {
    if (const auto id = whole_.find(piece)) return ids.push_back(*id);
  }
  tokens.clear();
  for (const char c : piece) tokens.push_back(model_.byte_ids[static_cast<unsigned char>(c)]);
  model_.merges.encode(tokens, ids);
}

std::size_t end_of_word(std::string_view text, std::size_t begin) {
  std::size_t at = begin;
  while (text.substr(at).starts_with(kMarkedSpace)) at += kMarkedSpace.size();
  return std::min(text.find(kMarkedSpace, at), text.size());
}

bool BpeTokenizer::gets_mark(std::string_view text, Position position) const {
  using Mark = BpeRules::Mark;
  const bool has_one = text.starts_with(' ') || text.starts_with(kMarkedSpace);
  if (position == Position::kContinued) return false;
  switch (model_.rules.mark) {
    case Mark::kNone:
      return false;
    case Mark::kEachPart:
      return true;
    case Mark::kWhereNone:
      return !has_one;
    case Mark::kFirstWhereNone:
      break;
  }
  return position == Position::kBegin && !has_one;
}

void BpeTokenizer::encode_marked(std::string_view text, Position position,
                                 std::vector<std::int32_t>& ids) const {
  std::string marked;
  marked.reserve(text.size() * 5 / 4 + 8);
  if (gets_mark(text, position)) marked = kMarkedSpace;
  for (const char c : text) {
    if (c == ' ') {
      marked += kMarkedSpace;
    } else {
      marked += c;
    }
  }
  PieceCache cache(marked.size());
  std::vector<std::int32_t> tokens;
  const std::string_view all = marked;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = model_.words_are_apart ? end_of_word(all, begin) : all.size();
    cache.encode(all.substr(begin, end - begin), ids,
                 [&](std::string_view piece, std::vector<std::int32_t>& out) {
                   encode_characters(piece, tokens, out);
                 });
    begin = end;
  }
}

void BpeTokenizer::encode_characters(std::string_view piece, std::vector<std::int32_t>& tokens,
                                     std::vector<std::int32_t>& ids) const {
  tokens.clear();
  while (!piece.empty()) {
    const DecodedCharacter character = decode_character(piece);
    const std::int32_t id = character.code_point == DecodedCharacter::kInvalid
                                ? CharacterIds::kNone
                                : model_.characters.find(character.code_point);
    if (id != CharacterIds::kNone) {
      tokens.push_back(id);
    } else {
      for (const char c : piece.substr(0, character.bytes)) {
        tokens.push_back(model_.byte_ids[static_cast<unsigned char>(c)]);
      }
    }
    piece.remove_prefix(character.bytes);
  }
  model_.merges.encode(tokens, ids);
}

// Making one, step by step.

// A byte's token in a byte-fallback vocabulary.
std::string byte_token(unsigned byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "<0x%02X>", byte);
  return text;
}

bool holds_mark_inside(std::string_view text) {
  std::size_t at = 0;
  while (text.substr(at).starts_with(kMarkedSpace)) at += kMarkedSpace.size();
  return text.find(kMarkedSpace, at) != std::string_view::npos;
}

std::string without_marks(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(kMarkedSpace)) {
      plain += ' ';
      at += kMarkedSpace.size();
    } else {
      plain += text[at++];
    }
  }
  return plain;
}

class BpeMaker {
 public:
  explicit BpeMaker(BpeSource source)
      : source_(std::move(source)),
        index_(source_.texts.size() + source_.added.size()),
        model_{.rules = source_.rules,
               .byte_ids = {},
               .merges = BpeMerges(source_.merges.size() / 2),
               .whole_ids = {},
               .characters = {},
               .words_are_apart = true,
               .raw_added = {},
               .normalized_added = {}} {}

  void run() {
    number();
    take_added();
    take_bytes();
    take_texts();
    take_merges();
    check_ids(source_.rules.before);
    check_ids(source_.rules.after);
  }
  BpeModel take_model() { return std::move(model_); }
  TokenTexts take_token_texts() { return std::move(texts_); }
  std::map<std::string, std::int32_t, std::less<>> names() const {
    std::map<std::string, std::int32_t, std::less<>> names;
    for (const AddedToken& token : source_.added) names[token.text] = token.id;
    return names;
  }

 private:
  // The use of an id.
  enum class Use : std::uint8_t { kNothing, kNormal, kUnused, kAdded, kSpecial };

  Use& use(std::int32_t id) { return uses_[static_cast<std::size_t>(id)]; }

  void number() {
    std::int32_t last = -1;
    for (const std::int32_t id : source_.ids) last = std::max(last, id);
    for (const AddedToken& token : source_.added) last = std::max(last, token.id);
    uses_.assign(static_cast<std::size_t>(last + 1), Use::kNothing);
    texts_ = TokenTexts(uses_.size());
    for (std::size_t i = 0; i < source_.ids.size(); ++i) {
      const std::int32_t id = source_.ids[i];
      const std::string_view text = source_.texts[i];
      if (use(id) != Use::kNothing) fail_vocab(text, id, "an id that no other token has");
      use(id) = Use::kNormal;
      if (index_.insert(text, id)) fail_vocab(text, id, "each token once");
    }
    for (const std::int32_t id : source_.unused) use(id) = Use::kUnused;
  }
  [[noreturn]] void fail_vocab(std::string_view text, std::int32_t id, const char* expected) const {
    throw ModelError(source_.vocab_place + ": found " + quote(text) + " with id " +
                     std::to_string(id) + " a second time, expected " + expected);
  }

  void take_added() {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (std::size_t i = 0; i < source_.added.size(); ++i) {
      AddedToken token = source_.added[i];
      const auto known = index_.insert(token.text, token.id);
      const Use before = use(token.id);
      const bool is_free = before == Use::kNothing || (known && before == Use::kNormal);
      if ((known && *known != token.id) || !is_free) {
        const std::string of = known ? ", which has id " + std::to_string(*known) : "";
        throw ModelError(source_.added_places[i] + ": found id " + std::to_string(token.id) +
                         " for " + quote(token.text) + of +
                         ", expected an id and a text that no other token has");
      }
      use(token.id) = token.is_special ? Use::kSpecial : Use::kAdded;
      if (token.is_normalized && model_.rules.nfc) normalize_nfc(token.text, token.text);
      (token.is_normalized ? normalized : raw).push_back(std::move(token));
    }
    drop_equal(normalized);
    model_.raw_added = AddedTokens(raw);
    model_.normalized_added = AddedTokens(normalized);
  }
  // Texts that are equal once they are normalised: the first one stays.
  static void drop_equal(std::vector<AddedToken>& tokens) {
    std::ranges::stable_sort(tokens, {}, &AddedToken::text);
    const auto [first, last] = std::ranges::unique(tokens, {}, &AddedToken::text);
    tokens.erase(first, last);
  }

  void take_texts() {
    const bool fallback = model_.rules.byte_fallback;
    for (const AddedToken& token : source_.added) {
      if (token.is_special) {
        texts_.set_special(token.id, token.text);
      } else {
        texts_.set(token.id, fallback ? without_marks(token.text) : token.text);
      }
    }
    std::string bytes;
    for (std::size_t i = 0; i < source_.ids.size(); ++i) {
      const std::int32_t id = source_.ids[i];
      if (use(id) != Use::kNormal) continue;
      const std::string_view text = source_.texts[i];
      if (fallback) {
        take_fallback_text(text, id);
      } else if (read_byte_letters(text, bytes)) {
        texts_.set(id, bytes);
        if (model_.rules.ignore_merges) model_.whole_ids.push_back(id);
      } else {
        texts_.set(id, text);  // as the library decodes it; no text is encoded as this
      }
    }
    model_.characters.sort();
  }
  void take_fallback_text(std::string_view text, std::int32_t id) {
    if (text.empty() || !texts_.bytes_of(id).empty()) return;  // a byte's token
    texts_.set(id, without_marks(text));
    const DecodedCharacter character = decode_character(text);
    if (character.bytes == text.size() && character.code_point != DecodedCharacter::kInvalid) {
      model_.characters.add(character.code_point, id);
    }
  }

  void take_bytes() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string text;
      if (model_.rules.byte_fallback) {
        text = byte_token(byte);
      } else {
        append_utf8(text, letter_of_byte(static_cast<unsigned char>(byte)));
      }
      const auto id = index_.find(text);
      if (!id || use(*id) != Use::kNormal) {
        throw ModelError(source_.vocab_place + ": found no token " + quote(text) +
                         ", expected one for each of the 256 bytes");
      }
      model_.byte_ids[byte] = *id;
    }
    if (!model_.rules.byte_fallback) return;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      texts_.set(model_.byte_ids[byte], {&c, 1});
    }
  }

  void take_merges() {
    std::string joined;
    const char32_t marked_space = decode_character(kMarkedSpace).code_point;
    model_.words_are_apart = model_.characters.find(marked_space) != CharacterIds::kNone;
    for (std::size_t i = 0; i < source_.merges.size() / 2; ++i) {
      const std::string_view left = source_.merges[2 * i];
      const std::string_view right = source_.merges[2 * i + 1];
      joined.assign(left).append(right);
      const std::int32_t left_id = id_in_merge(i, left);
      const std::int32_t right_id = id_in_merge(i, right);
      const std::int32_t joined_id = id_in_merge(i, joined);
      if (holds_mark_inside(joined)) model_.words_are_apart = false;
      // The text of a user must not become a special token by any merge.
      if (use(joined_id) == Use::kSpecial || use(joined_id) == Use::kUnused) continue;
      if (!model_.merges.add(left_id, right_id, joined_id)) {
        throw ModelError(place_of_merge(i) + ": found " + quote(left) + " and " + quote(right) +
                         " a second time, expected each pair once");
      }
    }
  }
  std::int32_t id_in_merge(std::size_t merge, std::string_view text) const {
    if (const auto id = index_.find(text)) return *id;
    throw ModelError(place_of_merge(merge) + ": found " + quote(text) +
                     ", expected a token of the vocabulary");
  }
  std::string place_of_merge(std::size_t i) const {
    return source_.merges_place + "[" + std::to_string(i) + "]";
  }

  void check_ids(const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) {
      if (static_cast<std::size_t>(id) < uses_.size() && use(id) != Use::kNothing) continue;
      throw ModelError(source_.vocab_place + ": found no token of id " + std::to_string(id) +
                       ", expected one: it stands in front of texts or after them");
    }
  }

  BpeSource source_;
  TextIndex index_;  // of source_
  std::vector<Use> uses_;
  TokenTexts texts_;
  BpeModel model_;
};

std::unique_ptr<Tokenizer> BpeTokenizer::make(BpeSource source) {
  const bool fallback = source.rules.byte_fallback;
  BpeMaker maker(std::move(source));
  maker.run();
  return std::make_unique<BpeTokenizer>(
      Parts{.kind = fallback ? "byte-fallback BPE" : "byte-level BPE",
            .texts = maker.take_token_texts(),
            .named = maker.names(),
            .eos = {},
            .drops_first_space = fallback},
      maker.take_model());
}

class WorldTokenizer final : public Tokenizer {
 public:
  WorldTokenizer(Parts parts, ByteTrie trie, AddedTokens added)
      : Tokenizer(std::move(parts)), trie_(std::move(trie)), added_(std::move(added)) {}

  static std::unique_ptr<Tokenizer> make(const std::vector<std::string>& entries,
                                         const std::vector<AddedToken>& added,
                                         const std::string& name);

  std::vector<std::int32_t> encode(std::string_view text,
                                   const EncodeOptions& options) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 3 + 8);
    added_.cut(
        text, options, [&](std::string_view part) { encode_world(trie_, part, ids); },
        [&](std::int32_t id) { ids.push_back(id); });
    return ids;
  }

 private:
  ByteTrie trie_;
  AddedTokens added_;
};

std::unique_ptr<Tokenizer> WorldTokenizer::make(const std::vector<std::string>& entries,
                                                const std::vector<AddedToken>& added,
                                                const std::string& name) {
  Parts parts{.kind = "World", .texts = TokenTexts(entries.size()), .named = {}, .eos = {0}};
  std::vector<TextId> texts;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].empty()) continue;
    const auto id = static_cast<std::int32_t>(i);
    texts.push_back({entries[i], id});
    parts.texts.set(id, entries[i]);
  }
  std::ranges::stable_sort(texts, {}, &TextId::text);
  const auto twice = std::ranges::adjacent_find(texts, {}, &TextId::text);
  if (twice != texts.end()) {
    throw ModelError(name + ": found the ids " + std::to_string(twice->id) + " and " +
                     std::to_string(std::next(twice)->id) + " for " + quote(twice->text) +
                     ", expected each entry once");
  }
  parts.texts.set_special(0, "");
  std::vector<AddedToken> spelt;
  for (const AddedToken& token : added) {
    assert(entries[static_cast<std::size_t>(token.id)].empty());
    if (token.is_special) {
      parts.texts.set_special(token.id, token.text);
    } else {
      parts.texts.set(token.id, token.text);
    }
    parts.named[token.text] = token.id;
  }
  return std::make_unique<WorldTokenizer>(std::move(parts), ByteTrie(std::move(texts)),
                                          AddedTokens(added));
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSource source) {
  return BpeTokenizer::make(std::move(source));
}

std::unique_ptr<Tokenizer> make_world_tokenizer(const std::vector<std::string>& entries,
                                                const std::vector<AddedToken>& added,
                                                const std::string& name) {
  return WorldTokenizer::make(entries, added, name);
}

}  // namespace lintel
