// SPDX-License-Identifier: Apache-2.0
// The tables of Katharopoulos et al. 2020, section 4.2, from our own code.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/attentions.h"
#include "bench/bounds.h"
#include "bench/commands.h"
#include "bench/generation_speed.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "client/cli/output.h"

namespace lintel::bench {
namespace {

// Figures of the literature, to stand beside ours.

struct PublishedRow {
  const char* attention;
  double bits_per_dim;
  double images_per_second;  // in a batch
  double gpu_seconds;        // alone
  double cpu_seconds;
};

const std::vector<PublishedRow>& rows_of(const std::string& shape) {
  static const std::vector<PublishedRow> kMnist = {
      {"softmax recompute", 0.621, 0.45, 10.2, 72.6},
      {"softmax cached", 0.621, 7.56, 10.4, 7.4},
      {"LSH-1 recompute", 0.745, 0.68, 19.2, 46.0},
      {"LSH-4 recompute", 0.676, 0.27, 55.8, 112.0},
      {"linear", 0.644, 142.8, 7.3, 5.5},
  };
  static const std::vector<PublishedRow> kCifar = {
      {"softmax recompute", 3.47, 0.004, 300.1, 8651.4},
      {"softmax cached", 3.47, 0.32, 70.4, 71.9},
      {"LSH-1 recompute", 3.39, 0.015, 221.6, 2318.9},
      {"LSH-4 recompute", 3.51, 0.005, 683.9, 5263.7},
      {"linear", 3.40, 17.85, 61.3, 45.1},
  };
  static const std::vector<PublishedRow> kNone;
  return shape == "mnist" ? kMnist : shape == "cifar10" ? kCifar : kNone;
}

// The value with the digits it was printed with.
Cell as_published(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  const std::string_view digits(text);
  const std::size_t first = std::min(digits.find_first_not_of("0."), digits.size());
  const auto significant = std::count_if(digits.begin() + static_cast<std::ptrdiff_t>(first),
                                         digits.end(), [](char c) { return c != '.'; });
  return Cell::number(value, static_cast<int>(significant));
}

// Katharopoulos et al. 2020, tables 1, 2, 4 and 5, for a shape; nothing for a shape it has not.
std::optional<Table> published_generation(const std::string& shape) {
  const std::vector<PublishedRow>& rows = rows_of(shape);
  if (rows.empty()) return std::nullopt;
  Table table{
      .title = "The same in the paper, " + shape,
      .columns = {"attention", "bits/dim", "images/s in a batch, GPU", "s/image alone, GPU",
                  "s/image alone, CPU", "images/s to linear's", "CPU s to linear's"},
      .notes = {"Katharopoulos et al. 2020, tables 1, 2, 4 and 5, PyTorch on their hardware: "
                "a GPU (an NVIDIA P40 with 24 GB is named as the largest) and a CPU that is "
                "not named. Not measured here."},
      .measured_here = false};
  const PublishedRow& linear = rows.back();
  for (const PublishedRow& row : rows) {
    table.rows.push_back({Cell::text(row.attention), as_published(row.bits_per_dim),
                          as_published(row.images_per_second), as_published(row.gpu_seconds),
                          as_published(row.cpu_seconds),
                          Cell::number(row.images_per_second / linear.images_per_second, 2),
                          Cell::number(row.cpu_seconds / linear.cpu_seconds, 2)});
  }
  return table;
}

constexpr const char* kPaperFooter = R"(
Rows are kinds of attention, or those that --attention names; "recompute" rows run the whole prefix
again for every token, as published code of these kinds does. Every row runs the same shape with its
own trained weights where they exist (in WEIGHTS: mnist-linear, mnist-softmax, mnist-lsh1 and so on;
with -small for shape mnist-small), else with the same random ones: speed does not depend on them.
bits/dim is of trained weights only, of one size for all rows: the shape's where every kind has
weights of it, else the small one. The models are named.

Recompute rows, and every row of a sequence longer than --whole-up-to, are measured at --positions
positions and integrated. In recompute mode the rows of a batch run one after the other; the batch
is then one sequence a worker.

Examples:
  lintel-bench paper --images t10k-images-idx3-ubyte.gz
  lintel-bench paper --shape cifar10 --batch 16 --repeats 3
  lintel-bench paper --model my-image-model --batch 1,8,64)";

struct PaperFlags {
  RunFlags run;
  std::string shape = "mnist";
  std::string attention = "all";
  std::string model;
  std::string weights = "weights";
  ScoredImages images;
  int positions = 16;
  int whole_up_to = 1024;
};

struct Row {
  NamedAttention attention;
  bool recompute = false;

