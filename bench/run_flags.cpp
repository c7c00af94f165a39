// SPDX-License-Identifier: Apache-2.0
#include "bench/run_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "client/cli/console.h"
#include "client/image/image_file.h"
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

[[noreturn]] void fail(const std::string& flag, const std::string& file, int error) {
  throw cli::Failure(flag + " " + file + ": cannot be written: " + std::strerror(error));
}

WeightType parse_weight_type(std::string_view flag, std::string_view text) {
  if (const auto type = weight_type_named(text)) return *type;
  refuse(flag, text, "f32, bf16 or int8");
}

KernelChoice parse_kernels(std::string_view flag, std::string_view text) {
  const auto choice = kernels_named(text);
  if (!choice) refuse(flag, text, "auto, own or onednn");
  choose_kernels(*choice);
  return *choice;
}

std::string drawn_run_id() {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", std::random_device()());
  return text;
}

ModelFiles files_of(const ModelFlags& flags) {
  if (!flags.directory.empty()) return ModelFiles(std::filesystem::path(flags.directory));
  return ModelFiles(find_shape(flags.shape).config);
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

std::string to_string(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

void refuse(std::string_view flag, std::string_view text, const std::string& expected) {
  throw cli::UsageError(std::string(flag) + " '" + std::string(text) + "': expected " + expected);
}

Parse<int> whole_number(int least, int most) {
  return [=](std::string_view flag, std::string_view text) {
    const int number = cli::parse_int32(flag, text);
    if (number < least) refuse(flag, text, std::to_string(least) + " or more");
    if (number > most) refuse(flag, text, "at most " + std::to_string(most));
    return number;
  };
}

Parse<double> positive_number(double most) {
  return [=](std::string_view flag, std::string_view text) {
    const double number = cli::parse_double(flag, text);
    if (number > 0 && number <= most) return number;
    const bool bounded = most < std::numeric_limits<double>::infinity();
    refuse(flag, text,
           "a number of more than 0" + (bounded ? " and up to " + format_number(most, 4) : ""));
  };
}

std::vector<int> parse_counts(std::string_view flag, std::string_view text) {
  std::vector<int> counts = cli::parse_ids(flag, text);
  std::ranges::sort(counts);
  counts.erase(std::ranges::unique(counts).begin(), counts.end());
  if (counts.empty() || counts.front() < 1) {
    refuse(flag, text, "numbers of at least 1, e.g. 16,64");
  }
  return counts;
}

void add_shape_flag(CLI::App& app, std::string& shape, const std::string& more) {
  cli::add_text(app, "--shape", shape, "NAME", "mnist, cifar10 or mnist-small" + more)
      ->capture_default_str();
}

void ModelFlags::add_to(CLI::App& app) {
  add_shape_flag(app, shape, ", with random weights");
  cli::add_text(app, "--model", directory, "DIR", "A model directory, in place of --shape");
}

LoadedModel::LoadedModel(const ModelFlags& flags, WeightType weight_type,
                         const std::string& attention)
    : files(files_of(flags)),
      name(flags.directory.empty() ? flags.shape : files.name()),
      transformer(files.load(weight_type, attention)) {}

std::string LoadedModel::description() const {
  const ModelConfig& config = transformer->config();
  return describe(name, config) + ", " + config.attention.front().type() + " attention" +
         (files.random() ? ", random weights" : "");
}

void ScoredImages::add_to(CLI::App& app, const std::string& help) {
  cli::add_text(app, "--images", file, "FILE", help);
  cli::add_parsed(app, "--score-images", most, whole_number(), "N", "How many of them [200]");
}

std::vector<GrayImage> ScoredImages::read(const ImageShape& shape) const {
  if (file.empty()) return {};
  std::vector<GrayImage> images = read_images(file, shape.height, shape.width);
  images.resize(std::min(images.size(), static_cast<std::size_t>(most)));
  return images;
}

void RunFlags::add_to(CLI::App& app, std::vector<int> default_batch, const std::string& batch_help,
                      bool with_workers) {
  batch = std::move(default_batch);
  workers = this_machine().cores;
  cli::add_parsed(app, "--repeats", repeats, whole_number(), "N",
                  "Measurements per figure, reported as median, least and most [" +
                      std::to_string(repeats) + "]")
      ->group("Measuring");
  if (with_workers) {
    cli::add_parsed(
        app, "--workers", workers, whole_number(), "N",
        "Threads, each with sequences of its own [" + std::to_string(workers) + ", the cores]")
        ->group("Measuring");
  }
  if (!batch_help.empty()) {
    cli::add_parsed(app, "--batch", batch, parse_counts, "N[,N...]",
                    batch_help + " [" + to_string(batch) + "]")
        ->group("Measuring");
  }
  cli::add_parsed(
      app, "--weight-type", weight_type, parse_weight_type, "TYPE",
      std::string("What the matrices are computed in: f32, bf16 or int8; of checkpoints "
                  "int4, int4-ffn and int4-all, too [") +
          to_string(weight_type) + "]")
      ->check(describe::offers({"f32", "bf16", "int8", "int4", "int4-ffn", "int4-all"}))
      ->group("Measuring");
  cli::add_parsed(app, "--kernels", kernels, parse_kernels, "WHOSE",
                  "Who multiplies the matrices: our own kernels, oneDNN, or auto, for each weight "
                  "type what is faster on this machine [auto]")
      ->check(describe::offers({"auto", "own", "onednn"}))
      ->group("Measuring");
  add_output_to(app);
}

void RunFlags::add_output_to(CLI::App& app) {
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
                 .weight_type = flags.repeats > 0 ? to_string(flags.weight_type) : "",
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
