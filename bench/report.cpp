// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "client/cli/console.h"
#include "model/ops/dense.h"

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

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// "key : value" lines of the first processor.
std::map<std::string, std::string> cpu_facts() {
  std::map<std::string, std::string> facts;
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    facts[trimmed(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
  }
  return facts;
}

std::string cpu_name() {
  auto facts = cpu_facts();
  const std::string name = facts["model name"];
  if (name.empty()) return "unknown processor";
  // Virtual machines often hide the model behind a bare brand.
  return name + " (family " + facts["cpu family"] + ", model " + facts["model"] + ")";
}

// From the kernel: what the C library computes from CPUID may be the host's.
std::uint64_t l3_bytes() {
  std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::uint64_t kib = 0;
  char unit = 0;
  if (!(in >> kib >> unit) || unit != 'K') return 0;
  return kib << 10;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The mode of transparent huge pages stands in brackets: "always [madvise] never".
std::string page_sizes() {
  std::string text = std::to_string(sysconf(_SC_PAGE_SIZE) >> 10) + " KiB pages";
  const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t open = modes.find('['), close = modes.find(']');
  if (open == std::string::npos || close == std::string::npos) return text;
  const std::string bytes = first_line("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  text += ", huge pages";
  if (!bytes.empty()) text += " (" + std::to_string(std::stoull(bytes) >> 20) + " MiB)";
  const std::string mode = modes.substr(open + 1, close - open - 1);
  return text + (mode == "madvise" ? " on madvise" : " " + mode);
}

int allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string build_name() {
  std::string name = LINTEL_BUILD_TYPE;
#ifndef NDEBUG
  name += ", with assertions";
#endif
  return name;
}

using Json = nlohmann::ordered_json;

// The facts of a run in the order they are printed.
std::vector<std::pair<std::string, std::string>> facts_of(const Run& run) {
  return {{"run", run.id},
          {"command", run.command},
          {"date", run.date},
          {"machine", to_string(run.machine)},
          {"model", run.model},
          {"weight_type", run.weight_type},
          {"workers", std::to_string(run.workers)},
          {"batch", run.batch},
          {"repeats", std::to_string(run.repeats)}};
}

Json json_of(const Cell& cell) {
  Json json = Json::object();
  if (!cell.words().empty()) json["text"] = cell.words();
  if (cell.value() && std::isfinite(*cell.value())) {
    if (cell.is_count()) {
      json["value"] = std::llround(*cell.value());
    } else {
      json["value"] = *cell.value();
    }
  }
  if (const auto& summary = cell.summary()) {
    json["least"] = summary->least;
    json["most"] = summary->most;
    json["count"] = summary->count;
  }
  return json;
}

Cell cell_of(const Json& json) {
  if (json.contains("text")) return Cell::text(json["text"]);
  if (json.contains("count")) {
    return Cell::measured({json["value"], json["least"], json["most"], json["count"]});
  }
  if (!json.contains("value")) return Cell::none();
  return json["value"].is_number_integer() ? Cell::count(json["value"].get<std::int64_t>())
                                           : Cell::number(json["value"]);
}

Json json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"instructions", machine.instructions},
          {"l3_bytes", machine.l3_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"pages", machine.pages},
          {"compiler", machine.compiler},
          {"build", machine.build}};
}

