// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/number_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace lintel::grammar {
namespace {

using Units = std::uint64_t;

// Powers of ten that doubles have in full precision.
constexpr int kMostExponent = 307;
// Digits behind the point of a numeral without exponent above an open bound of 0.
constexpr int kMostSmallDigits = 20;
constexpr std::size_t kMostMultipleDigits = 18;

// A multiple as so many units of 10^-places. Null: it has too many digits.
struct ScaledMultiple {
  Units units = 1;
  std::size_t places = 0;
};

std::optional<Units> units_of(const std::string& digits) {
  const std::size_t begin = std::min(digits.find_first_not_of('0'), digits.size());
  if (digits.size() - begin > kMostMultipleDigits) return std::nullopt;
  Units units = 0;
  for (const char c : digits.substr(begin)) units = units * 10 + static_cast<Units>(c - '0');
  return units;
}

std::optional<ScaledMultiple> scaled_multiple(const Decimal& multiple) {
  const auto units = units_of(multiple.whole() + multiple.fraction());
  if (!units) return std::nullopt;
  return ScaledMultiple{*units, multiple.fraction().size()};
}

bool is_multiple(const Decimal& value, const Decimal& of) {
  const std::optional<ScaledMultiple> step = scaled_multiple(of);
  if (!step) return false;
  const Decimal scaled = value.shifted(static_cast<int>(step->places));
  if (!scaled.is_integer()) return false;
  Units rest = 0;  // below 10^18: times ten it fits
  for (const char c : scaled.whole())
    rest = (rest * 10 + static_cast<Units>(c - '0')) % step->units;
  return rest == 0;
}

const Decimal& one() {
  static const Decimal made = *Decimal::parse("1");
  return made;
}
// The least number above 0 of which numerals are made.
const Decimal& smallest() {
  static const Decimal made = one().shifted(-kMostExponent);
  return made;
}

// A closed bound in place of an open one: what it permits is beyond `value` as a double, too.
Decimal next_to(const Decimal& value, bool above) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const double nearest = value.nearest_double();
  if (std::isinf(nearest)) return above ? value.integer_above() : value.integer_below();
  const double next = std::nextafter(nearest, above ? kMost : -kMost);
  if (next == 0) return Decimal();
  const double least = std::pow(10.0, -kMostExponent);
  if (std::abs(next) >= least) return Decimal::of(next);
  // Towards the inside of the bound.
  if ((next > 0) != above) return Decimal();
  return above ? smallest() : -smallest();
}

// Adds numerals to an automaton.
class NumeralBuilder {
 public:
  explicit NumeralBuilder(Nfa& nfa) : nfa_(nfa) {}

  struct Range {
    Decimal least;                // not negative
    std::optional<Decimal> most;  // none: open
  };

  void add_digits(Nfa::State from, char first, char last, Nfa::State to) {
    if (first <= last) {
      nfa_.add_edge(from, static_cast<unsigned char>(first), static_cast<unsigned char>(last), to);
    }
  }
  Nfa::State add_byte(Nfa::State from, char byte) {
    return nfa_.add_bytes(from, std::string_view(&byte, 1));
  }

