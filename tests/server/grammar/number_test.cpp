// SPDX-License-Identifier: Apache-2.0
// Numbers: numerals within bounds and multiples against integers of 128 bits, near the bounds.
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "server/grammar/decimal.h"
#include "server/grammar/number_bounds.h"
#include "tests/server/grammar/grammar_support.h"
#include "tests/support/catch.h"

namespace lintel::grammar {
namespace {

using Units = __int128;

// A numeral as so many units of 10^-16. Of numerals with few digits and a small exponent.
Units units_of(const std::string& numeral) {
  Units units = 0;
  int places = 16;
  std::size_t at = 0;
  bool is_behind_point = false;
  for (; at < numeral.size() && numeral[at] != 'e' && numeral[at] != 'E'; ++at) {
    if (numeral[at] == '.') is_behind_point = true;
    if (numeral[at] < '0' || numeral[at] > '9') continue;
    units = units * 10 + (numeral[at] - '0');
    if (is_behind_point) --places;
  }
  if (at < numeral.size()) places += std::atoi(numeral.c_str() + at + 1);
  for (; places > 0; --places) units *= 10;
  return numeral[0] == '-' ? -units : units;
}

class RandomNumerals {
 public:
  explicit RandomNumerals(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  std::string digits(std::uint64_t count) {
    std::string text;
    for (std::uint64_t i = 0; i < count; ++i) {
      text += static_cast<char>('0' + (below(3) == 0 ? 9 * below(2) : below(10)));
    }
    return text;
  }
  std::string plain() {
    std::string text = below(3) == 0 ? "-" : "";
    const std::uint64_t size = below(4);
    text += size == 0 ? "0" : static_cast<char>('1' + below(9)) + digits(size - 1);
    return below(3) == 0 ? text : text + "." + digits(1 + below(4));
  }
  std::string any() {
    std::string text = plain();
    if (below(3) == 0) {
      constexpr const char* kSigns[] = {"", "+", "-", "-0"};
      text +=
          (below(2) == 0 ? "e" : "E") + std::string(kSigns[below(4)]) + std::to_string(below(6));
    }
    return text;
  }
  // The same with a digit changed, and perhaps another one behind it.
  std::string near(std::string text) {
    const std::size_t at = below(text.size());
    if (text[at] >= '0' && text[at] <= '9') text[at] = static_cast<char>('0' + below(10));
    if (below(2) == 0) text += text.find('.') == std::string::npos ? ".0" : digits(1);
    if (below(2) == 0) text += text.find('.') == std::string::npos ? "" : digits(1);
    const std::size_t first = text[0] == '-' ? 1 : 0;
    while (text[first] == '0' && first + 1 < text.size() && text[first + 1] != '.') {
      text.erase(first, 1);
    }
    return text;
  }

 private:
  std::mt19937_64 random_;
};

struct Limits {
  std::string least, most, multiple;  // empty: none
  bool least_is_open = false, most_is_open = false;

