// SPDX-License-Identifier: Apache-2.0
// Flags that every sub-command has: how a run measures and where its tables go.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "model/ops/weight_type.h"

namespace lintel::bench {

// Plots as PNG, drawn by gnuplot.

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; both > 0
};

// One pair of logarithmic axes.
struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // those without points are left out
};

// The script that draws the plots side by side into `file`.
std::string gnuplot_script(const std::vector<Plot>& plots, const std::string& file);

// Throws cli::Failure where draw() could not start gnuplot.
void require_gnuplot();

// Runs gnuplot. Throws cli::Failure when there is none or it fails.
void draw(const std::vector<Plot>& plots, const std::string& file);

// Files that a run writes at its end: tried before it measures.

// Throws cli::Failure, naming the flag, the file and the reason, where `file` cannot be written.
// What is in it stays; one that was not there is not there afterwards. "-" and "" are none.
void require_writable(const std::string& flag, const std::string& file);

// Throws cli::Failure as above. "-": to standard output.
void write_file(const std::string& flag, const std::string& file, const std::string& text,
                cli::Console& console);

struct RunFlags {
  int repeats = 5;
  int workers = 0;         // set to the number of cores by add_to
  std::vector<int> batch;  // sequences a worker steps together, increasing
  WeightType weight_type = WeightType::kF32;
  KernelChoice kernels = KernelChoice::kAuto;  // chosen for the process when it is parsed
  std::string run;                             // empty: drawn by chance
  std::string json;                            // file, "-", or empty
  std::string csv;                             // file, "-", or empty
  std::string against;                         // file or empty
  std::string plot;                            // file or empty

  // `batch_help` empty: the sub-command has no --batch; without workers it runs on one.
  void add_to(CLI::App& app, std::vector<int> default_batch, const std::string& batch_help,
              bool with_workers = true);
  void add_plot_to(CLI::App& app);  // of sub-commands that draw
};

// One sub-command at work: knows its run from the start, so that what cannot be compared is refused
// before anything is measured.
class Measurement {
 public:
  // `model`: see Run. Throws cli::UsageError or cli::Failure for --against, and cli::Failure for
  // files that cannot be written and plots that cannot be drawn. `flags` and `console` outlive
  // this.
  Measurement(const RunFlags& flags, std::string command, std::string model, cli::Console& console);

  void add(Table table) { report_.tables.push_back(std::move(table)); }
  void add(std::string name, double value) { report_.figures.push_back({std::move(name), value}); }
  // For --plot, side by side.
  void add(std::vector<Plot> plots) { plots_ = std::move(plots); }
  // Prints the tables as Markdown, then writes the files asked for. Returns an ExitCode; throws
  // cli::Failure for files that failed, when all else is done.
  int publish();

  const RunFlags& flags() const { return flags_; }
  cli::Console& console() const { return console_; }

 private:
  const RunFlags& flags_;
  cli::Console& console_;
  Report report_;
  std::vector<Plot> plots_;
  std::optional<Report> against_;
};

// "1, 64"
std::string to_string(const std::vector<int>& numbers);

// A whole number of at least `least`, for add_parsed.
int parse_count(std::string_view flag, std::string_view text, int least = 1);
// "16,64": such numbers, in increasing order.
std::vector<int> parse_counts(std::string_view flag, std::string_view text);

}  // namespace lintel::bench
