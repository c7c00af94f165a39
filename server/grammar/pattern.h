// SPDX-License-Identifier: Apache-2.0
// `pattern` and `format` of JSON Schema as automata.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/grammar/dfa.h"

namespace lintel::grammar {

// Texts in which `pattern` occurs, an expression as ECMA-262 has it: with kJsonString between the
// quotes that belong to it, with kUtf8 alone. Throws GrammarError, with "pattern TEXT" as its
// reason: look-ahead within a group that is repeated, look-behind, back references, \b, \p and
// anchors inside are refused, as is what needs more states than an automaton may have, or more
// units of work than `most_work`. Adds its work to *work, if there is one, also where it throws.
Dfa pattern_dfa(std::string_view pattern, Spelling spelling, std::size_t* work = nullptr,
                std::size_t most_work = kMaxDfaWork);

// An expression for pattern_dfa() of the texts that `pattern` matches from the first character to
// the last: "^a$|^b$" of "a|b", of "^a|b$" and of "^a$|^b$". Throws what pattern_dfa() does where
// `pattern` alone does not parse, in linear time: no automaton is made.
std::string whole_pattern(std::string_view pattern);

// The texts of a format in the same way; null: it is not served. ASCII, and narrower than the
// standards: no leap seconds, labels of host names of at most 31 letters and digits, and no zones
// in addresses of IPv6.
std::shared_ptr<const Dfa> format_dfa(std::string_view format, Spelling spelling);

}  // namespace lintel::grammar
