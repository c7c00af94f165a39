#include "bench/table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace lintel::bench {
namespace {

// Commas between thousands of the whole part.
std::string with_commas(const std::string& number) {
  const std::size_t begin = number.starts_with('-') ? 1 : 0;
  const std::size_t end = std::min(number.find('.'), number.size());
  std::string text;
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (i > begin && i < end && (end - i) % 3 == 0) text += ',';
    text += number[i];
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '|') safe += '\\';
    safe += c;
  }
  return safe;
}

}  // namespace

std::string format_number(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  if (value == 0) return "0";
  const auto magnitude_of = [](double x) {
    return static_cast<int>(std::floor(std::log10(std::abs(x)))) + 1;
  };
  // 12,345 with three digits: 12,300. And 9.996: 10.0, which has a digit more before the point.
  const double unit = std::pow(10.0, magnitude_of(value) - digits);
  const double rounded = std::round(value / unit) * unit;
  const int magnitude = magnitude_of(rounded * (1 + 1e-12));
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", std::clamp(digits - magnitude, 0, 12), rounded);
  return with_commas(text);
}

Cell Cell::text(std::string words) {
  Cell cell;
  cell.words_ = std::move(words);
  return cell;
}

Cell Cell::number(double value, int digits) {
  Cell cell;
  cell.value_ = value;
  cell.digits_ = digits;
  return cell;
}

Cell Cell::count(std::int64_t value) {
  Cell cell = number(static_cast<double>(value));
  cell.is_count_ = true;
  return cell;
}

Cell Cell::measured(const Summary& summary, int digits) {
  Cell cell = number(summary.median, digits);
  cell.summary_ = summary;
  return cell;
}

Cell Cell::none() { return {}; }

std::string Cell::to_text() const {
  if (!words_.empty()) return words_;
  if (!value_) return "-";
  if (is_count_) return with_commas(std::to_string(std::llround(*value_)));
  const std::string median = format_number(*value_, digits_);
  if (!summary_ || summary_->count < 2) return median;
  return median + " (" + format_number(summary_->least, digits_) + " to " +
         format_number(summary_->most, digits_) + ")";
}

std::string to_markdown(const Table& table) {
  std::string text = "### " + table.title + "\n\n|";
  std::string rule = "|";
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    text += " " + escaped(table.columns[i]) + " |";
    const bool numbers = i > 0 && std::ranges::any_of(table.rows, [i](const auto& row) {
                           return row[i].value().has_value();
                         });
    rule += numbers ? "---:|" : "---|";
  }
  text += "\n" + rule + "\n";
  for (const std::vector<Cell>& row : table.rows) {
    assert(row.size() == table.columns.size());
    text += "|";
    for (const Cell& cell : row) text += " " + escaped(cell.to_text()) + " |";
    text += "\n";
  }
  for (const std::string& note : table.notes) text += "\n" + note + "\n";
  return text;
}

}  // namespace lintel::bench
