// SPDX-License-Identifier: Apache-2.0
// Cuts texts before byte-level BPE: four regular expressions by one scanner written by hand.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lintel {

// The patterns. L, N, M and \s are Unicode's letters, numbers, marks and white space.
enum class SplitPattern {
  kGpt2,    // GPT-2, GPT-NeoX; pre_tokenizer ByteLevel with use_regex
  kQwen2,   // Qwen2 to Qwen3, Qwen3-Next
  kQwen35,  // Qwen3.5 and later: a mark is part of a word
  kLlama3,  // Llama 3: up to three digits a piece
};

// The text of the pattern as tokenizer.json has it.
std::string_view regex_of(SplitPattern pattern);

// The pattern with exactly this text, of those that a Split may name.
std::optional<SplitPattern> split_pattern_of(std::string_view regex);

// The end of the piece that begins at `begin`; the pieces of a text follow one another without
// gaps. A byte that is not UTF-8 is a character that is no letter, number or space. Takes time in
// proportion to the piece and the white space after it. REQUIRES: begin < text.size().
std::size_t end_of_piece(SplitPattern pattern, std::string_view text, std::size_t begin);

}  // namespace lintel
