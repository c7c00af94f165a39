// SPDX-License-Identifier: Apache-2.0
// GBNF, the grammar notation of llama.cpp, as a grammar.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"
#include "server/grammar/grammar.h"

namespace lintel::grammar {

// Rules `name ::= ...` of texts "...", classes [...], `.`, groups, alternatives and the repetitions
// * + ? {m} {m,} {m,n}; # begins a comment. The rule `root` is the whole. Rules without recursion
// become automata where those are small enough. Refused: left recursion, more than 256 KiB, groups
// more than 64 deep, repetitions above 10,000, and what no finite text meets. Throws GrammarError,
// with "line N" as its path.
std::shared_ptr<const Grammar> compile_gbnf(std::string_view text);

// A text in quotes, as GBNF writes it.
std::string gbnf_text(std::string_view text);

// Replaces tokens by their ids, <[42]>, in GBNF by their texts. The texts match however their bytes
// are cut into tokens. Throws GrammarError, with "line N" as its path, for ids that the vocabulary
// does not have, special tokens, and those that are no whole characters.
std::string spell_tokens(std::string_view text, const Tokenizer& tokenizer);

// Adds the texts of `text` to `grammar`, whose depth is kMaxGbnfDepth. Throws GrammarError.
NodeId add_gbnf(Grammar& grammar, std::string_view text);

}  // namespace lintel::grammar
