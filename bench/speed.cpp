// SPDX-License-Identifier: Apache-2.0
// Measures how near the server is to what the machine's arithmetic and memory allow.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "bench/bounds.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "bench/throughput.h"
#include "client/cli/output.h"
#include "model/transformer.h"
#include "server/models/batch_rows.h"
#include "server/observability/logging.h"

namespace lintel::bench {
namespace {

// Measures the time of the parts of steps: the model itself has no clock.
class StepProfile final : public StepObserver {
 public:
  void enter(StepPart part) override {
    const auto now = std::chrono::steady_clock::now();
    seconds_[static_cast<std::size_t>(part_)] +=
        std::chrono::duration<double>(now - since_).count();
    since_ = now;
    part_ = part;
  }
  // Forgets what was counted.
  void start() {
    seconds_ = {};
    part_ = StepPart::kOther;
    since_ = std::chrono::steady_clock::now();
  }
  double seconds(StepPart part) const { return seconds_[static_cast<std::size_t>(part)]; }

 private:
  std::array<double, 3> seconds_ = {};
  StepPart part_ = StepPart::kOther;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

constexpr const char* kSpeedFooter = R"(
The bound is products alone on the model's shapes, with the same rows and threads, by oneDNN's matmul
or by our own kernels, the faster of the two, measured in turn with what it bounds. Alone, the bound is reading the weights once from where they fit.
Speculation is measured through gRPC with one client, off and on (alone_grpc_us_per_token and
alone_speculation_us_per_token): how much it gives depends on what the model has learnt, and with random
weights says nothing.

Examples:
  lintel-bench speed --weight-type int8
  lintel-bench speed --model weights/mnist-linear-small --weight-type bf16 --json)";

struct SpeedFlags {
  RunFlags run;
  ModelFlags model;
  ScoredImages images;
  double seconds = 0.4;  // of one measurement
};

constexpr StepPart kParts[] = {StepPart::kProducts, StepPart::kAttention, StepPart::kOther};

// One number of rows a worker.
struct MeasuredBatch {
  int rows = 0;
  Summary tokens_per_second;
  Summary bound_tokens_per_second;
  Summary ratio;                // of the two, repeat by repeat
  bool has_onednn = true;       // oneDNN has products in this weight type on this machine
  bool own_bound = false;       // our own products alone were faster than oneDNN's
  double microseconds[3] = {};  // a token of one worker, by part
};

class SpeedExperiment {
 public:
  SpeedExperiment(const SpeedFlags& flags, cli::Console& console)
      : flags_(flags),
        loaded_(flags.model, flags.run.weight_type),
        model_(loaded_.transformer),
        images_(flags.images.read(model_->config().image)),
        measurement_(flags.run, "speed", loaded_.description(), console),
        progress_(console,
                  static_cast<std::int64_t>(flags.run.batch.size() + 4) * flags.run.repeats,
                  "measurements") {
    set_up_logging({.level = "warn", .json = false});
  }

  int run() {
    std::vector<MeasuredBatch> batches;
    for (const int rows : flags_.run.batch) batches.push_back(measure_batch(rows));
    const MeasuredBatch& best = *std::ranges::max_element(
        batches, {}, [](const MeasuredBatch& b) { return b.tokens_per_second.median; });
    add_batches(batches);
    measurement_.add("rows_per_worker", best.rows);
    if (const std::int64_t length = model_->config().max_length; length > 0) {
      measurement_.add("images_per_s", best.tokens_per_second.median / length);
    }
    measurement_.add("tokens_per_s", best.tokens_per_second.median);
    measurement_.add("bound_tokens_per_s", best.bound_tokens_per_second.median);
    measurement_.add("ratio_to_bound", best.ratio.median);
    measure_grpc(best);
    measure_alone();
    measure_prompt(best);
    if (!images_.empty()) compare_likelihood();
    return measurement_.publish();
  }

