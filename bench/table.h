// Table: the one kind of result. Printed as Markdown, JSON and CSV.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/statistics.h"

namespace lintel::bench {

// What one cell says.
class Cell {
 public:
  static Cell text(std::string words);
  static Cell number(double value, int digits = 3);  // significant digits
  static Cell count(std::int64_t value);             // a whole number, exactly
  static Cell measured(const Summary& summary, int digits = 3);
  static Cell none();  // nothing was measured

  // "20.1 (19.8 to 20.5)", "68,608", "-"
  std::string to_text() const;

  const std::string& words() const { return words_; }            // empty but for text()
  const std::optional<double>& value() const { return value_; }  // a number, or the median
  const std::optional<Summary>& summary() const { return summary_; }
  bool is_count() const { return is_count_; }

 private:
  std::string words_;
  std::optional<double> value_;
  std::optional<Summary> summary_;
  int digits_ = 3;
  bool is_count_ = false;
};

// `value` with so many significant digits and no exponent: 0.0123, 123, 45,700.
std::string format_number(double value, int digits);

// Columns are named with their unit. The first column names the rows.
struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
  std::vector<std::string> notes;  // a sentence each: what was assumed, skipped or integrated
  bool measured_here = true;       // else figures of others: neither dated nor compared
};

// One table in Markdown, numbers to the right.
std::string to_markdown(const Table& table);

}  // namespace lintel::bench
