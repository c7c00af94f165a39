#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "client/cli/console.h"

namespace lintel::bench {
namespace {

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
  Table result{
      .title = table.title + ": " + what, .columns = table.columns, .rows = {}, .notes = {}};
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

std::string to_markdown(const Report& report) {
  const Run& run = report.run;
  std::string text;
  for (const Table& table : report.tables) {
    if (!text.empty()) text += "\n";
    text += to_markdown(table);
    if (!table.measured_here) continue;
    text += "\n*" + run.date + " UTC, run " + run.id + ": " + to_string(run.machine) + "; " +
            run.model + "; weights " + run.weight_type + ", workers " +
            std::to_string(run.workers) + ", batch " + run.batch + ", repeats " +
            std::to_string(run.repeats) + ": medians (least to most).*\n";
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
  if (!report.figures.empty()) {
    json["weight_type"] = run.weight_type;
    json["workers"] = run.workers;
  }
  for (const Figure& figure : report.figures) {
    const bool whole = figure.value == std::floor(figure.value) && std::abs(figure.value) < 1e15;
    json[figure.name] = whole ? Json(static_cast<std::int64_t>(figure.value)) : Json(figure.value);
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
                          .repeats = run.at("repeats")},
                  .tables = {},
                  .figures = {}};
    for (const Json& from : json.at("tables")) {
      Table table{
          .title = from.at("title"), .columns = from.at("columns"), .rows = {}, .notes = {}};
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
