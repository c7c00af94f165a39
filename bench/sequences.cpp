// SPDX-License-Identifier: Apache-2.0
#include "bench/sequences.h"

#include <algorithm>
#include <cassert>

#include "bench/measure.h"
#include "client/cli/console.h"
#include "model/config/attention_spec.h"
#include "model/core/errors.h"
#include "model/model_files.h"

namespace lintel::bench {
namespace {

SequencePlan plan(bool has_start_token, std::int64_t vocab_size, std::int64_t max_length) {
  SequencePlan plan;
  // The first token of a model of bytes: the first character of a line.
  if (!has_start_token) plan.first_token = std::min<std::int64_t>('\n', vocab_size - 1);
  plan.ends_itself = max_length > 0;
  plan.tokens = plan.ends_itself ? max_length : kEndlessTokens;
  return plan;
}

ModelConfig image_config(int layers, int heads, ImageShape image) {
  ModelConfig config;
  config.vocab_size = 256;
  config.max_length = image.num_tokens() - 1;
  config.n_layers = layers;
  config.n_heads = heads;
  config.d_head = 32;
  config.d_model = heads * config.d_head;
  config.d_ff = 4 * config.d_model;
  config.attention.assign(static_cast<std::size_t>(layers), attention_of("linear"));
  config.head = HeadKind::kMixtureOfLogistics;
  config.mixtures = 10;
  config.modality = ModalityKind::kImage;
  config.image = image;
  return config;
}

std::vector<Shape> all_shapes() {
  constexpr ImageShape kMnist{.height = 28, .width = 28, .channels = 1, .start_token = 0};
  constexpr ImageShape kCifar{.height = 32, .width = 32, .channels = 3, .start_token = 0};
  ModelConfig small = image_config(4, 4, kMnist);  // as weights/mnist-linear-small
  small.norm_placement = NormPlacement::kPre;
  small.embedding = EmbeddingKind::kValueAddPosition;
  small.head = HeadKind::kCategorical;
  small.mixtures = 0;
  // The paper's Reformer: 64 buckets; chunks of 29 and of 37 positions.
  return {{.name = "mnist", .config = image_config(8, 8, kMnist), .lsh_chunk = 29},
          {.name = "cifar10", .config = image_config(16, 8, kCifar), .lsh_chunk = 37},
          {.name = "mnist-small", .config = small, .lsh_chunk = 29}};
}

}  // namespace

SequencePlan sequence_plan(const ModelConfig& config) {
  return plan(config.modality == ModalityKind::kImage, config.vocab_size, config.max_length);
}

SequencePlan sequence_plan(const v1::Model& model) {
  return plan(model.image().has_start_token(), model.vocab_size(), model.max_length());
}

Sequences::Sequences(const Transformer& model, std::size_t count,
                     std::span<const std::shared_ptr<const Adapter>> adapters)
    : model_(model),
      workspace_(model.new_workspace(std::max(count, model.most_prompt_rows()))),
      prompt_rows_(model.most_prompt_rows()),
      drawn_(count) {
  for (std::size_t i = 0; i < count; ++i) {
    sequences_.push_back(
        model.new_sequence(adapters.empty() ? nullptr : adapters[i % adapters.size()]));
  }
  start(count, 0);
}

void Sequences::start(std::size_t count, std::uint64_t seed) {
  assert(count >= 1 && count <= sequences_.size());
  count_ = count;
  seed_ = seed;
  const std::int32_t first_token =
      sequence_plan(model_.config()).first_token.value_or(model_.config().image.start_token);
  for (std::size_t i = 0; i < count; ++i) {
    sequences_[i].reset();
    sequences_[i].pending = first_token;
    drawn_[i].clear();
  }
}

void Sequences::draw(std::size_t i, std::span<const float> output) {
  const DrawSource draw{.seed = seed_ + i, .position = sequences_[i].position()};
  const std::int32_t token = model_.head().sample(output, sampling_, {}, {}, draw, scratch_);
  sequences_[i].pending = token;
  drawn_[i].push_back(token);
}

void Sequences::read_in_steps_of(std::size_t rows) {
  assert(rows >= 1 && rows <= workspace_.max_rows());
  prompt_rows_ = rows;
}

void Sequences::read(std::size_t i, std::span<const std::int32_t> tokens) {
  assert(!tokens.empty());
  sequences_[i].pending.reset();
  for (std::size_t begin = 0; begin < tokens.size(); begin += prompt_rows_) {
    const std::size_t end = std::min(begin + prompt_rows_, tokens.size());
    rows_.clear();
    for (std::size_t t = begin; t < end; ++t) {
      rows_.push_back(
          {.token = tokens[t], .sequence = &sequences_[i], .wants_output = t + 1 == tokens.size()});
    }
    const auto outputs = model_.step(rows_, workspace_);
    if (end == tokens.size()) draw(i, outputs.row(0));
  }
}

void Sequences::read_random(std::int64_t count) {
  start(count_, seed_);
  std::vector<std::int32_t> tokens(prompt_rows_);
  for (std::int64_t position = 0; position < count;) {
    const auto n = std::min(count - position, static_cast<std::int64_t>(prompt_rows_));
    for (std::int64_t t = 0; t < n; ++t) {
      const DrawSource draw{.seed = seed_, .position = position + t};
      tokens[static_cast<std::size_t>(t)] =
          static_cast<std::int32_t>(draw.uniform(0) * model_.config().vocab_size);
    }
    rows_.clear();
    for (std::int64_t t = 0; t < n; ++t) {
      rows_.push_back({tokens[static_cast<std::size_t>(t)], &sequences_.front(), false});
    }
    model_.step(rows_, workspace_);
    position += n;
  }
  for (std::size_t i = 1; i < count_; ++i) sequences_[i] = sequences_.front().clone();
}

void Sequences::generate(std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) {
    rows_.clear();
    for (std::size_t i = 0; i < count_; ++i) {
      rows_.push_back({*sequences_[i].pending, &sequences_[i], true});
    }
    const auto outputs = model_.step(rows_, workspace_);
    for (std::size_t i = 0; i < count_; ++i) draw(i, outputs.row(i));
  }
}