  // Numerals of a range without sign and exponent, of `most_digits` before the point.
  Nfa::State add_plain(Nfa::State from, const Range& range, bool with_fraction,
                       std::size_t most_digits = kUnbounded) {
    const std::string& low = range.least.whole();
    const std::string* const high = range.most ? &range.most->whole() : nullptr;
    const Nfa::State end = nfa_.add_state();
    Fractions fractions{range, end, {}, {}};
    // Digits so far, and how they compare with as many of `low` and of `high`.
    using At = std::tuple<std::size_t, int, int>;
    std::map<At, Nfa::State> states = {{At(0, 0, 0), from}};
    std::vector<At> pending = {At(0, 0, 0)};
    while (!pending.empty()) {
      const auto [count, below, above] = pending.back();
      const Nfa::State at = states.at(pending.back());
      pending.pop_back();
      if (count > 0) {
        const bool is_low = count == low.size() && below == 0;
        const bool is_high = high != nullptr && count == high->size() && above == 0;
        const bool is_enough = count > low.size() || (count == low.size() && below >= 0);
        const bool is_few =
            high == nullptr || count < high->size() || (count == high->size() && above <= 0);
        if (is_enough && is_few) {
          const bool is_tight = is_low && !range.least.fraction().empty();
          if (!is_tight) nfa_.add_empty(at, end);
          if (with_fraction) add_fraction(fractions, add_byte(at, '.'), {0, is_tight, is_high});
        }
      }
      if (count >= most_digits || (high != nullptr && count >= high->size())) continue;
      for (char digit = '0'; digit <= '9'; ++digit) {
        const auto compared = [&](int so_far, const std::string* bound) {
          if (so_far != 0 || bound == nullptr || count >= bound->size()) return so_far;
          return digit == (*bound)[count] ? 0 : digit < (*bound)[count] ? -1 : 1;
        };
        // Without an upper bound further digits are alike.
        At next(count + 1, compared(below, &low), compared(above, high));
        if (std::get<0>(next) > low.size()) {
          std::get<1>(next) = 0;
          if (high == nullptr && most_digits == kUnbounded) std::get<0>(next) = low.size() + 1;
        }
        if (count == 0 && digit == '0') {
          add_zero(at, range, with_fraction, fractions, end);
          continue;
        }
        const auto [found, fresh] = states.emplace(next, 0);
        if (fresh) {
          found->second = nfa_.add_state();
          pending.push_back(next);
        }
        add_digits(at, digit, digit, found->second);
      }
    }
    return end;
  }

  // A mantissa from 1 to below 10, and an exponent.
  Nfa::State add_scientific(Nfa::State from, const Range& range) {
    const Nfa::State end = nfa_.add_state();
    const int low = range.least.is_zero() ? -kMostExponent - 1 : range.least.exponent();
    const int high = range.most
                         ? range.most->is_zero() ? -kMostExponent - 1 : range.most->exponent()
                         : kMostExponent + 1;
    const auto add = [&](const Range& mantissa, int first, int last) {
      first = std::max(first, -kMostExponent);
      last = std::min(last, kMostExponent);
      if (first > last || (mantissa.most && *mantissa.most < mantissa.least)) return;
      const Nfa::State begin = nfa_.add_state();
      nfa_.add_empty(from, begin);
      const Nfa::State power = nfa_.add_state();
      const Nfa::State at = add_plain(begin, mantissa, true, 1);
      nfa_.add_edge(at, 'e', 'e', power);
      nfa_.add_edge(at, 'E', 'E', power);
      add_exponents(power, first, last, end);
    };
    if (low == high && range.most) {
      add({range.least.shifted(-low), range.most->shifted(-low)}, low, low);
      return end;
    }
    if (!range.least.is_zero()) add({range.least.shifted(-low), std::nullopt}, low, low);
    add({one(), std::nullopt}, low + 1, high - 1);
    if (range.most && !range.most->is_zero()) add({one(), range.most->shifted(-high)}, high, high);
    return end;
  }

  // Numerals whose mantissa is at least `least`, with any exponent.
  Nfa::State add_any(Nfa::State from, const Decimal& least) {
    const Nfa::State mantissa = add_plain(from, {least, std::nullopt}, true);
    const Nfa::State end = nfa_.add_state();
    nfa_.add_empty(mantissa, end);
    const Nfa::State power = nfa_.add_state(), sign = nfa_.add_state(), digits = nfa_.add_state();
    nfa_.add_edge(mantissa, 'e', 'e', power);
    nfa_.add_edge(mantissa, 'E', 'E', power);
    nfa_.add_edge(power, '+', '+', sign);
    nfa_.add_edge(power, '-', '-', sign);
    nfa_.add_empty(power, sign);
    add_digits(sign, '0', '9', digits);
    add_digits(digits, '0', '9', digits);
    nfa_.add_empty(digits, end);
    return end;
  }

 private:
  // Digits behind the point so far, and whether all digits so far are those of a bound.
  using Place = std::tuple<std::size_t, bool, bool>;
  struct Fractions {
    const Range& range;
    Nfa::State end;
    std::map<Place, Nfa::State> states;
    std::vector<Place> pending;
  };

  void add_zero(Nfa::State from, const Range& range, bool with_fraction, Fractions& fractions,
                Nfa::State end) {
    // Only bounds below 1 compare, for no digit follows.
    if (range.least.whole() != "0") return;
    const bool is_low = !range.least.fraction().empty();
    const bool is_high = range.most && range.most->whole() == "0";
    const Nfa::State zero = add_byte(from, '0');
    if (!is_low) nfa_.add_empty(zero, end);
    if (with_fraction) add_fraction(fractions, add_byte(zero, '.'), {0, is_low, is_high});
  }