 private:
  // The speed in images, for a model whose sequences have an end.
  Cell images_per_second(const Summary& tokens_per_second) const {
    const std::int64_t length = model_->config().max_length;
    return length > 0 ? Cell::measured(divided(tokens_per_second, length)) : Cell::none();
  }

  // Steps that take about `seconds`, given what one takes; no more than a sequence has.
  std::int64_t steps_for(double step_seconds) const {
    const std::int64_t most =
        model_->config().max_length > 0 ? model_->config().max_length : 100'000;
    return std::clamp<std::int64_t>(std::llround(flags_.seconds / step_seconds), 1, most);
  }

  MeasuredBatch measure_batch(int rows) {
    const int workers = flags_.run.workers;
    const auto count = static_cast<std::size_t>(rows);
    std::optional<ProductBound> onednn;
    try {
      onednn.emplace(model_->config(), flags_.run.weight_type, count, workers);
    } catch (const NoProduct&) {  // e.g. bf16 on AVX2: our own products alone are the bound
    }
    OwnProducts own_products(model_->config(), flags_.run.weight_type, count, workers);
    WorkerSequences sequences(*model_, workers, count);
    std::vector<StepProfile> profiles(static_cast<std::size_t>(workers));
    for (int w = 0; w < workers; ++w) sequences[w].observe(&profiles[w]);
    // Seconds of a step.
    const auto generate = [&](std::int64_t steps) {
      sequences.start();
      const double seconds = sequences.run([&](Sequences& own, int w) {
        profiles[w].start();
        own.generate(steps);
        profiles[w].enter(StepPart::kOther);
      });
      return seconds / static_cast<double>(steps);
    };
    const auto run_alone = [&](auto& products, std::int64_t steps) {
      const double seconds = run_on_workers(workers, [&](int w) {
        for (std::int64_t s = 0; s < steps; ++s) products.step(w);
      });
      return seconds / static_cast<double>(steps);
    };
    const std::int64_t steps = steps_for(generate(5));
    const std::int64_t bound_steps =
        steps_for(onednn ? run_alone(*onednn, 5) : run_alone(own_products, 5));
    MeasuredBatch batch{.rows = rows, .has_onednn = onednn.has_value()};
    std::vector<double> own, bounds, ratios;
    std::vector<double> parts[3];
    int own_wins = 0;
    for (int r = 0; r < flags_.run.repeats; ++r) {
      const double step = generate(steps);
      const double onednn_step =
          onednn ? run_alone(*onednn, bound_steps) : std::numeric_limits<double>::infinity();
      const double own_step = run_alone(own_products, bound_steps);
      const double bound_step = std::min(onednn_step, own_step);
      own_wins += own_step < onednn_step ? 1 : -1;
      own.push_back(rows * workers / step);
      bounds.push_back(rows * workers / bound_step);
      ratios.push_back(bound_step / step);
      for (int part = 0; part < 3; ++part) {
        parts[part].push_back(profiles[0].seconds(kParts[part]) / static_cast<double>(steps) /
                              rows);
      }
      progress_.add(1);
    }
    batch.tokens_per_second = summarize(own);
    batch.bound_tokens_per_second = summarize(bounds);
    batch.ratio = summarize(ratios);
    batch.own_bound = own_wins > 0;
    for (int part = 0; part < 3; ++part) {
      batch.microseconds[part] = 1e6 * median(parts[part]);
    }
    return batch;
  }

