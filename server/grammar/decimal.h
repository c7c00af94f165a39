// SPDX-License-Identifier: Apache-2.0
// Decimal: a number as JSON spells it, exactly.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lintel::grammar {

// Digits before the point, and behind it. Doubles have fewer than 310 before it.
inline constexpr std::size_t kMaxDecimalDigits = 400;

// Immutable. Zero has no sign.
class Decimal {
 public:
  Decimal() = default;  // zero
  // A numeral of JSON. Null: it is none, or has more than kMaxDecimalDigits.
  static std::optional<Decimal> parse(std::string_view text);
  // The shortest numeral that reads as `value`, a finite double.
  static Decimal of(double value);

  bool is_zero() const { return whole_ == "0" && fraction_.empty(); }
  bool is_negative() const { return negative_; }
  bool is_integer() const { return fraction_.empty(); }
  // The digits before the point, without leading zeros; "0" below 1.
  const std::string& whole() const { return whole_; }
  // The digits after the point, without zeros at their end.
  const std::string& fraction() const { return fraction_; }

  Decimal magnitude() const;
  Decimal operator-() const;
  // The nearest integers: not above, not below, above, below.
  Decimal floor() const;
  Decimal ceiling() const;
  Decimal integer_above() const;
  Decimal integer_below() const;
  // The number times 10^shift. The result may have more digits than parse() takes.
  Decimal shifted(int shift) const;
  // The place of the first digit other than 0: 0 for 1 to 9, -1 for 0.1. Not of zero.
  int exponent() const;
  double nearest_double() const;
  std::string text() const;

  bool operator==(const Decimal&) const = default;
  std::strong_ordering operator<=>(const Decimal& other) const;

 private:
  Decimal(bool negative, std::string whole, std::string fraction);

  bool negative_ = false;
  std::string whole_ = "0";
  std::string fraction_;
};

}  // namespace lintel::grammar
