// The tables of Katharopoulos et al. 2020, section 4.2, from our own code.
#include <algorithm>
#include <memory>

#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "bench/shapes.h"
#include "client/cli/progress.h"

namespace lintel::bench {
namespace {

struct PaperFlags {
  RunFlags run;
  std::string shape = "mnist";
};

int run_paper(const PaperFlags& flags, cli::Console& console) {
  const Shape shape = find_shape(flags.shape);
  const ModelFiles files(shape.config);
  Measurement measurement(flags.run, "paper", describe(shape.name, shape.config), console);
  Table table{.title = "Images of " + shape.name,
              .columns = {"attention", "images/s in a batch", "s/image alone"},
              .rows = {},
              .notes = {}};
  cli::Progress progress(console, 2 * flags.run.repeats, "measurements");
  const std::shared_ptr<const Transformer> model = files.load(flags.run.weight_type);
  const std::int64_t steps = model->config().max_length;
  std::vector<std::unique_ptr<Sequences>> workers;
  for (int w = 0; w < flags.run.workers; ++w) {
    workers.push_back(std::make_unique<Sequences>(*model, flags.run.batch.back(), 1000 * w));
  }
  const Summary batch = repeat(flags.run.repeats, [&] {
    const double seconds = run_on_workers(flags.run.workers, [&](int w) {
      workers[w]->start();
      workers[w]->generate(steps);
    });
    progress.add(1);
    return seconds;
  });
  table.rows.push_back({Cell::text("linear"),
                        Cell::measured(quotient(flags.run.batch.back() * flags.run.workers, batch)),
                        Cell::none()});
  measurement.add(table);
  return measurement.publish();
}

}  // namespace

void add_paper(CLI::App& app, cli::CommandLine& command_line) {
  auto flags = std::make_shared<PaperFlags>();
  CLI::App* const command = app.add_subcommand("paper", "Image generation, by kind of attention");
  cli::add_text(*command, "--shape", flags->shape, "NAME", "mnist, cifar10 or mnist-small")
      ->capture_default_str();
  flags->run.add_to(*command, {64},
                    "Sequences a worker steps together; of several the best counts");
  command->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] { return run_paper(*flags, command_line.console); };
  });
}

}  // namespace lintel::bench
