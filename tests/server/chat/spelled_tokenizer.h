// SPDX-License-Identifier: Apache-2.0
// SpelledTokenizer: a token a byte, and control tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel::testing {

// Ids 0 to 255 are bytes, then come the control tokens, which are special, in their order.
class SpelledTokenizer final : public Tokenizer {
 public:
  explicit SpelledTokenizer(const std::vector<std::string>& control)
      : Tokenizer(parts_of(control)), added_(added_of(control)) {}

  std::vector<std::int32_t> encode(std::string_view text,
                                   const EncodeOptions& options = {}) const override {
    std::vector<std::int32_t> ids;
    added_.cut(
        text, options,
        [&](std::string_view part) {
          for (const char byte : part) ids.push_back(static_cast<unsigned char>(byte));
        },
        [&](std::int32_t id) { ids.push_back(id); });
    return ids;
  }

 private:
  static constexpr std::int32_t kFirst = 256;

  static Parts parts_of(const std::vector<std::string>& control) {
    Parts parts{.kind = "spelled", .texts = TokenTexts(kFirst + control.size()), .named = {}};
    for (std::int32_t id = 0; id < kFirst; ++id) {
      const char byte = static_cast<char>(id);
      parts.texts.set(id, {&byte, 1});
    }
    std::int32_t id = kFirst;
    for (const std::string& text : control) {
      parts.texts.set_special(id, text);
      parts.named[text] = id++;
    }
    return parts;
  }
  static AddedTokens added_of(const std::vector<std::string>& control) {
    std::vector<AddedToken> tokens;
    std::int32_t id = kFirst;
    for (const std::string& text : control) tokens.push_back({text, id++, /*is_special=*/true});
    return AddedTokens(tokens);
  }

  AddedTokens added_;
};

}  // namespace lintel::testing
