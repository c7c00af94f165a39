// SPDX-License-Identifier: Apache-2.0
// Text as tokens and back: the tokenizers of byte models, of Hugging Face directories, of RWKV's
// World vocabulary and of GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel {

// Bytes of a text that do not come from who may name tokens: a token whose spelling has one of them
// is not cut out there, and they are encoded as any other letters.
struct PlainText {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool special_only = false;  // added tokens that are not special are cut out
};

struct EncodeOptions {
  // The tokens that the model wants before and after a text, as <s>.
  bool add_special = true;
  // Special tokens spelt out in the text become their ids. Off by default: the text of a user must
  // not forge the end of a turn.
  bool parse_special = false;
  // The same for added tokens that are not special, as <think> and runs of spaces. Off for what
  // people write into a chat.
  bool parse_added = true;
  // The text follows another of the same sequence: vocabularies that mark words by a space in front
  // put none before its first.
  bool continues = false;
  // Ascending, without overlaps. What parse_special and parse_added do not apply to.
  std::span<const PlainText> plain{};
};

// The bytes that each token contributes to a text. Filled while a tokenizer is made; immutable
// then.
class TokenTexts {
 public:
  // For ids below `size`. None has bytes.
  explicit TokenTexts(std::size_t size = 0) : places_(size) {}

  // REQUIRES: an id below size(), without bytes so far.
  void set(std::int32_t id, std::string_view bytes);
  // A special token has no bytes. `text`: how it is spelt.
  void set_special(std::int32_t id, std::string text);

  std::size_t size() const { return places_.size(); }
  std::size_t longest() const { return longest_; }  // bytes of a token
  std::string_view bytes_of(std::int32_t id) const;
  bool is_special(std::int32_t id) const { return special_.contains(id); }
  std::string_view text_of_special(std::int32_t id) const;

 private:
  struct Place {
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
  };
  std::string bytes_;  // of all tokens
  std::size_t longest_ = 0;
  std::vector<Place> places_;
  std::map<std::int32_t, std::string> special_;
};

// Immutable; shared by threads. Ids that a tokenizer has no entry for are ordinary: a model may
// have more rows than its tokenizer has tokens.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Any bytes: what is not UTF-8 is encoded byte by byte.
  virtual std::vector<std::int32_t> encode(std::string_view text,
                                           const EncodeOptions& options = {}) const = 0;

  // For people: "byte-level BPE", "byte-fallback BPE", "World", "bytes".
  std::string_view kind() const { return kind_; }
  // One more than the largest id.
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(texts_.size()); }
  // The bytes that a token contributes to a text, often a part of a character. Empty: it is
  // special, or has no text. Valid as long as the tokenizer.
  std::string_view bytes_of(std::int32_t id) const { return texts_.bytes_of(id); }
  std::size_t longest() const { return texts_.longest(); }  // bytes of a token
  bool is_special(std::int32_t id) const { return texts_.is_special(id); }
  // The spelling of a special token; empty: the token is not special, or has no spelling.
  std::string_view text_of_special(std::int32_t id) const { return texts_.text_of_special(id); }
  // True if a text has no space where its first token has one.
  bool drops_first_space() const { return drops_first_space_; }
  // Ids that end a text, ascending.
  std::span<const std::int32_t> eos() const { return eos_; }
  // Before threads share it: a directory's files name eos tokens by their text.
  void set_eos(std::vector<std::int32_t> ids) { eos_ = std::move(ids); }

  // The id of an added or special token by its text.
  std::optional<std::int32_t> find_token(std::string_view text) const;

 protected:
  struct Parts {
    std::string kind;
    TokenTexts texts;
    std::map<std::string, std::int32_t, std::less<>> named;  // added and special tokens
    std::vector<std::int32_t> eos;
    bool drops_first_space = false;
  };
  explicit Tokenizer(Parts parts);

 private:
  std::string kind_;
  TokenTexts texts_;
  std::map<std::string, std::int32_t, std::less<>> named_;
  std::vector<std::int32_t> eos_;
  bool drops_first_space_;
};

// The bytes that a token contributes to a text that ends `cut` bytes before the token does.
inline std::string_view text_of_token(const Tokenizer& tokenizer, std::int32_t id,
                                      std::int32_t cut) {
  const std::string_view bytes = tokenizer.bytes_of(id);
  return bytes.substr(0, bytes.size() - static_cast<std::size_t>(cut));
}

// A token is a byte, as byte models have it. No token is special.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer();
  std::vector<std::int32_t> encode(std::string_view text,
                                   const EncodeOptions& options = {}) const override;
};

// Loads the tokenizer of a model directory in Hugging Face's form: rwkv_vocab_v20230424.txt, else
// tokenizer.json with tokenizer_config.json; eos() is stop_ids. Null: the directory has neither.
// Throws ModelError, with file, place, what was found and expected, for anything that would be
// encoded otherwise than the file means.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);
// True if the directory has a file that load_tokenizer() reads.
bool has_tokenizer_file(const std::filesystem::path& directory);

// The ids that end a text, ascending: eos_token_id of generation_config.json, of the text model in
// config.json and at its top, and eos_token of tokenizer_config.json; for World id 0 alone, as some
// of its directories name others that end nothing. Null `tokenizer`: without eos_token. Throws
// ModelError.
std::vector<std::int32_t> stop_ids(const std::filesystem::path& directory,
                                   const Tokenizer* tokenizer);

// The tokenizer in a GGUF file, in keys that begin with "tokenizer.".
struct GgufVocabulary {
  std::string file;                 // for errors
  std::string model;                // ggml.model; empty: absent
  std::string pre;                  // ggml.pre; empty: absent
  std::vector<std::string> tokens;  // ggml.tokens
  std::vector<std::int32_t> types;  // ggml.token_type; empty: all normal
  std::vector<std::string> merges;  // ggml.merges
  std::optional<std::int64_t> bos;  // ggml.bos_token_id and so on
  std::optional<std::int64_t> eos;
  std::optional<std::int64_t> eot;
  std::optional<std::int64_t> padding;
  std::optional<bool> add_bos;  // ggml.add_bos_token
  std::optional<bool> add_eos;
};

// Null: the model has ids alone; *why says what is not served, or is empty where the file has no
// tokenizer. Throws ModelError.
std::unique_ptr<Tokenizer> make_gguf_tokenizer(const GgufVocabulary& vocabulary,
                                               std::string* why = nullptr);

}  // namespace lintel
