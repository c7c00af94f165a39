// SPDX-License-Identifier: Apache-2.0
// Measures the cost of LoRA adapters: a batch of sequences with one each, against one without.
#include <algorithm>
#include <memory>
#include <vector>

#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "client/cli/output.h"
#include "model/lora/adapter.h"

namespace lintel::bench {
namespace {

constexpr const char* kAdaptersFooter = R"(
Weights are random, in the model and in the adapters: speed does not depend on them. Adapters are of
all six matrices of every layer, and the sequences of a batch have them in turn. Both batches are
measured in turn, and the cost is the median of the repeats' quotients.

Examples:
  lintel-bench adapters --weight-type int8
  lintel-bench adapters --adapters 1,8,64 --rank 16 --batch 1,64)";

struct AdaptersFlags {
  RunFlags run;
  std::string shape = "mnist";
  std::vector<int> adapters = {8};
  int rank = 8;
  int steps = 100;
};

class AdaptersExperiment {
 public:
  AdaptersExperiment(const AdaptersFlags& flags, cli::Console& console)
      : flags_(flags),
        config_(find_shape(flags.shape).config),
        files_(config_),
        model_(files_.load(flags.run.weight_type)),
        measurement_(flags.run, "adapters",
                     describe(flags.shape, config_) + ", linear attention, random weights",
                     console),
        steps_(std::min<std::int64_t>(flags.steps, config_.max_length)),
        progress_(console,
                  static_cast<std::int64_t>(flags.run.batch.size() * flags.adapters.size()) *
                      flags.run.repeats,
                  "measurements") {}

  int run() {
    Table table{.title = "Adapters of rank " + std::to_string(flags_.rank),
                .columns = {"adapters", "bytes each", "rows per worker", "tokens/s without",
                            "tokens/s with", "times the time"}};
    for (const int count : flags_.adapters) {
      const std::vector<std::shared_ptr<const Adapter>> adapters = make_adapters(count);
      for (const int rows : flags_.run.batch) {
        table.rows.push_back(measure(adapters, rows));
      }
    }
    table.notes.push_back("Ours ran on " + model_->kernels() + ".");
    measurement_.add(std::move(table));
    return measurement_.publish();
  }

 private:
  std::vector<std::shared_ptr<const Adapter>> make_adapters(int count) const {
    std::vector<std::shared_ptr<const Adapter>> adapters;
    for (int i = 0; i < count; ++i) {
      const auto path = files_.directory() / "adapters" / std::to_string(i);
      write_random_adapter(
          path, config_,
          {.rank = flags_.rank,
           .seed = static_cast<std::uint64_t>(i),
           .adapts = [](const std::string& name) { return name.starts_with("transformer."); }});
      adapters.push_back(Adapter::load(AdapterFiles(path, config_)));
    }
    return adapters;
  }

  std::vector<Cell> measure(const std::vector<std::shared_ptr<const Adapter>>& adapters, int rows) {
    const auto count = static_cast<std::size_t>(rows);
    const int workers = flags_.run.workers;
    WorkerSequences without(*model_, workers, count), with(*model_, workers, count, adapters);
    const auto seconds = [this](WorkerSequences& sequences) {
      sequences.start();
      return sequences.generate(steps_);
    };
    seconds(without);
    seconds(with);
    std::vector<double> bare, adapted, ratios;
    const double tokens = static_cast<double>(steps_) * rows * workers;
    for (int r = 0; r < flags_.run.repeats; ++r) {
      const double base = seconds(without);
      const double all = seconds(with);
      bare.push_back(tokens / base);
      adapted.push_back(tokens / all);
      ratios.push_back(all / base);
      progress_.add(1);
    }
    const std::string of =
        std::to_string(adapters.size()) + "_adapters_" + std::to_string(rows) + "_rows";
    measurement_.add("cost_of_" + of, summarize(ratios).median);
    return {Cell::count(static_cast<std::int64_t>(adapters.size())),
            Cell::count(static_cast<std::int64_t>(adapters.front()->bytes())),
            Cell::count(rows),
            Cell::measured(summarize(bare), 4),
            Cell::measured(summarize(adapted), 4),
            Cell::measured(summarize(ratios), 3)};
  }

  const AdaptersFlags& flags_;
  const ModelConfig config_;
  const ModelFiles files_;
  const std::shared_ptr<const Transformer> model_;
  Measurement measurement_;
  const std::int64_t steps_;  // of one measurement
  cli::Progress progress_;
};

}  // namespace

void add_adapters(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<AdaptersExperiment, AdaptersFlags>(
      app, command_line, "adapters", "What a batch of LoRA adapters costs against none",
      kAdaptersFooter);
  add_shape_flag(command, flags->shape);
  cli::add_parsed(command, "--adapters", flags->adapters, parse_counts, "N[,N...]",
                  "Adapters that the rows of a batch have in turn [8]");
  cli::add_parsed(command, "--rank", flags->rank, whole_number(1, kMaxAdapterRank), "N",
                  "Of each adapter [8]");
  cli::add_parsed(command, "--steps", flags->steps, whole_number(), "N",
                  "Steps of one measurement, at most a sequence's [100]");
  flags->run.add_to(command, {8, 16, 32, 64}, "Rows that a worker steps together");
}

}  // namespace lintel::bench
