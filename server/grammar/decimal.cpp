// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/decimal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <system_error>
#include <utility>

namespace lintel::grammar {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::strong_ordering compare_magnitudes(const Decimal& one, const Decimal& other) {
  if (one.whole().size() != other.whole().size()) {
    return one.whole().size() <=> other.whole().size();
  }
  if (one.whole() != other.whole()) return one.whole() <=> other.whole();
  return one.fraction() <=> other.fraction();
}

}  // namespace

Decimal::Decimal(bool negative, std::string whole, std::string fraction) {
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  whole_ = whole.empty() ? "0" : std::move(whole);
  fraction_ = std::move(fraction);
  negative_ = negative && !is_zero();
}

std::optional<Decimal> Decimal::parse(std::string_view text) {
  std::size_t at = 0;
  const auto take_digits = [&] {
    const std::size_t begin = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return std::string(text.substr(begin, at - begin));
  };
  const bool negative = text.starts_with('-');
  if (negative) ++at;
  const std::string_view rest = text.substr(at);
  if (!rest.empty() && rest[0] != '0' && rest.size() <= kMaxDecimalDigits &&
      std::ranges::all_of(rest, is_digit)) {
    Decimal integer;
    integer.negative_ = negative;
    integer.whole_ = rest;
    return integer;
  }
  std::string digits = take_digits();
  if (digits.empty()) return std::nullopt;
  auto point = static_cast<std::int64_t>(digits.size());
  if (at < text.size() && text[at] == '.') {
    ++at;
    const std::string more = take_digits();
    if (more.empty()) return std::nullopt;
    digits += more;
  }
  std::int64_t exponent = 0;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    const bool is_below = at < text.size() && text[at] == '-';
    if (is_below || (at < text.size() && text[at] == '+')) ++at;
    const std::string power = take_digits();
    if (power.empty()) return std::nullopt;
    constexpr std::int64_t kMost = 1'000'000;
    for (const char c : power) exponent = std::min(exponent * 10 + (c - '0'), kMost);
    if (is_below) exponent = -exponent;
  }
  if (at != text.size()) return std::nullopt;

  const std::size_t zeros = digits.find_first_not_of('0');
  if (zeros == std::string::npos) return Decimal();
  digits.erase(digits.find_last_not_of('0') + 1);
  digits.erase(0, zeros);
  point += exponent - static_cast<std::int64_t>(zeros);
  const auto size = static_cast<std::int64_t>(digits.size());
  constexpr auto kMost = static_cast<std::int64_t>(kMaxDecimalDigits);
  if (point > kMost || size - point > kMost) return std::nullopt;
  const auto padding = [](std::int64_t count) {
    return std::string(static_cast<std::size_t>(count), '0');
  };
  if (point <= 0) return Decimal(negative, "", padding(-point) + digits);
  if (point >= size) return Decimal(negative, digits + padding(point - size), "");
  const auto cut = static_cast<std::size_t>(point);
  return Decimal(negative, digits.substr(0, cut), digits.substr(cut));
}

Decimal Decimal::of(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return parse(std::string_view(text.data(), end)).value_or(Decimal());
}

Decimal Decimal::magnitude() const { return {false, whole_, fraction_}; }
Decimal Decimal::operator-() const { return {!negative_, whole_, fraction_}; }

Decimal Decimal::integer_above() const {
  const Decimal cut(negative_, whole_, "");
  if (negative_ && !is_integer()) return cut;
  // Adds 1, to a negative number by taking 1 from its digits.
  const char last = negative_ ? '0' : '9', first = negative_ ? '9' : '0';
  std::string digits = "0" + whole_;
  std::size_t at = digits.size() - 1;
  while (digits[at] == last) digits[at--] = first;
  digits[at] = static_cast<char>(digits[at] + (negative_ ? -1 : 1));
  return {negative_, std::move(digits), ""};
}

Decimal Decimal::integer_below() const { return -(-*this).integer_above(); }
Decimal Decimal::ceiling() const { return is_integer() ? *this : integer_above(); }
Decimal Decimal::floor() const { return is_integer() ? *this : integer_below(); }

Decimal Decimal::shifted(int shift) const {
  std::string whole = whole_, fraction = fraction_;
  for (; shift > 0; --shift) {
    whole += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; shift < 0; ++shift) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  return {negative_, std::move(whole), std::move(fraction)};
}

int Decimal::exponent() const {
  if (whole_ != "0") return static_cast<int>(whole_.size()) - 1;
  return -static_cast<int>(fraction_.find_first_not_of('0')) - 1;
}

double Decimal::nearest_double() const {
  const std::string digits = text();
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ec == std::errc() || whole_ == "0") return value;
  const double most = std::numeric_limits<double>::infinity();
  return negative_ ? -most : most;
}

std::string Decimal::text() const {
  std::string digits = negative_ ? "-" : "";
  digits += whole_;
  if (!fraction_.empty()) (digits += '.') += fraction_;
  return digits;
}

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (negative_ != other.negative_) return other.negative_ <=> negative_;
  return negative_ ? compare_magnitudes(other, *this) : compare_magnitudes(*this, other);
}

}  // namespace lintel::grammar
