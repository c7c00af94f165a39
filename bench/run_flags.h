// SPDX-License-Identifier: Apache-2.0
// Flags that several sub-commands have: how a run measures, what model, and where its tables go.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "bench/sequences.h"
#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "client/image/image.h"
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
  std::vector<Series> series;  // series without points are left out
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
  int repeats = 5;         // 0: none, and no weight type: the command measures a server elsewhere
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
  void add_output_to(CLI::App& app);  // a part of add_to
  void add_plot_to(CLI::App& app);    // of sub-commands that draw
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

// For add_parsed.

// Throws cli::UsageError: FLAG 'TEXT': expected `expected`.
[[noreturn]] void refuse(std::string_view flag, std::string_view text, const std::string& expected);

template <typename T>
using Parse = std::function<T(std::string_view flag, std::string_view text)>;

Parse<int> whole_number(int least = 1, int most = std::numeric_limits<int>::max());
// More than 0.
Parse<double> positive_number(double most = std::numeric_limits<double>::infinity());
// "16,64": whole numbers of at least 1, in increasing order.
std::vector<int> parse_counts(std::string_view flag, std::string_view text);

// The model to measure.

void add_shape_flag(CLI::App& app, std::string& shape, const std::string& more = "");

struct ModelFlags {
  std::string shape = "mnist";  // with random weights
  std::string directory;        // in place of it; empty: the shape

  void add_to(CLI::App& app);
};

// A model, and the files that it was read from.
struct LoadedModel {
  LoadedModel(const ModelFlags& flags, WeightType weight_type, const std::string& attention = "");

  const ModelFiles files;
  const std::string name;  // of the shape or the directory
  const std::shared_ptr<const Transformer> transformer;

  // "mnist: 8 layers, ..., 784 tokens, linear attention, random weights"
  std::string description() const;
};

// Images whose bits/dim are computed: --images and --score-images.
struct ScoredImages {
  std::string file;  // empty: none
  int most = 200;

  void add_to(CLI::App& app, const std::string& help);
  // Empty without a file.
  std::vector<GrayImage> read(const ImageShape& shape) const;
};

template <typename Flags>
struct NewCommand {
  CLI::App& app;
  const std::shared_ptr<Flags> flags;
};

// A sub-command that runs Experiment(flags, console).run() when it was chosen.
template <typename Experiment, typename Flags>
NewCommand<Flags> add_command(CLI::App& app, cli::CommandLine& command_line,
                              const std::string& name, const std::string& about,
                              const std::string& footer) {
  CLI::App* const command = app.add_subcommand(name, about);
  const auto flags = std::make_shared<Flags>();
  command->footer(footer);
  command->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] {
      return Experiment(*flags, command_line.console).run();
    };
  });
  return {*command, flags};
}

}  // namespace lintel::bench
