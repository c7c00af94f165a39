// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a token and the memory of a session at growing positions.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "bench/attentions.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "client/cli/output.h"
#include "model/core/random.h"

namespace lintel::bench {
namespace {

constexpr const char* kLengthFooter = R"(
One sequence on one thread, which reads tokens drawn by chance up to each position and then
generates. Attention whose state grows goes as far as --budget seconds of reading and half of the
machine's memory let it; where the state is constant it goes all the way. The model has the layers of
--shape, random weights, a head over 256 tokens and no greatest length.

Examples:
  lintel-bench length --plot length.png
  lintel-bench length --positions 100,1000,10000 --attention linear,softmax --budget 20
  lintel-bench length --attention all --positions 100,1000,10000 --budget 10 --plot all.png)";

struct LengthFlags {
  RunFlags run;
  std::string shape = "mnist";
  std::string attention = "linear,softmax,lsh1";
  std::vector<int> positions = {100, 300, 1000, 3000, 10'000, 30'000, 100'000, 300'000, 1'000'000};
  double budget_seconds = 90;
};

// The shape's body with no end.
ModelConfig endless(ModelConfig config) {
  config.max_length = 0;
  config.position_encoding = PositionEncoding::kSinusoidal;
  config.head = HeadKind::kCategorical;
  config.mixtures = 0;
  config.modality = ModalityKind::kTokens;
  config.image = {};
  return config;
}

struct Point {
  Summary microseconds;  // a token
  std::size_t bytes = 0;
};

struct Curve {
  std::string name;
  std::vector<Point> points;  // of the first positions
  std::string stopped;        // why there are no more; empty: there are all
};

class LengthExperiment {
 public:
  LengthExperiment(const LengthFlags& flags, cli::Console& console)
      : flags_(flags),
        shape_(find_shape(flags.shape)),
        config_(endless(shape_.config)),
        files_(config_),
        measurement_(flags.run, "length",
                     describe(shape_.name + " without end", config_) + ", random weights", console),
        progress_(std::in_place, console, 0, "tokens read") {}

  int run() {
    std::vector<Curve> curves;
    for (const NamedAttention& which : find_attentions(shape_, "--attention", flags_.attention)) {
      curves.push_back(measure(which));
    }
    progress_.reset();  // the tables begin on a line of their own
    measurement_.add(time_table(curves));
    measurement_.add(memory_table(curves));
    measurement_.add(plots_of(curves));
    return measurement_.publish();
  }

 private:
  Curve measure(const NamedAttention& which) {
    Curve curve{.name = which.name};
    const auto model = files_.load(flags_.run.weight_type, which.spec);
    Sequences sequence(*model, 1);
    const auto begin = std::chrono::steady_clock::now();
    const auto time_left = [&] {
      return model->constant_state() || std::chrono::steady_clock::now() - begin <
                                            std::chrono::duration<double>(flags_.budget_seconds);
    };
    for (const int position : flags_.positions) {
      const double most = static_cast<double>(this_machine().memory_bytes) / 2;
      if (static_cast<double>(model->state_bytes(position)) > most) {
        curve.stopped = "half of the memory";
        break;
      }
      if (!read_to(sequence, position, time_left)) {
        curve.stopped = format_number(flags_.budget_seconds, 3) + " s of reading";
        break;
      }
      curve.points.push_back(measure_here(sequence));
    }
    return curve;
  }

  // False when the time is over.
  bool read_to(Sequences& sequence, std::int64_t position, const std::function<bool()>& time_left) {
    constexpr std::int64_t kSlice = 1024;
    std::vector<std::int32_t> tokens;
    while (sequence.position() < position) {
      if (!time_left()) return false;
      tokens.clear();
      const std::int64_t end = std::min(position, sequence.position() + kSlice);
      for (std::int64_t p = sequence.position(); p < end; ++p) {
        const DrawSource draw{.seed = 1, .position = p};
        tokens.push_back(static_cast<std::int32_t>(draw.uniform(0) * config_.vocab_size));
      }
      run_on_workers(1, [&](int) { sequence.read(0, tokens); });
      progress_->add(static_cast<std::int64_t>(tokens.size()));
    }
    return true;
  }

