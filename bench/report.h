// SPDX-License-Identifier: Apache-2.0
// Report: the tables of one run, and what they were measured under.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure.h"

namespace lintel::bench {

// Table: the one kind of result. Printed as Markdown, JSON and CSV.

// The content of one cell.
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

// The machine and the program that measured: without them a number says nothing.

struct Machine {
  std::string cpu;             // model name
  int cores = 0;               // processors this process may run on
  std::string instructions;    // of the matrix products, e.g. "f32 highway (AVX3), ..."
  std::uint64_t l3_bytes = 0;  // 0: not known
  std::uint64_t memory_bytes = 0;
  std::string pages;  // "4 KiB pages, huge pages (2 MiB) on madvise"
  std::string compiler;
  std::string build;  // "Release"; assertions and lower optimisation are said

  bool operator==(const Machine&) const = default;
};

Machine this_machine();

// "AMD EPYC (family 26, model 2), 2 cores, ..."
std::string to_string(const Machine& machine);

std::string date_and_time();  // UTC, "2026-11-21 11:38"

// Properties common to all tables of a run.
struct Run {
  std::string id;       // of measurements made one after the other on one machine
  std::string command;  // "paper"
  std::string date;     // UTC
  Machine machine;
  std::string model;        // in words; names weights that are random
  std::string weight_type;  // "f32"
  int workers = 0;          // threads
  std::string batch;        // sequences that a worker steps together
  int repeats = 0;          // 0: neither these nor the three above apply
};

// A number by its name, for programs that want no tables.
struct Figure {
  std::string name;
  double value = 0;
};

struct Report {
  Run run;
  std::vector<Table> tables;
  std::vector<Figure> figures;  // written as JSON only
};

// Every table followed by what it was measured under.
std::string to_markdown(const Report& report);
// {"run": {...}, "weight_type", "workers", a key for each figure, "tables": [{"title", "columns",
// "rows": [[cell]], "notes"}]}; a cell is
// {"text"} or {"value"} or {"value", "least", "most", "count"}, empty where nothing was measured.
std::string to_json(const Report& report);
// A line a number: run, what it was measured under, table, row, column, value, least, most, count.
std::string to_csv(const Report& report);

// Parses the output of to_json. Throws cli::Failure naming `file`.
Report parse_report(std::string_view json, const std::string& file);
Report read_report(const std::filesystem::path& file);

// Throws cli::UsageError, saying what differs, unless both are of one run: the same id, machine,
// program, command, workers and batch. Numbers of different runs differ by who else used the
// machine as well, and are not compared.
void require_same_run(const Run& run, const Run& other, const std::string& file);

// For each table that both have, each number divided by that of `other` in the row and column of
// the same name. REQUIRES: require_same_run passes. Throws cli::UsageError when nothing matches.
std::vector<Table> ratios(const Report& report, const Report& other);

}  // namespace lintel::bench
