// SPDX-License-Identifier: Apache-2.0
// Sequences that one worker generates side by side: what the server's worker does, without the
// server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "lintel/v1/model.pb.h"
#include "model/config/config.h"
#include "model/transformer.h"

namespace lintel::bench {

// The length of one sequence of a model: images end of themselves, texts do not.

// Tokens of a sequence that has no end of its own.
constexpr std::int64_t kEndlessTokens = 1024;

struct SequencePlan {
  std::optional<std::int32_t> first_token;  // to give; none: the model's start token is the first
  std::int64_t tokens = 0;                  // to generate after the first
  bool ends_itself = true;  // after so many, because the model has no more positions
};

SequencePlan sequence_plan(const ModelConfig& config);
// The plan for a remote server, from its API.
SequencePlan sequence_plan(const v1::Model& model);

// One thread at a time. The model outlives it.
class Sequences {
 public:
  // Up to `count` at a time, which have the adapters in turn; empty: none.
  Sequences(const Transformer& model, std::size_t count,
            std::span<const std::shared_ptr<const Adapter>> adapters = {});

  // `count` sequences, empty but for their first token, which is given. Sequence i draws with seed
  // `seed` + i. REQUIRES: `count` is at most the constructor's.
  void start(std::size_t count, std::uint64_t seed);
  // Rows of a step that reads; the model's most_prompt_rows() at most, and unless this is called.
  void read_in_steps_of(std::size_t rows);
  // Sequence i reads `tokens` after what it has read, and draws the token after them.
  // REQUIRES: not empty.
  void read(std::size_t i, std::span<const std::int32_t> tokens);
  // Every sequence is reset and reads the same `count` random tokens. One sequence reads them, the
  // others are copies.
  void read_random(std::int64_t count);
  // Each sequence feeds its last token and draws the next, `steps` times.
  void generate(std::int64_t steps);

  // See Workspace::observe.
  void observe(StepObserver* observer) { workspace_.observe(observer); }

  std::size_t bytes() const;  // of the first one's state
  std::int64_t position() const { return sequences_.front().position(); }
  // Tokens of sequence i that were drawn since it started.
  const std::vector<std::int32_t>& drawn(std::size_t i) const { return drawn_[i]; }

 private:
  void draw(std::size_t i, std::span<const float> output);

  const Transformer& model_;
  Workspace workspace_;
  SamplingOptions sampling_;
  SamplingScratch scratch_;
  std::size_t prompt_rows_;
  std::uint64_t seed_ = 0;
  std::size_t count_ = 0;                         // in use
  std::vector<SequenceState> sequences_;          // [most]
  std::vector<std::vector<std::int32_t>> drawn_;  // [most]
  std::vector<BatchRow> rows_;
};

// Sequences of several workers, which work on them at the same time.
class WorkerSequences {
 public:
  // `count`: of each worker; `adapters`: see Sequences.
  WorkerSequences(const Transformer& model, int workers, std::size_t count,
                  std::span<const std::shared_ptr<const Adapter>> adapters = {});

  Sequences& operator[](int worker) { return *all_[static_cast<std::size_t>(worker)]; }
  // All sequences of a worker, see Sequences::start. Sequence i of worker w draws with seed
  // (w << 32) + i.
  void start(int worker);
  void start();  // of all workers
  // Seconds in which work(sequences of w, w) of all workers is done: see run_on_workers.
  double run(const std::function<void(Sequences&, int worker)>& work);
  // The same of Sequences::generate.
  double generate(std::int64_t steps);

 private:
  const std::size_t count_;
  std::vector<std::unique_ptr<Sequences>> all_;  // by worker
};

// Model shapes that are compared, and where their weights come from.

// A model of the literature: Katharopoulos et al. 2020, section 4.2, and the small one of weights/.
struct Shape {
  std::string name;    // "mnist"
  ModelConfig config;  // with linear attention
  int lsh_bits = 32;   // half the buckets of a round
  int lsh_chunk = 32;

  // The value of --attention: LSH as the paper ran it.
  std::string lsh_spec(int rounds) const;
};

// "mnist", "cifar10", "mnist-small". Throws cli::UsageError for another name.
Shape find_shape(const std::string& name);

// A model directory, or one with random weights that lives as long as this.
class ModelFiles {
 public:
  explicit ModelFiles(std::filesystem::path directory);  // existing files
  // Random weights in the system's temporary directory.
  explicit ModelFiles(const ModelConfig& config);

  const std::filesystem::path& directory() const { return directory_; }
  bool random() const { return scratch_.has_value(); }
  std::string name() const;  // "random weights" or the directory's name
  // `attention` empty: the model's own. Throws ModelError.
  std::shared_ptr<const Transformer> load(WeightType weight_type,
                                          const std::string& attention = "") const;

 private:
  std::optional<ScratchDirectory> scratch_;
  std::filesystem::path directory_;
};

// "mnist: 8 layers, 8 heads of 32, d_model 256, feed-forward 1024, 784 tokens"
std::string describe(const std::string& name, const ModelConfig& config);

}  // namespace lintel::bench
