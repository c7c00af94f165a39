// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/expression.h"

namespace lintel::grammar {

Nfa::State add_expression(Nfa& nfa, const Expressions& expressions, ExpressionId id,
                          const std::vector<ExpressionId>& rules, Nfa::State from,
                          Spelling spelling) {
  const Expression& expression = expressions[id];
  nfa.count_work();
  const auto add = [&](ExpressionId part, Nfa::State at) {
    return add_expression(nfa, expressions, part, rules, at, spelling);
  };
  switch (expression.kind) {
    case Expression::Kind::kClass:
      return nfa.add_code_points(from, expression.set, spelling);
    case Expression::Kind::kRule:
      return add(rules[expression.rule], from);
    case Expression::Kind::kSequence:
      for (const ExpressionId part : expression.parts) from = add(part, from);
      return from;
    case Expression::Kind::kChoice: {
      const Nfa::State end = nfa.add_state();
      for (const ExpressionId part : expression.parts) {
        // A part of its own state: loops at its beginning must not lead into the others.
        const Nfa::State begin = nfa.add_state();
        nfa.add_empty(from, begin);
        nfa.add_empty(add(part, begin), end);
      }
      return end;
    }
    case Expression::Kind::kRepeat: {
      const ExpressionId part = expression.parts[0];
      for (std::uint32_t i = 0; i < expression.least; ++i) from = add(part, from);
      if (expression.most == kUnbounded) {
        const Nfa::State loop = nfa.add_state();
        nfa.add_empty(from, loop);
        nfa.add_empty(add(part, loop), loop);
        const Nfa::State end = nfa.add_state();
        nfa.add_empty(loop, end);
        return end;
      }
      const Nfa::State end = nfa.add_state();
      nfa.add_empty(from, end);
      for (std::uint32_t i = expression.least; i < expression.most; ++i) {
        const Nfa::State begin = nfa.add_state();
        nfa.add_empty(from, begin);
        from = add(part, begin);
        nfa.add_empty(from, end);
      }
      return end;
    }
  }
  return from;
}

bool read_hex(std::string_view text, std::size_t* at, int digits, char32_t* value) {
  *value = 0;
  for (int i = 0; i < digits; ++i, ++*at) {
    if (*at >= text.size()) return false;
    const char c = text[*at];
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else {
      return false;
    }
    *value = *value << 4 | static_cast<char32_t>(digit);
  }
  return true;
}

bool read_code_point(std::string_view text, std::size_t* at, char32_t* value) {
  if (*at >= text.size()) return false;
  const auto first = static_cast<unsigned char>(text[(*at)++]);
  if (first < 0x80) {
    *value = first;
    return true;
  }
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4) return false;
  *value = first & (0x3Fu >> more);
  for (int i = 0; i < more; ++i, ++*at) {
    if (*at >= text.size()) return false;
    const auto byte = static_cast<unsigned char>(text[*at]);
    if ((byte & 0xC0) != 0x80) return false;
    *value = *value << 6 | (byte & 0x3Fu);
  }
  const char32_t least = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
  return *value >= least && *value <= kLastCodePoint && (*value < 0xD800 || *value > 0xDFFF);
}

}  // namespace lintel::grammar
