#include "bench/run_flags.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "describe/flags.h"

namespace lintel::bench {
namespace {

WeightType parse_weight_type(std::string_view flag, std::string_view text) {
  if (const auto type = weight_type_named(text)) return *type;
  throw cli::UsageError(std::string(flag) + " '" + std::string(text) +
                        "': expected f32, bf16 or int8");
}

std::string drawn_run_id() {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", std::random_device()());
  return text;
}

void write(const std::string& file, const std::string& text, cli::Console& console) {
  if (file == "-") return console.out(text);
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  if (!out) throw cli::Failure(file + ": cannot be written: " + std::strerror(errno));
}

}  // namespace

std::string to_string(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

std::vector<int> parse_counts(std::string_view flag, std::string_view text) {
  std::vector<int> counts = cli::parse_ids(flag, text);
  std::ranges::sort(counts);
  if (counts.empty() || counts.front() < 1) {
    throw cli::UsageError(std::string(flag) + " '" + std::string(text) +
                          "': expected numbers of at least 1, e.g. 16,64");
  }
  return counts;
}

int parse_count(std::string_view flag, std::string_view text, int least) {
  const int count = cli::parse_int32(flag, text);
  if (count < least) {
    throw cli::UsageError(std::string(flag) + " '" + std::string(text) + "': expected " +
                          std::to_string(least) + " or more");
  }
  return count;
}

void RunFlags::add_to(CLI::App& app, std::vector<int> default_batch, const std::string& batch_help,
                      bool with_workers) {
  batch = std::move(default_batch);
  workers = this_machine().cores;
  const auto count = [](std::string_view flag, std::string_view text) {
    return parse_count(flag, text);
  };
  cli::add_parsed(
      app, "--repeats", repeats, count, "N",
      "Measurements of which median, least and most are told [" + std::to_string(repeats) + "]")
      ->group("Measuring");
  if (with_workers) {
    cli::add_parsed(
        app, "--workers", workers, count, "N",
        "Threads, each with sequences of its own [" + std::to_string(workers) + ", the cores]")
        ->group("Measuring");
  }
  if (!batch_help.empty()) {
    cli::add_parsed(app, "--batch", batch, parse_counts, "N[,N...]",
                    batch_help + " [" + to_string(batch) + "]")
        ->group("Measuring");
  }
  cli::add_parsed(app, "--weight-type", weight_type, parse_weight_type, "TYPE",
                  "What the matrices are computed in: f32, bf16 or int8 [f32]")
      ->check(describe::offers({"f32", "bf16", "int8"}))
      ->group("Measuring");
  cli::add_text(app, "--json", json, "FILE",
                "Write the tables as JSON; without FILE, or -: print them")
      ->expected(0, 1)
      ->default_str("-")
      ->group("Output");
  cli::add_text(app, "--csv", csv, "FILE", "Write the numbers as CSV; -: print them")
      ->group("Output");
  cli::add_text(app, "--run", run, "NAME",
                "Name of a run of several commands, one after the other on an idle machine; "
                "numbers are compared within a run only [drawn by chance]")
      ->group("Output");
  cli::add_text(app, "--against", against, "FILE",
                "Also print ratios to this JSON file of the same run, e.g. of another weight type")
      ->group("Output");
}

Measurement::Measurement(const RunFlags& flags, std::string command, std::string model,
                         cli::Console& console)
    : flags_(flags), console_(console) {
  report_.run = {.id = flags.run.empty() ? drawn_run_id() : flags.run,
                 .command = std::move(command),
                 .date = date_and_time(),
                 .machine = this_machine(),
                 .model = std::move(model),
                 .weight_type = to_string(flags.weight_type),
                 .workers = flags.workers,
                 .batch = to_string(flags.batch),
                 .repeats = flags.repeats};
  if (flags.against.empty()) return;
  against_ = read_report(flags.against);
  require_same_run(report_.run, against_->run, flags.against);
}

int Measurement::publish() {
  if (against_) {
    for (Table& table : ratios(report_, *against_)) report_.tables.push_back(std::move(table));
  }
  if (!flags_.json.empty()) write(flags_.json, to_json(report_), console_);
  if (!flags_.csv.empty()) write(flags_.csv, to_csv(report_), console_);
  if (flags_.json != "-" && flags_.csv != "-") console_.out(to_markdown(report_));
  return cli::kOk;
}

}  // namespace lintel::bench