Machine machine_of(const Json& json) {
  return {.cpu = json.at("cpu"),
          .cores = json.at("cores"),
          .instructions = json.at("instructions"),
          .l3_bytes = json.at("l3_bytes"),
          .memory_bytes = json.at("memory_bytes"),
          .pages = json.at("pages"),
          .compiler = json.at("compiler"),
          .build = json.at("build")};
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(double value) { return Json(value).dump(); }

const Table* find_table(const Report& report, const std::string& title) {
  const auto found = std::ranges::find(report.tables, title, &Table::title);
  return found == report.tables.end() ? nullptr : &*found;
}

// The first row of this name.
const std::vector<Cell>* find_row(const Table& table, const std::string& name) {
  for (const auto& row : table.rows) {
    if (row.front().to_text() == name) return &row;
  }
  return nullptr;
}

Table ratio_table(const Table& table, const Table& other, const std::string& what) {
  Table result{.title = table.title + ": " + what, .columns = table.columns};
  for (const auto& row : table.rows) {
    const std::vector<Cell>* const base = find_row(other, row.front().to_text());
    if (base == nullptr) continue;
    std::vector<Cell> cells = {row.front()};
    for (std::size_t i = 1; i < row.size(); ++i) {
      const bool both = row[i].value() && (*base)[i].value() && *(*base)[i].value() != 0;
      cells.push_back(both ? Cell::number(*row[i].value() / *(*base)[i].value()) : Cell::none());
    }
    result.rows.push_back(std::move(cells));
  }
  return result;
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

Machine this_machine() {
  return {.cpu = cpu_name(),
          .cores = allowed_cores(),
          .instructions = dense_kernels_description(),
          .l3_bytes = l3_bytes(),
          .memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE)),
          .pages = page_sizes(),
          .compiler = compiler_name(),
          .build = build_name()};
}

std::string to_string(const Machine& machine) {
  const auto in = [](std::uint64_t bytes, int shift) {
    return std::to_string(std::lround(static_cast<double>(bytes) / std::pow(2.0, shift)));
  };
  std::string text = machine.cpu + ", " + std::to_string(machine.cores) +
                     (machine.cores == 1 ? " core" : " cores") + ", " + machine.instructions;
  if (machine.l3_bytes > 0) text += ", " + in(machine.l3_bytes, 20) + " MiB L3";
  text += ", " + in(machine.memory_bytes, 30) + " GiB memory, " + machine.pages + ", " +
          machine.compiler + ", " + machine.build;
  return text;
}

std::string date_and_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &utc);
  return text;
}

std::string to_markdown(const Report& report) {
  const Run& run = report.run;
  std::string text;
  for (const Table& table : report.tables) {
    if (!text.empty()) text += "\n";
    text += to_markdown(table);
    if (!table.measured_here) continue;
    text +=
        "\n*" + run.date + " UTC, run " + run.id + ": " + to_string(run.machine) + "; " + run.model;
    if (run.repeats > 0) {
      text += "; weights " + run.weight_type + ", workers " + std::to_string(run.workers) +
              ", batch " + run.batch + ", repeats " + std::to_string(run.repeats) +
              ": medians (least to most)";
    }
    text += ".*\n";
  }
  return text;
}

std::string to_json(const Report& report) {
  const Run& run = report.run;
  Json json;
  json["run"] = {{"id", run.id},           {"command", run.command},
                 {"date", run.date},       {"machine", json_of(run.machine)},
                 {"model", run.model},     {"weight_type", run.weight_type},
                 {"workers", run.workers}, {"batch", run.batch},
                 {"repeats", run.repeats}};
  if (!report.figures.empty() && run.repeats > 0) {
    json["weight_type"] = run.weight_type;
    json["workers"] = run.workers;
  }
  for (const Figure& figure : report.figures) {
    const bool whole = figure.value == std::floor(figure.value) && std::abs(figure.value) < 1e15;
    // "a.b" is b of a.
    const std::size_t dot = figure.name.find('.');
    Json& value = dot == std::string::npos
                      ? json[figure.name]
                      : json[figure.name.substr(0, dot)][figure.name.substr(dot + 1)];
    value = whole ? Json(static_cast<std::int64_t>(figure.value)) : Json(figure.value);
  }
  json["tables"] = Json::array();
  for (const Table& table : report.tables) {
    Json rows = Json::array();
    for (const auto& row : table.rows) {
      Json cells = Json::array();
      for (const Cell& cell : row) cells.push_back(json_of(cell));
      rows.push_back(std::move(cells));
    }
    json["tables"].push_back({{"title", table.title},
                              {"columns", table.columns},
                              {"rows", std::move(rows)},
                              {"notes", table.notes},
                              {"measured_here", table.measured_here}});
  }
  return json.dump(1) + "\n";
}