  void add_batches(const std::vector<MeasuredBatch>& batches) {
    Table table{
        .title = "In process, by rows per worker",
        .columns = {"rows per worker", "images/s", "tokens/s", "bound, tokens/s", "bound by",
                    "share of the bound", "us a token and worker: products", "attention", "other"}};
    for (const MeasuredBatch& batch : batches) {
      std::vector<Cell> row = {Cell::text(std::to_string(batch.rows)),
                               images_per_second(batch.tokens_per_second),
                               Cell::measured(batch.tokens_per_second, 4),
                               Cell::measured(batch.bound_tokens_per_second, 4),
                               Cell::text(batch.own_bound ? "own" : "onednn"),
                               Cell::measured(batch.ratio, 2)};
      for (const double part : batch.microseconds) row.push_back(Cell::number(part));
      table.rows.push_back(std::move(row));
    }
    table.notes.push_back(
        "The bound is products alone on the same shapes, rows and threads, without the predictor: "
        "oneDNN's matmul or our own, the faster of the two; shares are of repeats measured in "
        "turn. Ours ran on " +
        model_->kernels() + ".");
    if (!batches.empty() && !batches.front().has_onednn) {
      table.notes.push_back(
          "oneDNN has no products in this weight type on this machine, so the bound is ours "
          "alone.");
    }
    measurement_.add(std::move(table));
  }

  // Whole sequences on all workers in process and through gRPC, in turn.
  void measure_grpc(const MeasuredBatch& best) {
    const int workers = flags_.run.workers;
    const OwnServer server(model_, {.workers = workers, .rows = best.rows});
    WorkerSequences sequences(*model_, workers, static_cast<std::size_t>(best.rows));
    const SequencePlan plan = sequence_plan(model_->config());
    const std::int64_t steps = plan.tokens;
    const double tokens = static_cast<double>(steps) * best.rows * workers;
    const ThroughputOptions load{.address = server.address(),
                                 .sequence = plan,
                                 .clients = workers * best.rows,
                                 .warm_up = std::chrono::duration<double>(0.5),
                                 .window = std::chrono::duration<double>(5 * flags_.seconds)};
    // Results of each repeat. The CPU of a token is of all threads: workers, gRPC's and the
    // clients'.
    std::vector<double> served, shares, own_cpu, cpu, cpu_shares;
    for (int r = 0; r < flags_.run.repeats; ++r) {
      sequences.start();
      const double cpu_before = process_cpu_seconds();
      const double in_process = tokens / sequences.generate(steps);
      own_cpu.push_back(1e6 * (process_cpu_seconds() - cpu_before) / tokens);
      const Throughput seen = measure_throughput(load);
      served.push_back(seen.tokens_per_second);
      shares.push_back(served.back() / in_process);
      cpu.push_back(1e6 * seen.cpu_seconds / (seen.tokens_per_second * seen.seconds));
      cpu_shares.push_back(own_cpu.back() / cpu.back());
      progress_.add(1);
    }
    const Summary summary = summarize(served);
    const Summary share = summarize(shares);
    const Summary cpu_share = summarize(cpu_shares);
    Table table{
        .title = "Through gRPC, clients on the same cores",
        .columns = {"streams", "images/s", "tokens/s", "share of in process", "us of CPU a token",
                    "in process", "share"},
        .notes = {"Shares are in process's of the same repeat: of its tokens/s, which other "
                  "work on the machine moves, and of its CPU for a token, which it moves "
                  "less. The CPU is that of both ends."}};
    table.rows.push_back({Cell::text(std::to_string(workers * best.rows)),
                          images_per_second(summary), Cell::measured(summary, 4),
                          Cell::measured(share, 2), Cell::measured(summarize(cpu)),
                          Cell::measured(summarize(own_cpu)), Cell::measured(cpu_share, 2)});
    measurement_.add(std::move(table));
    measurement_.add("grpc_tokens_per_s", summary.median);
    measurement_.add("grpc_share", share.median);
    measurement_.add("grpc_cpu_us_per_token", median(cpu));
    measurement_.add("grpc_cpu_share", cpu_share.median);
    if (const std::int64_t length = model_->config().max_length; length > 0) {
      measurement_.add("grpc_images_per_s", summary.median / length);
    }
  }