std::size_t Sequences::bytes() const { return sequences_.front().bytes(); }

WorkerSequences::WorkerSequences(const Transformer& model, int workers, std::size_t count,
                                 std::span<const std::shared_ptr<const Adapter>> adapters)
    : count_(count) {
  for (int w = 0; w < workers; ++w) {
    all_.push_back(std::make_unique<Sequences>(model, count, adapters));
  }
}

void WorkerSequences::start(int worker) {
  (*this)[worker].start(count_, static_cast<std::uint64_t>(worker) << 32);
}

void WorkerSequences::start() {
  for (int w = 0; w < static_cast<int>(all_.size()); ++w) start(w);
}

double WorkerSequences::run(const std::function<void(Sequences&, int)>& work) {
  return run_on_workers(static_cast<int>(all_.size()), [&](int w) { work((*this)[w], w); });
}

double WorkerSequences::generate(std::int64_t steps) {
  return run([steps](Sequences& own, int) { own.generate(steps); });
}

std::string Shape::lsh_spec(int rounds) const {
  return "lsh:rounds=" + std::to_string(rounds) + ",bits=" + std::to_string(lsh_bits) +
         ",chunk_size=" + std::to_string(lsh_chunk);
}

Shape find_shape(const std::string& name) {
  std::string known;
  for (const Shape& shape : all_shapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  throw cli::UsageError("--shape '" + name + "': expected one of " + known);
}

ModelFiles::ModelFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}

ModelFiles::ModelFiles(const ModelConfig& config)
    : scratch_(std::in_place, std::filesystem::temp_directory_path()),
      directory_(scratch_->path()) {
  // Small enough that activations stay of order one in sums over d_model.
  write_random_model(directory_, config, /*seed=*/1, /*scale=*/0.05f);
}

std::string ModelFiles::name() const {
  if (random()) return "random weights";
  // "weights/a/" has an empty last component.
  return directory_.has_filename() ? directory_.filename().string()
                                   : directory_.parent_path().filename().string();
}

std::shared_ptr<const Transformer> ModelFiles::load(WeightType weight_type,
                                                    const std::string& attention) const {
  Transformer::Options options{.weight_type = weight_type, .attention = std::nullopt};
  if (!attention.empty()) options.attention = parse_attention_spec(attention);
  const lintel::ModelFiles files(directory_);
  if (files.family() != nullptr) {
    throw ModelError(directory_.string() + ": a checkpoint of family " + files.config().family +
                     "; lintel-bench measures models of Lintel's own format only");
  }
  return Transformer::load(files, options);
}

std::string describe(const std::string& name, const ModelConfig& config) {
  std::string text = name + ": " + std::to_string(config.n_layers) + " layers, " +
                     std::to_string(config.n_heads) + " heads of " + std::to_string(config.d_head) +
                     ", d_model " + std::to_string(config.d_model) + ", feed-forward " +
                     std::to_string(config.d_ff);
  if (config.max_tokens() > 0) text += ", " + std::to_string(config.max_tokens()) + " tokens";
  return text;
}

}  // namespace lintel::bench
