// SPDX-License-Identifier: Apache-2.0
// Numbers between bounds, multiples of a number, and the numerals that a grammar makes of them.
#pragma once

#include <compare>
#include <cstddef>
#include <optional>

#include "server/grammar/decimal.h"
#include "server/grammar/dfa.h"

namespace lintel::grammar {

struct NumberBound {
  Decimal value;
  bool is_open = false;  // the value itself is none
  auto operator<=>(const NumberBound&) const = default;
};

struct NumberBounds {
  std::optional<NumberBound> least, most;
  std::optional<Decimal> multiple_of;  // above 0

  auto operator<=>(const NumberBounds&) const = default;
  bool is_free() const { return !least && !most && !multiple_of; }
  bool holds(const Decimal& value) const;
  // True if no number is within both; false if only a look at multiples could show it.
  bool excludes(const NumberBounds& other) const;

  // Each narrows the numbers.
  void add_least(const Decimal& value, bool is_open);
  void add_most(const Decimal& value, bool is_open);
  // False: the common multiples are those of a number with more than 18 digits.
  [[nodiscard]] bool add_multiple_of(const Decimal& value);
};

// Numerals of the numbers within `bounds`, integers without fraction or exponent. kFractions are
// numerals with a fraction other than 0, of at most 15 digits. kAll has exponents behind a mantissa
// from 1 to below 10 too, unless multiples are asked for; any, where only the sign of a number is
// bounded. A numeral read as a double is within the bounds, too. Adds its work to *work, if there
// is one. Throws TooLarge.
enum class Numerals { kIntegers, kFractions, kAll };
Dfa number_dfa(const NumberBounds& bounds, Numerals numerals, std::size_t* work = nullptr);

}  // namespace lintel::grammar