  NumberBounds bounds() const {
    NumberBounds made;
    if (!least.empty()) made.add_least(*Decimal::parse(least), least_is_open);
    if (!most.empty()) made.add_most(*Decimal::parse(most), most_is_open);
    if (!multiple.empty()) REQUIRE(made.add_multiple_of(*Decimal::parse(multiple)));
    return made;
  }
  bool holds(const std::string& numeral) const {
    const Units value = units_of(numeral);
    if (!least.empty()) {
      const Units bound = units_of(least);
      if (value < bound || (least_is_open && value == bound)) return false;
    }
    if (!most.empty()) {
      const Units bound = units_of(most);
      if (value > bound || (most_is_open && value == bound)) return false;
    }
    return multiple.empty() || value % units_of(multiple) == 0;
  }
};

TEST_CASE("decimals: order and integers are those of exact arithmetic") {
  RandomNumerals random(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string one = random.any();
    const std::string other = random.below(2) == 0 ? random.any() : one + (i % 2 ? "e0" : "");
    INFO(one << " " << other);
    const auto a = Decimal::parse(one);
    REQUIRE(a);
    const Units unit = units_of("1"), value = units_of(one);
    CHECK(a->is_integer() == (value % unit == 0));
    CHECK(units_of(a->text()) == value);
    const Units floor = value / unit - (value % unit < 0 ? 1 : 0);
    CHECK(units_of(a->floor().text()) == floor * unit);
    CHECK(units_of(a->integer_above().text()) == (floor + 1) * unit);
    CHECK(units_of(a->integer_below().text()) == (value % unit == 0 ? floor - 1 : floor) * unit);
    const auto b = Decimal::parse(other);
    if (!b) continue;  // two exponents
    CHECK((*a < *b) == (value < units_of(other)));
    CHECK((*a == *b) == (value == units_of(other)));
  }
  for (const char* const none : {"", "-", "1.", ".5", "1e", "1e+", "x", "1x", "1e401", "1e-401"}) {
    CHECK_FALSE(Decimal::parse(none));
  }
  CHECK(Decimal::parse("0e99999999")->is_zero());
  CHECK(Decimal::parse("18446744073709551617")->text() == "18446744073709551617");
}

TEST_CASE("number automata: numerals are those that exact arithmetic permits") {
  RandomNumerals random(2);
  constexpr const char* kMultiples[] = {"1",   "2", "3",   "5",  "10",  "0.5",  "0.25", "0.01",
                                        "0.1", "7", "100", "12", "0.3", "1e-3", "15",   "360"};
  int taken = 0, with_exponent = 0;
  for (int round = 0; round < 1500; ++round) {
    Limits limits;
    if (random.below(4) > 0) limits.least = random.below(8) == 0 ? "0" : random.any();
    if (random.below(4) > 0) limits.most = random.below(8) == 0 ? "0" : random.any();
    limits.least_is_open = random.below(3) == 0;
    limits.most_is_open = random.below(3) == 0;
    if (random.below(3) == 0) limits.multiple = kMultiples[random.below(16)];
    const auto numerals = static_cast<Numerals>(random.below(3));
    const NumberBounds bounds = limits.bounds();
    const Dfa dfa = number_dfa(bounds, numerals);
    std::vector<std::string> texts;
    for (int i = 0; i < 40; ++i) texts.push_back(random.any());
    for (const auto& bound : {bounds.least, bounds.most}) {
      if (!bound) continue;
      texts.push_back(bound->value.text());
      for (int i = 0; i < 20; ++i) texts.push_back(random.near(bound->value.text()));
    }
    for (const std::string& text : texts) {
      INFO(text << " in " << limits.least << " to " << limits.most << ", open "
                << limits.least_is_open << limits.most_is_open << ", multiples of "
                << limits.multiple << ", numerals " << static_cast<int>(numerals));
      const bool has_exponent = text.find_first_of("eE") != std::string::npos;
      const bool has_point = text.find('.') != std::string::npos;
      const bool holds = limits.holds(text);
      const bool is_integer = units_of(text) % units_of("1") == 0;
      CHECK(bounds.holds(*Decimal::parse(text)) == holds);
      const bool is_taken = dfa.matches(text);
      if (is_taken) {
        REQUIRE(holds);
        REQUIRE((numerals != Numerals::kIntegers || (!has_exponent && !has_point)));
        REQUIRE((numerals != Numerals::kFractions || !is_integer));
        ++taken;
        with_exponent += has_exponent ? 1 : 0;
        continue;
      }
      // Forms that are not made: -0, exponents but for kAll without multiples and a mantissa of one
      // digit.
      const std::size_t first = text[0] == '-' ? 1 : 0;
      const bool is_zero = units_of(text) == 0;
      const bool is_scientific = text[first] != '0' && first + 1 < text.size() &&
                                 (text[first + 1] < '0' || text[first + 1] > '9');
      const bool is_made =
          has_exponent ? numerals == Numerals::kAll && is_scientific && limits.multiple.empty()
                       : !(is_zero && first == 1);
      const bool is_asked = numerals == Numerals::kIntegers    ? !has_point && !has_exponent
                            : numerals == Numerals::kFractions ? !is_integer && !has_exponent
                                                               : true;
      REQUIRE_FALSE((holds && is_made && is_asked));
    }
  }
  CHECK(taken > 5'000);
  CHECK(with_exponent > 300);
}

TEST_CASE("number automata: a numeral read as a double is within open bounds") {
  RandomNumerals random(3);
  for (const char* const bound : {"1", "0.1", "100", "-3.5", "1e-7", "123456789.25", "-1e20"}) {
    for (const bool is_least : {false, true}) {
      NumberBounds bounds;
      if (is_least) bounds.add_least(*Decimal::parse(bound), true);
      if (!is_least) bounds.add_most(*Decimal::parse(bound), true);
      const Dfa dfa = number_dfa(bounds, Numerals::kAll);
      const double limit = std::strtod(bound, nullptr);
      CHECK_FALSE(dfa.matches(Decimal::parse(bound)->text()));
      // The nearest double is made; what lies between may not be.
      const double next = std::nextafter(limit, is_least ? 1e300 : -1e300);
      CHECK(dfa.matches(Decimal::of(next).text()));
      for (int i = 0; i < 300; ++i) {
        std::string text = Decimal::of(next).text();
        if (text.find('.') == std::string::npos) text += ".";
        text += random.digits(1 + random.below(12));
        INFO(text << " beyond " << bound);
        const double value = std::strtod(text.c_str(), nullptr);
        if (dfa.matches(text)) CHECK((is_least ? value > limit : value < limit));
      }
    }
  }
  NumberBounds positive;
  positive.add_least(Decimal(), true);
  const Dfa dfa = number_dfa(positive, Numerals::kAll);
  CHECK(dfa.matches("1e-300"));
  CHECK(dfa.matches("0.00001"));
  CHECK_FALSE(dfa.matches("0"));
  CHECK_FALSE(dfa.matches("0.000"));
  CHECK_FALSE(dfa.matches("1e-400"));
}

TEST_CASE("number automata: a numeral that is no integer is none as a double") {
  const Dfa dfa = number_dfa({}, Numerals::kFractions);
  for (const char* const text :
       {"8561816256079995524069683382224251758.06", "9007199254740993.5", "123456789012345.6",
        "0.99999999999999999999", "-1.00000000000000000001", "5", "5.0", "0.000"}) {
    INFO(text);
    CHECK_FALSE(dfa.matches(text));
  }
  for (const char* const text : {"0.5", "-12345678901234.5", "1.50", "0.00000000000000000000000001",
                                 "0.999999999999999", "-0.25"}) {
    INFO(text);
    CHECK(dfa.matches(text));
  }
  RandomNumerals random(4);
  int taken = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = "1" + random.digits(random.below(18)) + "." +
                             random.digits(1 + random.below(18)) + (i % 2 == 0 ? "1" : "");
    if (!dfa.matches(text)) continue;
    INFO(text);
    const double value = std::strtod(text.c_str(), nullptr);
    CHECK(value != std::trunc(value));
    ++taken;
  }
  CHECK(taken > 300);
}

TEST_CASE("number automata: bounds of any size, and multiples beyond an automaton") {
  const auto dfa_of = [](const char* least, const char* most, const char* multiple) {
    NumberBounds bounds;
    if (least != nullptr) bounds.add_least(*Decimal::parse(least), false);
    if (most != nullptr) bounds.add_most(*Decimal::parse(most), false);
    if (multiple != nullptr) REQUIRE(bounds.add_multiple_of(*Decimal::parse(multiple)));
    return number_dfa(bounds, Numerals::kIntegers);
  };
  const Dfa large =
      dfa_of("-18446744073709551616", "340282366920938463463374607431768211456", nullptr);
  CHECK(large.matches("340282366920938463463374607431768211456"));
  CHECK_FALSE(large.matches("340282366920938463463374607431768211457"));
  CHECK(large.matches("-18446744073709551616"));
  CHECK_FALSE(large.matches("-18446744073709551617"));
  CHECK(dfa_of(nullptr, "1e308", nullptr).matches("1" + std::string(308, '0')));
  CHECK_FALSE(dfa_of(nullptr, "1e308", nullptr).matches("1" + std::string(307, '0') + "1"));
  CHECK(dfa_of(nullptr, nullptr, "1e15").matches("7" + std::string(15, '0')));
  CHECK_FALSE(dfa_of(nullptr, nullptr, "1e15").matches("7" + std::string(14, '0')));
  CHECK_THROWS_AS(dfa_of(nullptr, nullptr, "123457"), TooLarge);
  NumberBounds bounds;
  CHECK_FALSE(bounds.add_multiple_of(*Decimal::parse("0.1234567890123456789")));
  REQUIRE(bounds.add_multiple_of(*Decimal::parse("0.25")));
  REQUIRE(bounds.add_multiple_of(*Decimal::parse("0.1")));
  CHECK(bounds.multiple_of->text() == "0.5");
}

}  // namespace
}  // namespace lintel::grammar
