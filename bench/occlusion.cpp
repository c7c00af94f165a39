// SPDX-License-Identifier: Apache-2.0
// Half-occluded digits: how long their completion takes, and whether they can still be read.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>

#include "bench/classifier.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "client/cli/output.h"
#include "client/image/image_file.h"
#include "model/config/config.h"

namespace lintel::bench {
namespace {

constexpr const char* kOcclusionFooter = R"(
The first half of the pixels is given, in raster order, and the model draws the others. One at a
time: one image after the other on one thread, the clock read after each number of images. In a
batch: all workers. A classifier then names the digits of --judge completions; it is a small network
of weights/mnist-classifier, whose card states its own accuracy. Without --model, all of WEIGHTS
that are called mnist-NAME-small run, linear first.

Examples:
  lintel-bench occlusion --images t10k-images-idx3-ubyte.gz --labels t10k-labels-idx1-ubyte.gz
  lintel-bench occlusion --images t10k-images-idx3-ubyte.gz --model my-linear --model my-softmax)";

struct OcclusionFlags {
  RunFlags run;
  std::string images, labels;
  std::string weights = "weights";
  std::vector<std::string> models;
  std::string classifier = "weights/mnist-classifier";
  std::vector<int> counts = {100, 200, 300};
  int judge = 600;
  std::uint64_t seed = 1;
};

// Directories of small models, linear first.
std::vector<std::string> small_models(const std::string& weights) {
  std::vector<std::string> found;
  if (std::filesystem::is_directory(weights)) {
    for (const auto& entry : std::filesystem::directory_iterator(weights)) {
      const std::string name = entry.path().filename().string();
      const bool is_small = name.starts_with("mnist-") && name.ends_with("-small");
      if (is_small && exists(entry.path() / "model.safetensors")) found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  std::ranges::stable_partition(
      found, [](const std::string& path) { return path.ends_with("/mnist-linear-small"); });
  if (found.empty()) throw cli::Failure("--weights " + weights + ": no mnist-NAME-small in it");
  return found;
}

struct Model {
  std::string name;
  std::shared_ptr<const Transformer> transformer;
};

struct Timed {
  Model model;
  std::vector<Summary> one_at_a_time;  // seconds, by count
  std::vector<Summary> in_batch;
  std::vector<GrayImage> completed;  // --judge of them
};

class OcclusionExperiment {
 public:
  OcclusionExperiment(const OcclusionFlags& flags, cli::Console& console)
      : flags_(flags),
        models_(load_all(flags)),
        measurement_(flags.run, "occlusion",
                     describe(models_[0].name, models_[0].transformer->config()), console),
        progress_(console, 0, "images") {
    const ModelConfig& config = models_[0].transformer->config();
    for (const Model& model : models_) {
      if (model.transformer->config().max_tokens() == config.max_tokens()) continue;
      throw cli::UsageError("--model: " + models_[0].name + " and " + model.name +
                            " are of images of different sizes");
    }
    images_ = read_images(flags.images, config.image.height, config.image.width);
    given_ = static_cast<std::size_t>(config.max_tokens()) / 2;
    const int most = std::max(flags.counts.back(), flags.judge);
    if (std::cmp_less(images_.size(), most)) {
      throw cli::Failure(flags.images + ": " + std::to_string(images_.size()) +
                         " images, expected " + std::to_string(most));
    }
    if (flags.labels.empty()) return;
    labels_ = read_idx_labels(flags.labels);
    if (labels_.size() != images_.size()) {
      throw cli::Failure(flags.labels + ": " + std::to_string(labels_.size()) + " labels for " +
                         std::to_string(images_.size()) + " images");
    }
    labels_.resize(static_cast<std::size_t>(flags.judge));
    classifier_ = std::make_unique<Classifier>(flags.classifier);
  }

  int run() {
    std::vector<Timed> all;
    for (const Model& model : models_) all.push_back(measure(model));
    for (const bool batched : {false, true}) measurement_.add(time_table(all, batched));
    if (classifier_ != nullptr) measurement_.add(accuracy_table(all));
    measurement_.add(published_table());
    return measurement_.publish();
  }

 private:
  static std::vector<Model> load_all(const OcclusionFlags& flags) {
    std::vector<Model> models;
    for (const std::string& directory :
         flags.models.empty() ? small_models(flags.weights) : flags.models) {
      const ModelFiles files{std::filesystem::path(directory)};
      models.push_back({files.name(), files.load(flags.run.weight_type)});
      if (models.back().transformer->config().modality != ModalityKind::kImage) {
        throw cli::UsageError("--model " + directory + ": not a model of images");
      }
    }
    return models;
  }

  CompletionOptions options(int workers, int batch) {
    return {.given = given_,
            .workers = workers,
            .batch = batch,
            .seed = flags_.seed,
            .on_progress = [this](std::size_t images) {
              const std::lock_guard lock(progress_mutex_);
              progress_.add(static_cast<std::int64_t>(images));
            }};
  }

  Timed measure(const Model& model) {
    Timed timed{.model = model};
    const auto first = [this](int count) {
      return std::span(images_).first(static_cast<std::size_t>(count));
    };
    const std::size_t counts = flags_.counts.size();
    std::vector<std::vector<double>> alone(counts);
    for (int r = 0; r < flags_.run.repeats; ++r) {
      double seconds = 0;
      int done = 0;
      for (std::size_t i = 0; i < counts; ++i) {
        const auto next = first(flags_.counts[i]).subspan(static_cast<std::size_t>(done));
        seconds += seconds_of([&] { complete(*model.transformer, next, options(1, /*batch=*/1)); });
        done = flags_.counts[i];
        alone[i].push_back(seconds);
      }
    }
    const int batch = flags_.run.batch.back();
    for (std::size_t i = 0; i < counts; ++i) {
      timed.one_at_a_time.push_back(summarize(alone[i]));
      timed.in_batch.push_back(repeat(flags_.run.repeats, [&] {
        return seconds_of([&] {
          complete(*model.transformer, first(flags_.counts[i]), options(flags_.run.workers, batch));
        });
      }));
    }
    if (classifier_ != nullptr) {
      timed.completed =
          complete(*model.transformer, first(flags_.judge), options(flags_.run.workers, batch));
    }
    return timed;
  }

  Table time_table(const std::vector<Timed>& all, bool batched) const {
    const std::string how = batched ? "in a batch" : "one at a time";
    Table table{.title = "Seconds to complete half-occluded images, " + how,
                .columns = {"model", "attention"},
                .notes = {std::to_string(given_) + " tokens of each image are given."}};
    for (const int count : flags_.counts) {
      table.columns.push_back(std::to_string(count) + " images");
    }
    table.columns.push_back("to " + all[0].model.name + "'s");
    const auto times = [batched](const Timed& timed) {
      return batched ? timed.in_batch : timed.one_at_a_time;
    };
    for (const Timed& timed : all) {
      std::vector<Cell> row = {Cell::text(timed.model.name),
                               Cell::text(attention_names(timed.model.transformer->config()))};
      for (const Summary& seconds : times(timed)) row.push_back(Cell::measured(seconds));
      row.push_back(Cell::number(times(timed).back().median / times(all[0]).back().median));
      table.rows.push_back(std::move(row));
    }
    return table;
  }

  Table accuracy_table(const std::vector<Timed>& all) const {
    Table table{
        .title = "Accuracy of a digit classifier on " + std::to_string(flags_.judge) + " images",
        .columns = {"images", "accuracy, %", "standard error"},
        .notes = {
            "Classifier: " + ModelFiles(flags_.classifier).name() +
                ", trained on whole training images; its card states its accuracy. Seed " +
                std::to_string(flags_.seed) + ".",
            "Completions tell these models apart, not their kinds of attention: how long each "
            "was trained its card says."}};
    const auto add = [&](const std::string& name, std::span<const GrayImage> images) {
      const double share = accuracy(*classifier_, images, labels_);
      const double error = std::sqrt(share * (1 - share) / static_cast<double>(images.size()));
      table.rows.push_back(
          {Cell::text(name), Cell::number(100 * share), Cell::number(100 * error, 2)});
    };
    const auto judged = std::span(images_).first(static_cast<std::size_t>(flags_.judge));
    add("whole, as they are", judged);
    std::vector<GrayImage> halves(judged.begin(), judged.end());
    for (GrayImage& image : halves) {
      std::fill(image.pixels.begin() + static_cast<std::ptrdiff_t>(given_), image.pixels.end(),
                std::uint8_t{0});
    }
    add("the given half, the rest black", halves);
    for (const Timed& timed : all) {
      add("completed by " + timed.model.name, timed.completed);
    }
    return table;
  }

  static Table published_table() {
    return {.title = "The same, published",
            .columns = {"attention", "s for 100 images", "accuracy on 600, %"},
            .rows = {{Cell::text("linear"), Cell::number(33.45, 4), Cell::number(87, 2)},
                     {Cell::text("softmax"), Cell::number(367.91, 5), Cell::number(86.3)}},
            .notes = {"Half-occluded MNIST digits on a Colab GPU, with larger models and another "
                      "classifier. Not measured here."},
            .measured_here = false};
  }

  const OcclusionFlags& flags_;
  const std::vector<Model> models_;
  Measurement measurement_;
  cli::Progress progress_;
  std::mutex progress_mutex_;
  std::vector<GrayImage> images_;
  std::vector<std::uint8_t> labels_;  // of the images that are judged
  std::unique_ptr<Classifier> classifier_;
  std::size_t given_ = 0;
};

}  // namespace

void add_occlusion(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<OcclusionExperiment, OcclusionFlags>(
      app, command_line, "occlusion", "Complete half-occluded digits by every kind of attention",
      kOcclusionFooter);
  cli::add_text(command, "--images", flags->images, "FILE", "Digits, IDX or PNG")->required();
  cli::add_text(command, "--labels", flags->labels, "FILE",
                "Their labels, IDX; required for the accuracy");
  command
      .add_option("--model", flags->models,
                  "Model of images; more than once: the others are compared with the first")
      ->type_name("DIR");
  cli::add_text(command, "--weights", flags->weights, "DIR",
                "Where models are looked for without --model")
      ->capture_default_str();
  cli::add_text(command, "--classifier", flags->classifier, "DIR", "Network that names digits")
      ->capture_default_str();
  cli::add_parsed(command, "--counts", flags->counts, parse_counts, "N[,N...]",
                  "How many images are completed [100,200,300]");
  cli::add_parsed(command, "--judge", flags->judge, whole_number(), "N",
                  "Completions that the classifier names [600]");
  cli::add_parsed(command, "--seed", flags->seed, cli::parse_uint64, "N",
                  "Image i is completed with this seed + i [1]");
  flags->run.repeats = 3;
  flags->run.add_to(command, {64}, "Images a worker completes together");
}

}  // namespace lintel::bench
