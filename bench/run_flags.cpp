// SPDX-License-Identifier: Apache-2.0
#include "bench/run_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "client/cli/console.h"
#include "tools/describe/flags.h"

namespace lintel::bench {
namespace {

std::string quoted(const std::string& text) {
  std::string safe = "'";
  for (const char c : text) safe += c == '\'' ? std::string("''") : std::string(1, c);
  return safe + "'";
}

// Colours that colour-blind readers can tell apart (Okabe and Ito).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};

// Beyond so many names, they stand next to the axes.
constexpr std::size_t kMostInside = 5;

// Another mark where colours begin again: disc, square, triangle, diamond.
int point_type(std::size_t i) {
  constexpr int kTypes[] = {7, 5, 9, 13};
  return kTypes[i / std::size(kColors) % std::size(kTypes)];
}

void add_plot(std::ostream& out, const Plot& plot, std::size_t index) {
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    out << "$data" << index << "_" << i << " << EOD\n";
    for (const auto& [x, y] : plot.series[i].points) out << x << " " << y << "\n";
    out << "EOD\n";
  }
  out << "set title " << quoted(plot.title) << "\n"
      << "set xlabel " << quoted(plot.x_label) << "\n"
      << "set ylabel " << quoted(plot.y_label) << "\nplot ";
  const char* separator = "";
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    if (plot.series[i].points.empty()) continue;
    out << separator << "$data" << index << "_" << i << " with linespoints lw 2 dt "
        << 1 + i / std::size(kColors) << " pt " << point_type(i) << " ps 0.8 lc rgb '"
        << kColors[i % std::size(kColors)] << "' title " << quoted(plot.series[i].name);
    separator = ", \\\n  ";
  }
  out << "\n";
}

}  // namespace

std::string gnuplot_script(const std::vector<Plot>& plots, const std::string& file) {
  std::size_t most = 0;
  for (const Plot& plot : plots) most = std::max(most, plot.series.size());
  const bool crowded = most > kMostInside;
  std::ostringstream out;
  out.precision(9);
  out << "set terminal pngcairo noenhanced size " << (crowded ? 760 : 620) * plots.size() << ','
      << (crowded ? 520 : 440) << " font 'sans,11'\n"
      << "set output " << quoted(file) << "\n"
      << "set logscale xy\nset format x '10^{%T}'\nset format y '10^{%T}'\n"
      << "set grid lc rgb '#dddddd'\nset border 3\nset tics nomirror\n"
      << "set key " << (crowded ? "outside right center samplen 2" : "top left") << "\n"
      << "set multiplot layout 1," << plots.size() << "\n";
  for (std::size_t i = 0; i < plots.size(); ++i) add_plot(out, plots[i], i);
  out << "unset multiplot\n";
  return out.str();
}

void require_gnuplot() {
  if (std::system("gnuplot --version >/dev/null 2>&1") == 0) return;
  throw cli::Failure("--plot: there is no gnuplot; scripts/setup.sh --bench installs it");
}

void draw(const std::vector<Plot>& plots, const std::string& file) {
  const std::string script = gnuplot_script(plots, file);
  FILE* const pipe = popen("gnuplot -", "w");
  if (pipe == nullptr) throw cli::Failure("--plot " + file + ": gnuplot cannot be started");
  const bool written = std::fwrite(script.data(), 1, script.size(), pipe) == script.size();
  const int status = pclose(pipe);
  if (!written || status != 0) {
    throw cli::Failure("--plot " + file + ": gnuplot failed");
  }
}

namespace {

[[noreturn]] void fail(const std::string& flag, const std::string& file, int error) {
  throw cli::Failure(flag + " " + file + ": cannot be written: " + std::strerror(error));
}

}  // namespace

void require_writable(const std::string& flag, const std::string& file) {
  if (file.empty() || file == "-") return;
  const bool was_there = ::access(file.c_str(), F_OK) == 0;
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) fail(flag, file, errno);
  ::close(fd);
  if (!was_there) ::unlink(file.c_str());
}

void write_file(const std::string& flag, const std::string& file, const std::string& text,
                cli::Console& console) {
  if (file == "-") return console.out(text);
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  if (!out) fail(flag, file, errno);
}

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