  void add_fraction(Fractions& fractions, Nfa::State point, const Place& first) {
    const auto state_of = [&](const Place& place) {
      const auto [found, fresh] = fractions.states.emplace(place, 0);
      if (fresh) {
        found->second = nfa_.add_state();
        fractions.pending.push_back(place);
      }
      return found->second;
    };
    const auto add_steps = [&](Nfa::State at, const Place& place) {
      const auto [count, is_low, is_high] = place;
      const std::string& low = fractions.range.least.fraction();
      const std::string none, &high = is_high ? fractions.range.most->fraction() : none;
      const char first_digit = is_low ? low[count] : '0';
      const char last_digit = !is_high ? '9' : count < high.size() ? high[count] : '0';
      for (char digit = first_digit; digit <= last_digit; ++digit) {
        const bool stays_low = is_low && digit == low[count] && count + 1 < low.size();
        const bool stays_high = is_high && digit == last_digit;
        std::size_t next = count + 1;
        if (!stays_low) next = stays_high ? std::min(next, high.size()) : 0;
        add_digits(at, digit, digit, state_of({next, stays_low, stays_high}));
      }
    };
    // The point's own state: one digit has to follow.
    add_steps(point, first);
    while (!fractions.pending.empty()) {
      const Place place = fractions.pending.back();
      fractions.pending.pop_back();
      const Nfa::State at = fractions.states.at(place);
      if (!std::get<1>(place)) nfa_.add_empty(at, fractions.end);
      add_steps(at, place);
    }
  }

  // Integers from `first` to `last`, with a sign or without, and with zeros before their digits.
  void add_exponents(Nfa::State from, int first, int last, Nfa::State end) {
    const auto add = [&](Nfa::State at, int low, int high) {
      const Nfa::State zeros = nfa_.add_state();
      nfa_.add_empty(at, zeros);
      nfa_.add_edge(zeros, '0', '0', zeros);
      const auto decimal = [](int value) { return *Decimal::parse(std::to_string(value)); };
      nfa_.add_empty(add_plain(zeros, {decimal(low), decimal(high)}, false), end);
    };
    if (last >= 0) {
      const Nfa::State plus = add_byte(from, '+');
      nfa_.add_empty(from, plus);
      add(plus, std::max(first, 0), last);
    }
    if (first <= 0) add(add_byte(from, '-'), std::max(-last, 0), -first);
  }

  Nfa& nfa_;
};

