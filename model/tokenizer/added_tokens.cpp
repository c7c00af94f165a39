// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/added_tokens.h"

#include <array>
#include <utility>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/unicode.h"

namespace lintel {

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) {
  std::vector<TextId> texts;
  texts.reserve(tokens.size());
  for (const AddedToken& token : tokens) {
    texts.push_back({token.text, static_cast<std::int32_t>(entries_.size())});
    entries_.push_back({token.id, token.is_special});
  }
  trie_ = ByteTrie(std::move(texts));
}

namespace {

struct ByteAlphabet {
  static constexpr char32_t kFirstOther = 0x100;
  static constexpr std::size_t kNumOthers = 68;

  std::array<char32_t, 256> letters{};
  std::array<std::int16_t, kFirstOther + kNumOthers> bytes{};  // by letter; -1: none
};

constexpr ByteAlphabet kByteAlphabet = [] {
  ByteAlphabet alphabet;
  alphabet.bytes.fill(-1);
  char32_t next = ByteAlphabet::kFirstOther;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool stands_for_itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const char32_t letter = stands_for_itself ? byte : next++;
    alphabet.letters[byte] = letter;
    alphabet.bytes[letter] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

char32_t letter_of_byte(unsigned char byte) { return kByteAlphabet.letters[byte]; }

bool read_byte_letters(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const DecodedCharacter letter = decode_character(text);
    if (letter.code_point >= kByteAlphabet.bytes.size()) return false;
    const std::int16_t byte = kByteAlphabet.bytes[letter.code_point];
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
    text.remove_prefix(letter.bytes);
  }
  return true;
}

}  // namespace lintel