  Point measure_here(Sequences& sequence) const {
    constexpr int kSteps = 16;
    const Summary microseconds = repeat(flags_.run.repeats, [&] {
      return run_on_workers(1, [&](int) { sequence.generate(kSteps); }) / kSteps * 1e6;
    });
    return {microseconds, sequence.bytes()};
  }

  // A row for each curve, a column for each position.
  template <typename CellOf>
  Table table_of(const std::vector<Curve>& curves, const char* title, CellOf&& cell_of) const {
    Table table{.title = title, .columns = {"attention"}};
    for (const int position : flags_.positions) {
      table.columns.push_back("at " + Cell::count(position).to_text());
    }
    for (const Curve& curve : curves) {
      std::vector<Cell> row = {Cell::text(curve.name)};
      for (std::size_t i = 0; i < flags_.positions.size(); ++i) {
        row.push_back(i < curve.points.size() ? cell_of(curve.points[i]) : Cell::none());
      }
      table.rows.push_back(std::move(row));
    }
    return table;
  }

  Table time_table(const std::vector<Curve>& curves) const {
    Table table = table_of(curves, "Microseconds of a token, by position",
                           [](const Point& point) { return Cell::measured(point.microseconds); });
    table.notes.push_back("One sequence on one thread; each measurement is the mean of 16 tokens.");
    for (const Curve& curve : curves) {
      if (!curve.stopped.empty()) {
        table.notes.push_back(curve.name + " stopped at " + curve.stopped + ".");
      }
    }
    return table;
  }
  Table memory_table(const std::vector<Curve>& curves) const {
    return table_of(curves, "Bytes of a session, by position", [](const Point& point) {
      return Cell::count(static_cast<std::int64_t>(point.bytes));
    });
  }

  std::vector<Plot> plots_of(const std::vector<Curve>& curves) const {
    Plot time{"Time of a token", "position", "microseconds", {}};
    Plot memory{"Memory of a session", "position", "bytes", {}};
    for (const Curve& curve : curves) {
      Series seconds{curve.name, {}};
      Series bytes{curve.name, {}};
      for (std::size_t i = 0; i < curve.points.size(); ++i) {
        seconds.points.emplace_back(flags_.positions[i], curve.points[i].microseconds.median);
        bytes.points.emplace_back(flags_.positions[i], curve.points[i].bytes);
      }
      time.series.push_back(std::move(seconds));
      memory.series.push_back(std::move(bytes));
    }
    return {time, memory};
  }

  const LengthFlags& flags_;
  const Shape shape_;
  const ModelConfig config_;
  const ModelFiles files_;
  Measurement measurement_;
  std::optional<cli::Progress> progress_;  // until the tables are printed
};

}  // namespace

void add_length(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<LengthExperiment, LengthFlags>(
      app, command_line, "length", "Cost of a token and bytes of a session at growing positions",
      kLengthFooter);
  add_shape_flag(command, flags->shape);
  cli::add_text(command, "--attention", flags->attention, "A[,A...]",
                "Rows of `lintel-bench paper` by name, or all")
      ->capture_default_str();
  cli::add_parsed(command, "--positions", flags->positions, parse_counts, "N[,N...]",
                  "Where to measure [100,300,1000 ... 1000000]");
  cli::add_parsed(command, "--budget", flags->budget_seconds, cli::parse_double, "SECONDS",
                  "Longest time of reading where the state grows [90]");
  flags->run.add_plot_to(command);
  flags->run.add_to(command, {1}, /*batch_help=*/"", /*with_workers=*/false);
  flags->run.workers = 1;
}

}  // namespace lintel::bench