// Numerals without exponent of multiples, of any sign.
Dfa multiples_dfa(const Decimal& multiple, std::size_t* work) {
  const std::optional<ScaledMultiple> read = scaled_multiple(multiple);
  if (!read) throw TooLarge("has too many digits");
  ScaledMultiple step = *read;
  std::size_t zeros = 0;  // at the end of each multiple
  while (step.places == 0 && step.units % 10 == 0) step.units /= 10, ++zeros;
  if (step.units * (step.places + 1) > kMaxDfaStates) throw TooLarge("needs more than 4096 states");

  Nfa nfa;
  const Nfa::State start = nfa.add_state(), end = nfa.add_state();
  const Nfa::State unsigned_start = nfa.add_state();
  nfa.add_empty(start, unsigned_start);
  nfa.add_empty(nfa.add_bytes(start, "-"), unsigned_start);
  const auto add_digit = [&](Nfa::State from, Units digit, Nfa::State to) {
    const auto byte = static_cast<unsigned char>('0' + digit);
    nfa.add_edge(from, byte, byte, to);
  };
  // Zeros behind the point add nothing.
  const Nfa::State whole_end = nfa.add_state(), last = nfa.add_state();
  nfa.add_empty(whole_end, end);
  add_digit(nfa.add_bytes(whole_end, "."), 0, last);
  add_digit(last, 0, last);
  nfa.add_empty(last, end);

  // A state for each rest of the digits so far, for each number of digits behind the point.
  std::vector<std::vector<Nfa::State>> rests;
  for (std::size_t place = 0; place <= step.places; ++place) {
    std::vector<Nfa::State>& states = rests.emplace_back();
    for (Units rest = 0; rest < step.units; ++rest) states.push_back(nfa.add_state());
  }
  const Nfa::State zero = nfa.add_bytes(unsigned_start, "0");
  const auto add_steps = [&](Nfa::State from, Units rest, const std::vector<Nfa::State>& to,
                             Units first) {
    for (Units digit = first; digit < 10; ++digit) {
      add_digit(from, digit, to[(rest * 10 + digit) % step.units]);
    }
  };
  add_steps(unsigned_start, 0, rests[0], 1);
  for (Units rest = 0; rest < step.units; ++rest) {
    add_steps(rests[0][rest], rest, rests[0], 0);
    Units scaled = rest;
    for (std::size_t place = step.places; place > 0; --place) {
      const Nfa::State at = rests[place][rest];
      if (place == step.places) {
        if (rest == 0) nfa.add_empty(at, last);
      } else {
        add_steps(at, rest, rests[place + 1], 0);
      }
      // Missing digits count as zeros.
      if (scaled == 0) nfa.add_empty(at, end);
      scaled = scaled * 10 % step.units;
    }
    if (step.places > 0) {
      const Nfa::State point = nfa.add_bytes(rests[0][rest], ".");
      add_steps(point, rest, rests[1], 0);
      if (scaled == 0) nfa.add_empty(rests[0][rest], whole_end);
    }
  }
  if (step.places > 0) add_steps(nfa.add_bytes(zero, "."), 0, rests[1], 0);
  nfa.add_empty(zero, whole_end);
  if (step.places == 0) {
    Nfa::State at = rests[0][0];
    for (std::size_t i = 0; i < zeros; ++i) at = nfa.add_bytes(at, "0");
    nfa.add_empty(at, whole_end);
  }
  return nfa.determinize(start, end, work);
}

// Numerals with a digit other than 0 behind the point, and so few digits that no double of theirs
// is an integer. Zeros before the first other digit do not count.
Dfa fractions_dfa(std::size_t* work) {
  constexpr std::size_t kMostDigits = std::numeric_limits<double>::digits10;
  Nfa nfa;
  NumeralBuilder builder(nfa);
  const Nfa::State start = nfa.add_state(), end = nfa.add_state();
  const Nfa::State digits = nfa.add_state();
  nfa.add_empty(start, digits);
  nfa.add_empty(nfa.add_bytes(start, "-"), digits);
  // States after so many digits: before the point, after it with zeros alone, and with others.
  std::vector<Nfa::State> whole, zeros, others;
  for (std::size_t count = 0; count <= kMostDigits; ++count) {
    for (auto* const states : {&whole, &zeros, &others}) states->push_back(nfa.add_state());
    nfa.add_empty(others[count], end);
  }
  builder.add_digits(digits, '1', '9', whole[1]);
  nfa.add_empty(nfa.add_bytes(digits, "0."), zeros[0]);
  builder.add_digits(zeros[0], '0', '0', zeros[0]);
  builder.add_digits(zeros[0], '1', '9', others[1]);
  for (std::size_t count = 1; count < kMostDigits; ++count) {
    builder.add_digits(whole[count], '0', '9', whole[count + 1]);
    nfa.add_empty(nfa.add_bytes(whole[count], "."), zeros[count]);
    builder.add_digits(zeros[count], '0', '0', zeros[count + 1]);
    builder.add_digits(zeros[count], '1', '9', others[count + 1]);
    builder.add_digits(others[count], '0', '9', others[count + 1]);
  }
  return nfa.determinize(start, end, work);
}

// Numerals without their sign. `has_any_exponent`: the numbers are bounded by their sign alone.
void add_unsigned(Nfa& nfa, Nfa::State from, const NumeralBuilder::Range& range, Numerals numerals,
                  bool with_exponents, bool has_any_exponent, Nfa::State end) {
  if (range.most && *range.most < range.least) return;
  NumeralBuilder builder(nfa);
  NumeralBuilder::Range plain = range;
  if (plain.least == smallest()) plain.least = one().shifted(-kMostSmallDigits);
  if (with_exponents && has_any_exponent) {
    nfa.add_empty(builder.add_any(from, plain.least), end);
    return;
  }
  if (!plain.most || plain.least <= *plain.most) {
    nfa.add_empty(builder.add_plain(from, plain, numerals != Numerals::kIntegers), end);
  }
  if (with_exponents) nfa.add_empty(builder.add_scientific(from, range), end);
}