  void measure_alone() {
    Sequences sequence(*model_, 1);
    const auto generate = [&](std::int64_t steps) {
      sequence.start(1, 0);
      return run_on_workers(1, [&](int) { sequence.generate(steps); }) / static_cast<double>(steps);
    };
    const std::int64_t steps = steps_for(generate(20));
    std::vector<double> own, bounds, ratios;
    for (int r = 0; r < flags_.run.repeats; ++r) {
      own.push_back(1e6 * generate(steps));
      const double bytes = static_cast<double>(model_->weight_bytes());
      bounds.push_back(1e6 * bytes / read_bandwidth(1, model_->weight_bytes(), 21).median);
      ratios.push_back(own.back() / bounds.back());
      progress_.add(1);
    }
    const Summary off = alone_through_grpc(Speculation::kOff);
    const Summary with = alone_through_grpc(Speculation::kAuto);
    Table table{.title = "One sequence alone", .columns = {"", "us a token"}};
    const auto add = [&](const std::string& name, const Summary& summary) {
      table.rows.push_back({Cell::text(name), Cell::measured(summary)});
    };
    add("reading the weights once, one thread", summarize(bounds));
    add("in process", summarize(own));
    add("through gRPC, speculation off", off);
    add("through gRPC, speculation auto", with);
    table.notes.push_back("In process against reading the weights: " +
                          Cell::measured(summarize(ratios)).to_text() + " times.");
    measurement_.add(std::move(table));
    measurement_.add("alone_us_per_token", median(own));
    measurement_.add("alone_bound_us_per_token", median(bounds));
    measurement_.add("alone_ratio_to_bound", median(ratios));
    measurement_.add("alone_grpc_us_per_token", off.median);
    measurement_.add("alone_speculation_us_per_token", with.median);
    measurement_.add("alone_speculation_speedup", off.median / with.median);
  }

  // Microseconds a token that one client sees.
  Summary alone_through_grpc(Speculation speculation) {
    // The rows that drafts make of a step by default (--speculation-rows).
    const OwnServer server(model_, {.workers = 1, .rows = 32, .speculation = speculation});
    const ThroughputOptions load{.address = server.address(),
                                 .sequence = sequence_plan(model_->config()),
                                 .clients = 1,
                                 .warm_up = std::chrono::duration<double>(0.2),
                                 .window = std::chrono::duration<double>(5 * flags_.seconds)};
    return repeat(flags_.run.repeats, [&] {
      progress_.add(1);
      return 1e6 / measure_throughput(load).tokens_per_second;
    });
  }