  std::string title() const {
    if (!recompute) return attention.title;
    return attention.name == "softmax" ? "softmax recompute" : attention.title + " recompute";
  }
};

// Recompute rows first, linear last.
std::vector<Row> rows_of(const Shape& shape, const std::string& names) {
  std::vector<Row> rows;
  std::vector<NamedAttention> all = find_attentions(shape, "--attention", names);
  std::ranges::stable_partition(all, [](const NamedAttention& a) { return a.name != "linear"; });
  for (const NamedAttention& attention : all) {
    if (attention.recomputes) rows.push_back({attention, true});
  }
  for (const NamedAttention& attention : all) rows.push_back({attention, false});
  return rows;
}

// The origin of the weights of each row.
class Weights {
 public:
  Weights(const PaperFlags& flags, const Shape& shape, const std::vector<Row>& rows)
      : directory_(flags.weights), shape_(shape.name), any_model_(!flags.model.empty()) {
    if (any_model_) {
      shared_ = std::make_unique<ModelFiles>(std::filesystem::path(flags.model));
    } else {
      shared_ = std::make_unique<ModelFiles>(shape.config);
    }
    for (const Row& row : rows) all_trained_ &= exists(path_of(row.attention.name, is_small()));
  }

  // The files of the shape, and the attention that turns them into a row's.
  std::pair<const ModelFiles*, std::string> files(const Row& row) {
    const std::string& name = row.attention.name;
    if (!any_model_ && !trained_.contains(name)) {
      const auto path = path_of(name, is_small());
      trained_[name] = exists(path) ? std::make_unique<ModelFiles>(path) : nullptr;
    }
    const auto found = trained_.find(name);
    const bool trained = found != trained_.end() && found->second;
    const std::string& spec = row.attention.spec;
    const std::string wanted = trained ? type_of(spec) : spec;  // the keys it was trained with
    return {trained ? found->second.get() : shared_.get(),
            row.recompute ? recomputing(wanted) : wanted};
  }

  // Trained for this kind of attention, of one size for all kinds: the shape's where each has
  // weights of it, else the small one. Null where there is none.
  std::unique_ptr<ModelFiles> to_score(const std::string& type) const {
    const auto path = path_of(type, is_small() || !all_trained_);
    return !any_model_ && exists(path) ? std::make_unique<ModelFiles>(path) : nullptr;
  }

 private:
  bool is_small() const { return shape_.ends_with("-small"); }
  // "weights/mnist-linear", "weights/mnist-linear-small"
  std::filesystem::path path_of(const std::string& type, bool small) const {
    const std::string base = shape_.substr(0, shape_.find('-'));
    return directory_ / (base + "-" + type + (small ? "-small" : ""));
  }
  static bool exists(const std::filesystem::path& path) {
    return std::filesystem::exists(path / "model.safetensors");
  }

  const std::filesystem::path directory_;
  const std::string shape_;
  const bool any_model_;
  bool all_trained_ = true;  // weights of the shape are there for every kind
  std::unique_ptr<ModelFiles> shared_;
  std::map<std::string, std::unique_ptr<ModelFiles>> trained_;  // null: none
};

struct Measured {
  Row row;
  std::string weights;
  std::optional<double> bits_per_dim;
  std::string scored;  // the model whose bits/dim it is
  GenerationSpeed batch;
  int best_batch = 0;
  GenerationSpeed alone;
};

class Paper {
 public:
  Paper(const PaperFlags& flags, cli::Console& console)
      : flags_(flags),
        shape_(flags.model.empty() ? find_shape(flags.shape) : shape_of(flags.model)),
        rows_(rows_of(shape_, flags.attention)),
        weights_(flags, shape_, rows_),
        measurement_(flags.run, "paper", describe(shape_.name, shape_.config), console),
        progress_(console, 0, "measurements"),
        images_(flags.images.read(shape_.config.image)) {}

  int run() {
    std::vector<Measured> all;
    for (const Row& row : rows_) all.push_back(measure(row));
    measurement_.add(table_of(all));
    if (auto published = published_generation(shape_.name)) measurement_.add(std::move(*published));
    measurement_.add(bandwidth_table());
    return measurement_.publish();
  }

