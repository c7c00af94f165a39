#include "bench/run_flags.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "bench/output_files.h"
#include "tools/describe/flags.h"

namespace lintel::bench {
namespace {

WeightType parse_weight_type(std::string_view flag, std::string_view text) {
  if (const auto type = weight_type_named(text)) return *type;
  throw cli::UsageError(std::string(flag) + " '" + std::string(text) +
                        "': expected f32, bf16 or int8");
}

KernelChoice parse_kernels(std::string_view flag, std::string_view text) {
  const auto choice = kernels_named(text);
  if (!choice) {
    throw cli::UsageError(std::string(flag) + " '" + std::string(text) +
                          "': expected auto, own or onednn");
  }
  choose_kernels(*choice);
  return *choice;
}

std::string drawn_run_id() {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", std::random_device()());
  return text;
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
  cli::add_parsed(app, "--repeats", repeats, count, "N",
                  "Measurements per figure, reported as median, least and most [" +
                      std::to_string(repeats) + "]")
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
  cli::add_parsed(app, "--kernels", kernels, parse_kernels, "WHOSE",
                  "Who multiplies the matrices: our own kernels, oneDNN, or auto, for each weight "
                  "type what is faster on this machine [auto]")
      ->check(describe::offers({"auto", "own", "onednn"}))
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

void RunFlags::add_plot_to(CLI::App& app) {
  cli::add_text(app, "--plot", plot, "FILE", "Also draw a PNG, with gnuplot")->group("Output");
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
  require_writable("--json", flags.json);
  require_writable("--csv", flags.csv);
  require_writable("--plot", flags.plot);
  if (!flags.plot.empty()) require_gnuplot();
  if (flags.against.empty()) return;
  against_ = read_report(flags.against);
  require_same_run(report_.run, against_->run, flags.against);
}

int Measurement::publish() {
  if (against_) {
    for (Table& table : ratios(report_, *against_)) report_.tables.push_back(std::move(table));
  }
  // First what cost the time, then what may fail; and a file that fails costs no other.
  if (flags_.json != "-" && flags_.csv != "-") {
    console_.out(to_markdown(report_));
    console_.flush();
  }
  std::string failures;
  const auto attempt = [&failures](const std::string& asked_for, const auto& work) {
    if (asked_for.empty()) return;
    try {
      work();
    } catch (const cli::Failure& failure) {
      failures += (failures.empty() ? "" : "; ") + std::string(failure.what());
    }
  };
  attempt(flags_.json, [&] { write_file("--json", flags_.json, to_json(report_), console_); });
  attempt(flags_.csv, [&] { write_file("--csv", flags_.csv, to_csv(report_), console_); });
  attempt(flags_.plot, [&] { draw(plots_, flags_.plot); });
  if (!failures.empty()) throw cli::Failure(failures);
  return cli::kOk;
}

}  // namespace lintel::bench