  // Every worker reads prompts of its own, one after the other, in steps of as many rows as the
  // server would choose; in turn with the best batch that decodes, and with the most rows.
  void measure_prompt(const MeasuredBatch& best) {
    const int workers = flags_.run.workers;
    const std::int64_t length = sequence_plan(model_->config()).tokens;
    const auto most = static_cast<int>(model_->most_prompt_rows());
    const PromptRows chosen = measure_prompt_rows(*model_, most, SteadyClock());
    WorkerSequences readers(*model_, workers, 1);
    WorkerSequences decoders(*model_, workers, static_cast<std::size_t>(best.rows));
    // Seconds a token of all workers.
    const auto read = [&](int rows, std::int64_t times) {
      for (int w = 0; w < workers; ++w) {
        readers[w].read_in_steps_of(static_cast<std::size_t>(rows));
      }
      const double seconds = readers.run([&](Sequences& own, int) {
        for (std::int64_t i = 0; i < times; ++i) own.read_random(length);
      });
      return seconds / static_cast<double>(length * times * workers);
    };
    const auto decode = [&](std::int64_t steps) {
      decoders.start();
      return decoders.generate(steps) / static_cast<double>(steps * best.rows * workers);
    };
    read(most, 1);  // touches all memory
    const double once = read(chosen.rows, 1) * static_cast<double>(length * workers);
    const std::int64_t times = std::max<std::int64_t>(std::llround(flags_.seconds / once), 1);
    const std::int64_t steps = steps_for(decode(5) * best.rows * workers);
    std::vector<double> rates, of_most, over_most, over_decoding, over_bound;
    for (int r = 0; r < flags_.run.repeats; ++r) {
      const double chosen_token = read(chosen.rows, times);
      const double decoded_token = decode(steps);
      const double most_token = chosen.rows == most ? chosen_token : read(most, times);
      rates.push_back(1 / chosen_token);
      of_most.push_back(1 / most_token);
      over_most.push_back(most_token / chosen_token);
      over_decoding.push_back(decoded_token / chosen_token);
      over_bound.push_back(1 / chosen_token / best.bound_tokens_per_second.median);
      progress_.add(1);
    }
    const Summary rate = summarize(rates);
    const Summary over = summarize(over_decoding);
    Table table{.title = "Reading prompts",
                .columns = {"prompt", "rows a step", "tokens/s", "of decoding in the best batch",
                            "of products alone there"}};
    table.rows.push_back({Cell::text(std::to_string(length) + " tokens, one a worker"),
                          Cell::text(std::to_string(chosen.rows)), Cell::measured(rate, 4),
                          Cell::measured(over, 2), Cell::measured(summarize(over_bound), 2)});
    if (chosen.rows != most) {
      table.rows.push_back({Cell::text("the same"), Cell::text(std::to_string(most)),
                            Cell::measured(summarize(of_most), 4), Cell::none(), Cell::none()});
      table.notes.push_back("In turn, the chosen rows against the most: " +
                            Cell::measured(summarize(over_most), 2).to_text() + " times.");
    }
    table.notes.push_back(
        "Rows as a server chooses them when it loads the model: " + chosen.to_text() + ".");
    measurement_.add(std::move(table));
    measurement_.add("prompt_rows", chosen.rows);
    measurement_.add("prompt_tokens_per_s", rate.median);
    measurement_.add("prompt_over_decode", over.median);
    measurement_.add("prompt_over_bound", median(over_bound));
  }

  // Compares the likelihood of narrower weights.
  void compare_likelihood() {
    const double f32 =
        bits_per_dim(*loaded_.files.load(WeightType::kF32), images_, flags_.run.workers);
    const double own = bits_per_dim(*model_, images_, flags_.run.workers);
    const std::string type = to_string(flags_.run.weight_type);
    Table table{.title = "Bits/dim of " + std::to_string(images_.size()) + " images",
                .columns = {"", "f32", type, "rise"},
                .rows = {{Cell::text(loaded_.files.name()), Cell::number(f32, 5),
                          Cell::number(own, 5), Cell::text(format_difference(own - f32))}}};
    measurement_.add(std::move(table));
    measurement_.add("bits_per_dim_f32", f32);
    measurement_.add("bits_per_dim", own);
  }

  static std::string format_difference(double difference) {
    char text[32];
    std::snprintf(text, sizeof text, "%+.5f", difference);
    return text;
  }

  const SpeedFlags& flags_;
  const LoadedModel loaded_;
  const std::shared_ptr<const Transformer> model_;
  const std::vector<GrayImage> images_;
  Measurement measurement_;
  cli::Progress progress_;
};

}  // namespace

void add_speed(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<SpeedExperiment, SpeedFlags>(
      app, command_line, "speed", "Throughput and latency against what the machine allows",
      kSpeedFooter);
  flags->model.add_to(command);
  flags->images.add_to(command,
                       "Images to tell bits/dim of, in f32 and in --weight-type; IDX or PNG");
  cli::add_parsed(command, "--seconds", flags->seconds, positive_number(3600), "SECONDS",
                  "Of one measurement [0.4]");
  flags->run.add_to(command, {8, 16, 24, 32, 64},
                    "Rows that a worker steps together; of several the best counts");
}

}  // namespace lintel::bench