 private:
  // A model of the user's in place of a shape of the paper's.
  static Shape shape_of(const std::string& directory) {
    const ModelConfig config = load_config(std::filesystem::path(directory) / "config.json");
    if (config.max_length == 0) throw cli::UsageError("--model: its sequences have no end");
    return {.name = ModelFiles(std::filesystem::path(directory)).name(), .config = config};
  }

  GenerationOptions options(const Row& row) {
    const bool whole = !row.recompute && shape_.config.max_length <= flags_.whole_up_to;
    return {.repeats = flags_.run.repeats,
            .positions = whole ? 0 : flags_.positions,
            .on_progress = [this] { progress_.add(1); }};
  }

  Measured measure(const Row& row) {
    const auto [files, spec] = weights_.files(row);
    const auto model = files->load(flags_.run.weight_type, spec);
    Measured result{.row = row, .weights = files->name()};
    GenerationOptions wanted = options(row);
    result.alone = measure_generation(*model, wanted);
    wanted.workers = flags_.run.workers;
    for (const int batch : row.recompute ? std::vector<int>{1} : flags_.run.batch) {
      if (!fits(*model, row, batch)) continue;
      wanted.batch = batch;
      const GenerationSpeed speed = measure_generation(*model, wanted);
      if (result.best_batch == 0 ||
          speed.sequences_per_second().median > result.batch.sequences_per_second().median) {
        result.batch = speed;
        result.best_batch = batch;
      }
    }
    score(result);
    return result;
  }

  double all_states(std::size_t bytes_each, int batch) const {
    return static_cast<double>(bytes_each) * flags_.run.workers * batch;
  }

  // Half of the memory is for states.
  bool fits(const Transformer& model, const Row& row, int batch) {
    const double states = all_states(model.state_bytes(shape_.config.max_length), batch);
    if (states <= static_cast<double>(this_machine().memory_bytes) / 2) return true;
    notes_.push_back(row.title() + " in a batch of " + std::to_string(batch) +
                     " a worker was skipped: its states would take " +
                     format_number(states / (1 << 30), 3) + " GiB.");
    return false;
  }

  void score(Measured& result) {
    if (images_.empty() || result.row.recompute) return;
    if (!scores_.contains(result.row.attention.name)) {
      const auto files = weights_.to_score(result.row.attention.name);
      if (files == nullptr) return;
      scores_[result.row.attention.name] = {
          files->name(),
          bits_per_dim(*files->load(flags_.run.weight_type), images_, flags_.run.workers)};
    }
    std::tie(result.scored, result.bits_per_dim) = scores_[result.row.attention.name];
  }

  Table table_of(const std::vector<Measured>& all) {
    Table table{.title = "Generating images, " + shape_.name,
                .columns = {"attention", "bits/dim", "images/s in a batch", "batch a worker",
                            "s/image alone", "state at the end, bytes", "images/s to linear's",
                            "s alone to linear's"}};
    const auto linear = std::ranges::find_if(
        all, [](const Measured& m) { return m.row.attention.name == "linear"; });
    const bool compared = linear != all.end() && linear->best_batch > 0;
    for (const Measured& row : all) {
      const bool batched = row.best_batch > 0;
      table.rows.push_back(
          {Cell::text(row.row.title()),
           row.bits_per_dim ? Cell::number(*row.bits_per_dim, 4) : Cell::none(),
           batched ? Cell::measured(row.batch.sequences_per_second()) : Cell::none(),
           batched ? Cell::count(row.best_batch) : Cell::none(), Cell::measured(row.alone.seconds),
           Cell::count(static_cast<std::int64_t>(row.alone.state_bytes)),
           batched && compared ? Cell::number(row.batch.sequences_per_second().median /
                                                  linear->batch.sequences_per_second().median,
                                              2)
                               : Cell::none(),
           compared ? Cell::number(row.alone.seconds.median / linear->alone.seconds.median, 2)
                    : Cell::none()});
    }
    table.notes = notes_of(all);
    return table;
  }