std::string to_csv(const Report& report) {
  const auto facts = facts_of(report.run);
  std::string text;
  for (const auto& [name, value] : facts) text += name + ",";
  text += "table,row,column,value,least,most,count\n";
  for (const Table& table : report.tables) {
    if (!table.measured_here) continue;
    for (const auto& row : table.rows) {
      for (std::size_t i = 1; i < row.size(); ++i) {
        if (!row[i].value()) continue;
        for (const auto& [name, value] : facts) text += csv_field(value) + ",";
        text += csv_field(table.title) + "," + csv_field(row.front().to_text()) + "," +
                csv_field(table.columns[i]) + "," + csv_number(*row[i].value());
        const auto& summary = row[i].summary();
        text += summary ? "," + csv_number(summary->least) + "," + csv_number(summary->most) + "," +
                              std::to_string(summary->count)
                        : ",,,";
        text += "\n";
      }
    }
  }
  return text;
}

Report parse_report(std::string_view text, const std::string& file) {
  try {
    const Json json = Json::parse(text);
    const Json& run = json.at("run");
    Report report{.run = {.id = run.at("id"),
                          .command = run.at("command"),
                          .date = run.at("date"),
                          .machine = machine_of(run.at("machine")),
                          .model = run.at("model"),
                          .weight_type = run.at("weight_type"),
                          .workers = run.at("workers"),
                          .batch = run.at("batch"),
                          .repeats = run.at("repeats")}};
    for (const Json& from : json.at("tables")) {
      Table table{.title = from.at("title"), .columns = from.at("columns")};
      for (const Json& note : from.at("notes")) table.notes.push_back(note);
      table.measured_here = from.at("measured_here");
      for (const Json& row : from.at("rows")) {
        std::vector<Cell> cells;
        for (const Json& cell : row) cells.push_back(cell_of(cell));
        if (cells.size() != table.columns.size()) {
          throw cli::Failure(file + ": a row of '" + table.title + "' has " +
                             std::to_string(cells.size()) + " cells for " +
                             std::to_string(table.columns.size()) + " columns");
        }
        table.rows.push_back(std::move(cells));
      }
      report.tables.push_back(std::move(table));
    }
    return report;
  } catch (const nlohmann::json::exception& error) {
    throw cli::Failure(file + ": not what --json writes: " + error.what());
  }
}

Report read_report(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw cli::Failure(file.string() + ": cannot be read");
  return parse_report(text.str(), file.string());
}

void require_same_run(const Run& run, const Run& other, const std::string& file) {
  std::string differences;
  const auto compare = [&differences](const std::string& what, const std::string& here,
                                      const std::string& there) {
    if (here != there) differences += "\n  " + what + ": " + here + " here, " + there + " there";
  };
  compare("run", run.id, other.id);
  compare("machine", to_string(run.machine), to_string(other.machine));
  compare("command", run.command, other.command);
  compare("workers", std::to_string(run.workers), std::to_string(other.workers));
  compare("batch", run.batch, other.batch);
  if (differences.empty()) return;
  throw cli::UsageError("--against " + file +
                        ": numbers of different runs are not compared:" + differences +
                        "\nMeasure both one after the other, with the same --run NAME.");
}

std::vector<Table> ratios(const Report& report, const Report& other) {
  std::string what = "ratio to";
  if (report.run.weight_type != other.run.weight_type) what += " " + other.run.weight_type;
  if (report.run.model != other.run.model) what += " " + other.run.model;
  if (what == "ratio to") what += " the one before";
  std::vector<Table> tables;
  for (const Table& table : report.tables) {
    const Table* const base = find_table(other, table.title);
    if (table.measured_here && base != nullptr && base->columns == table.columns) {
      tables.push_back(ratio_table(table, *base, what));
    }
  }
  if (tables.empty())
    throw cli::UsageError("--against: no table of the other report is like one here");
  return tables;
}

}  // namespace lintel::bench