Dfa bounded_dfa(const NumberBounds& bounds, Numerals numerals, bool with_exponents,
                std::size_t* work) {
  const bool has_integers = numerals == Numerals::kIntegers;
  std::optional<Decimal> least, most;  // none open
  if (bounds.least) {
    const auto& [value, is_open] = *bounds.least;
    least = has_integers ? (is_open ? value.integer_above() : value.ceiling())
            : is_open    ? next_to(value, true)
                         : value;
  }
  if (bounds.most) {
    const auto& [value, is_open] = *bounds.most;
    most = has_integers ? (is_open ? value.integer_below() : value.floor())
           : is_open    ? next_to(value, false)
                        : value;
  }
  Nfa nfa;
  const Nfa::State start = nfa.add_state(), end = nfa.add_state();
  const Decimal zero;
  if (!most || *most >= zero) {
    const NumeralBuilder::Range range{least ? std::max(*least, zero) : zero, most};
    add_unsigned(nfa, start, range, numerals, with_exponents, range.least.is_zero() && !most, end);
  }
  if (!least || *least < zero) {
    // -0 is not written.
    const bool reaches_zero = !most || *most >= zero;
    NumeralBuilder::Range range{reaches_zero ? has_integers ? one() : smallest() : -*most, {}};
    if (least) range.most = -*least;
    add_unsigned(nfa, nfa.add_bytes(start, "-"), range, numerals, with_exponents,
                 reaches_zero && !least, end);
  }
  return nfa.determinize(start, end, work);
}

}  // namespace

bool NumberBounds::holds(const Decimal& value) const {
  if (least && (value < least->value || (least->is_open && value == least->value))) return false;
  if (most && (value > most->value || (most->is_open && value == most->value))) return false;
  return !multiple_of || is_multiple(value, *multiple_of);
}

bool NumberBounds::excludes(const NumberBounds& other) const {
  const auto is_above = [](const std::optional<NumberBound>& low,
                           const std::optional<NumberBound>& high) {
    if (!low || !high) return false;
    return low->value > high->value ||
           (low->value == high->value && (low->is_open || high->is_open));
  };
  return is_above(least, other.most) || is_above(other.least, most);
}

void NumberBounds::add_least(const Decimal& value, bool is_open) {
  if (!least || value > least->value || (value == least->value && is_open)) {
    least = NumberBound{value, is_open};
  }
}

void NumberBounds::add_most(const Decimal& value, bool is_open) {
  if (!most || value < most->value || (value == most->value && is_open)) {
    most = NumberBound{value, is_open};
  }
}

bool NumberBounds::add_multiple_of(const Decimal& value) {
  const std::optional<ScaledMultiple> step = scaled_multiple(value);
  if (!step) return false;
  if (!multiple_of) {
    multiple_of = value;
    return true;
  }
  const ScaledMultiple before = *scaled_multiple(*multiple_of);
  const std::size_t places = std::max(step->places, before.places);
  const auto scaled = [&](const ScaledMultiple& of) -> std::optional<Units> {
    return units_of(std::to_string(of.units) + std::string(places - of.places, '0'));
  };
  const std::optional<Units> mine = scaled(before), theirs = scaled(*step);
  if (!mine || !theirs) return false;
  const unsigned __int128 common =
      static_cast<unsigned __int128>(*mine / std::gcd(*mine, *theirs)) * *theirs;
  if (common >= static_cast<unsigned __int128>(std::numeric_limits<std::int64_t>::max())) {
    return false;
  }
  const Decimal units = *Decimal::parse(std::to_string(static_cast<Units>(common)));
  if (units.whole().size() > kMostMultipleDigits) return false;
  multiple_of = units.shifted(-static_cast<int>(places));
  return true;
}

Dfa number_dfa(const NumberBounds& bounds, Numerals numerals, std::size_t* work) {
  const bool with_exponents = numerals == Numerals::kAll && !bounds.multiple_of;
  Dfa dfa = bounded_dfa(bounds, numerals, with_exponents, work);
  if (bounds.multiple_of) dfa = intersection(dfa, multiples_dfa(*bounds.multiple_of, work), work);
  if (numerals == Numerals::kFractions) dfa = intersection(dfa, fractions_dfa(work), work);
  return dfa;
}

}  // namespace lintel::grammar
