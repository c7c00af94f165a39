// SPDX-License-Identifier: Apache-2.0
// Regular expressions over code points: what patterns and GBNF are parsed to.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "server/grammar/dfa.h"

namespace lintel::grammar {

using ExpressionId = std::uint32_t;

struct Expression {
  enum class Kind : std::uint8_t {
    kClass,     // one code point of `set`
    kSequence,  // the parts, one after the other; none: the empty text
    kChoice,    // one of the parts
    kRepeat,    // parts[0], `least` to `most` times
    kRule,      // what rule number `rule` says: GBNF alone
  };
  Kind kind = Kind::kSequence;
  CodePointSet set;
  std::vector<ExpressionId> parts;
  std::uint32_t least = 0;
  std::uint32_t most = 0;
  std::uint32_t rule = 0;
};

// Expressions that name one another by number.
class Expressions {
 public:
  ExpressionId add(Expression expression) {
    all_.push_back(std::move(expression));
    return static_cast<ExpressionId>(all_.size() - 1);
  }
  ExpressionId add_class(CodePointSet set) {
    return add({Expression::Kind::kClass, normalized(std::move(set)), {}, 0, 0, 0});
  }
  ExpressionId add_parts(Expression::Kind kind, std::vector<ExpressionId> parts) {
    if (parts.size() == 1) return parts[0];
    return add({kind, {}, std::move(parts), 0, 0, 0});
  }
  ExpressionId add_repeat(ExpressionId part, std::uint32_t least, std::uint32_t most) {
    return add({Expression::Kind::kRepeat, {}, {part}, least, most, 0});
  }
  const Expression& operator[](ExpressionId id) const { return all_[id]; }
  std::size_t size() const { return all_.size(); }

 private:
  std::vector<Expression> all_;
};

// Adds what `id` accepts to `nfa`, from state `from`; returns the state behind it. `rules`: the
// expressions of rules, none of which contains itself. Recursion is as deep as expressions are
// nested. Throws TooLarge.
Nfa::State add_expression(Nfa& nfa, const Expressions& expressions, ExpressionId id,
                          const std::vector<ExpressionId>& rules, Nfa::State from,
                          Spelling spelling);

// Reads `digits` hexadecimal digits at *at. False: they are not there.
bool read_hex(std::string_view text, std::size_t* at, int digits, char32_t* value);
// Reads one code point of valid UTF-8 at *at. False: it is not valid.
bool read_code_point(std::string_view text, std::size_t* at, char32_t* value);

}  // namespace lintel::grammar