  std::vector<std::string> notes_of(const std::vector<Measured>& all) {
    std::vector<std::string> notes = notes_;
    std::map<std::string, std::string> by_weights;
    std::string integrated;
    for (const Measured& row : all) {
      std::string& names = by_weights[row.weights];
      names += (names.empty() ? "" : ", ") + row.row.title();
      if (row.alone.measured_positions == 0) continue;
      integrated += (integrated.empty() ? "" : ", ") + row.row.title();
    }
    for (const auto& [weights, names] : by_weights) {
      notes.push_back("Speed with " + weights + ": " + names + ".");
    }
    for (const auto& [type, score] : scores_) {
      notes.push_back("bits/dim of " + type + ": " + score.first + ", first " +
                      std::to_string(images_.size()) + " images of the file given.");
    }
    if (scores_.size() > 1) {
      notes.push_back(
          "bits/dim tell these models apart, not their kinds of attention: how long each was "
          "trained its card says.");
    }
    if (!integrated.empty()) {
      notes.push_back("Measured at " + std::to_string(flags_.positions) +
                      " positions spread over the sequence and integrated: " + integrated + ".");
    }
    notes.push_back(
        "Alone: one sequence on one thread. In a batch: all workers, the best of the batches "
        "tried; recompute mode runs the rows of a batch one after the other.");
    return notes;
  }

  // The largest of the batches whose keys and values take no more than half of the memory, or the
  // smallest.
  int most_cached() const {
    const ModelConfig& config = shape_.config;
    const std::size_t bytes_each = 2 * sizeof(float) * static_cast<std::size_t>(config.n_layers) *
                                   static_cast<std::size_t>(config.n_heads * config.d_head) *
                                   static_cast<std::size_t>(config.max_length);
    int most = flags_.run.batch.front();
    for (const int batch : flags_.run.batch) {
      const double states = all_states(bytes_each, batch);
      if (states <= static_cast<double>(this_machine().memory_bytes) / 2) most = batch;
    }
    return most;
  }

  // The share of the memory's bandwidth that the baseline reaches.
  Table bandwidth_table() {
    const std::int64_t position = shape_.config.max_length;
    const int batch = most_cached();
    const Bandwidth measured = measure_bandwidth(shape_.config, flags_.run.workers, batch, position,
                                                 std::max(5, flags_.run.repeats));
    const auto giga = [](const Summary& s) { return Cell::measured(divided(s, 1e9)); };
    return {.title = "Cached softmax against the memory, " + shape_.name,
            .columns = {"what", "GB/s", "share of the memory's"},
            .rows = {{Cell::text("reading memory"), giga(measured.memory), Cell::none()},
                     {Cell::text("attention over keys and values at position " +
                                 std::to_string(position + 1) + ", batch " + std::to_string(batch) +
                                 " a worker"),
                      giga(measured.cached_softmax), Cell::measured(measured.share, 2)}},
            .notes = {"Measured one right after the other, " +
                      std::to_string(std::max(5, flags_.run.repeats)) +
                      " times. Attention of all layers alone, without projections; what a cache "
                      "holds of the keys and values can bring the share above 1."}};
  }

  const PaperFlags& flags_;
  const Shape shape_;
  const std::vector<Row> rows_;
  Weights weights_;
  Measurement measurement_;
  cli::Progress progress_;
  const std::vector<GrayImage> images_;
  std::map<std::string, std::pair<std::string, double>> scores_;  // by type: model, bits/dim
  std::vector<std::string> notes_;
};

}  // namespace

void add_paper(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<Paper, PaperFlags>(
      app, command_line, "paper", "Image generation by every kind of attention, as in the paper",
      kPaperFooter);
  add_shape_flag(command, flags->shape);
  cli::add_text(command, "--attention", flags->attention, "A[,A...]",
                "Kinds of attention by name, or all; an unknown name lists them")
      ->capture_default_str();
  cli::add_text(command, "--model", flags->model, "DIR",
                "An image model of yours in place of --shape; all rows run its weights");
  cli::add_text(command, "--weights", flags->weights, "DIR", "Where trained weights are looked for")
      ->capture_default_str();
  flags->images.add_to(command,
                       "Images to tell bits/dim of, IDX or PNG; without it there are none");
  cli::add_parsed(command, "--positions", flags->positions, whole_number(2), "N",
                  "Positions that are measured of what is integrated [16]");
  cli::add_parsed(command, "--whole-up-to", flags->whole_up_to, whole_number(), "N",
                  "Longest sequence of which every position is run [1024]");
  flags->run.repeats = 3;
  flags->run.add_to(command, {16, 64},
                    "Sequences a worker steps together; of several the best counts");
}

}  // namespace lintel::bench
