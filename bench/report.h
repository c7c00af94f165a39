// Report: the tables of one run, and what they were measured under.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/machine.h"
#include "bench/table.h"

namespace lintel::bench {

// What all tables of a run have in common.
struct Run {
  std::string id;       // of measurements made one after the other on one machine
  std::string command;  // "paper"
  std::string date;     // UTC
  Machine machine;
  std::string model;        // in words; names weights that are random
  std::string weight_type;  // "f32"
  int workers = 0;          // threads
  std::string batch;        // sequences that a worker steps together
  int repeats = 0;
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

// What to_json wrote. Throws cli::Failure naming `file`.
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
