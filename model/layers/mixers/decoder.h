// SPDX-License-Identifier: Apache-2.0
// Decoder: a stack of mixers between an embedding and a head, what every model is made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/config/config.h"
#include "model/core/dtype.h"
#include "model/core/step_observer.h"
#include "model/core/tensor.h"
#include "model/layers/mixers/mixer.h"
#include "model/lora/adapter.h"
#include "model/ops/dense.h"
#include "model/ops/kv_type.h"

namespace lintel {

// Rows of a vocabulary, as the file holds them. Const and shareable between threads.
class TokenEmbedding {
 public:
  TokenEmbedding() = default;
  // bytes: [rows] of `width` values each, whole blocks of `type`.
  TokenEmbedding(DType type, std::size_t width, std::size_t rows);

  std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
  std::size_t size_bytes() const { return size_; }
  std::size_t width() const { return width_; }
  // out: [width]. REQUIRES: token in 0 .. rows - 1.
  void row(std::int32_t token, std::span<float> out) const;

 private:
  DType type_ = DType::kF32;
  std::size_t width_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t size_ = 0;
  AlignedArray<std::byte> bytes_;
};

// Rows of positions. Const and shareable between threads.
class PositionEmbedding {
 public:
  PositionEmbedding() = default;                            // there are none
  explicit PositionEmbedding(std::size_t sinusoidal_width)  // computed at every call
      : width_(sinusoidal_width) {
    set_frequencies();
  }
  explicit PositionEmbedding(Matrix table)  // [max_length, width]
      : width_(table.cols()), table_(std::move(table)) {}

  std::size_t width() const { return width_; }
  // out: [width]. REQUIRES: position >= 0, and in the table where there is one.
  void row(std::int64_t position, std::span<float> out) const;
  // The same, added to what is there.
  void add_row(std::int64_t position, std::span<float> out) const;

 private:
  void set_frequencies();
  // Calls body(i, value i of the position's row).
  template <typename Body>
  void for_each_part(std::int64_t position, Body&& body) const;

  std::size_t width_ = 0;
  Matrix table_;
  std::vector<double> frequencies_;  // [width / 2, rounded up] when computed
};

struct DecoderLayer {
  RowNorm token_norm;
  std::unique_ptr<const Mixer> token_mixer;
  RowNorm channel_norm;
  std::unique_ptr<const Mixer> channel_mixer;

  // The mixers in their order.
  std::array<const Mixer*, 2> mixers() const { return {token_mixer.get(), channel_mixer.get()}; }
};

struct DraftHead;

//   x = embedding[token], with its position where there are some, normed where there is an
//       input_norm
//   each layer: x += token_mixer(token_norm(x));  x += channel_mixer(channel_norm(x))
//   logits = head(final_norm(x))
//
// Where norms come after: x = token_norm(x + token_mixer(x)) and so on. Reversible models have two
// streams, x += token_mixer(token_norm(y)) and y += channel_mixer(channel_norm(x)), of which the
// mean or both side by side reach the final norm.
struct Decoder {
  WeightType weight_type = WeightType::kF32;
  std::size_t width = 0;     // E
  TokenEmbedding embedding;  // empty: the rows of `head`
  // Beside the token's row where the two are E wide together, else added to it.
  PositionEmbedding positions;
  bool has_positions_in_layers = false;  // they are added again before each layer but the first
  Matrix layer_rows;                     // [layers that run, E], added before each; empty: none
  std::optional<RowNorm> input_norm;
  std::vector<DecoderLayer> layers;
  std::vector<int> order;  // of `layers` that run, some of them several times; empty: each once
  bool has_norms_after = false;
  Residual residual = Residual::kSum;
  std::optional<RowNorm> final_norm;
  std::optional<Dense> head;                // [V, E]; empty: a step returns what it would read
  std::unique_ptr<const DraftHead> drafts;  // null: the checkpoint has none
  std::int64_t num_parameters = 0;
  std::vector<AdaptableModule> modules;
  std::optional<KvType> kv_type;  // of its KV caches; nothing: it has none

  std::size_t num_layers() const { return order.empty() ? layers.size() : order.size(); }
  const DecoderLayer& layer(std::size_t i) const {
    return layers[order.empty() ? i : static_cast<std::size_t>(order[i])];
  }
  // The states of a sequence: of each layer those of its mixers that keep one, in order.
  std::vector<std::shared_ptr<const StateLayout>> layouts() const;
  std::vector<const Dense*> products() const;
  std::size_t weight_bytes() const;  // of the embedding, the head and the products
  // Embeds a token as input of the first layer. out: [E]. REQUIRES: token in 0 .. V-1; a position
  // that there is.
  void embed(std::int32_t token, std::int64_t position, std::span<float> out) const;
};

// Layers of a checkpoint that predict beyond the next token, Qwen3.5's multi-token prediction
// ("mtp"). h_i: the input of the model's head after token i.
//
//   x_i = in([embedding_norm(embedding[token i + 1]), hidden_norm(h_i)])
//   g_i = what the layers make of x_i;  token i + 2 is expected where head(g_i) is largest
//
// g_i in place of h_{i+1} predicts the token after that one, and so on.
struct DraftHead {
  RowNorm embedding_norm;
  RowNorm hidden_norm;
  std::optional<Dense> in;  // [E, 2 E]
  Decoder layers;           // without embedding and head
};

// A row of a step of a Decoder.
struct DecoderRow {
  std::int32_t token = 0;
  const float* input = nullptr;  // [E] that enters the first layer; null: the token's
  std::int64_t position = 0;
  bool wants_output = false;
  bool keeps_hidden = false;         // also without an output: with a draft head
  const Adapter* adapter = nullptr;  // null: none
  // The states that the row extends, as many as layouts(). Null for all rows of a step: they are
  // one sequence from its first token on, and nothing of it stays (recompute mode).
  const std::unique_ptr<LayerState>* states = nullptr;
};

// Working memory of one thread.
class DecoderBuffers {
 public:
  DecoderBuffers(const Decoder& decoder, std::size_t max_rows);

  std::size_t max_rows() const { return x_.rows(); }
  // The memory that it has, but for the head's outputs.
  std::size_t bytes() const;
  // The head's inputs in the last step: [rows that wanted an output or to be kept, E].
  MatrixView<const float> hidden() { return last_.values().rows_from(0, kept_.rows.size()); }

 private:
  friend class DecoderPass;
  Matrix x_;                // [max_rows, E] the residual stream
  Matrix second_;           // [max_rows, E] the other one of a reversible model
  Matrix positions_;        // [max_rows, E] rows of the positions, where every layer adds them
  Matrix carry_;            // [max_rows, E]
  DenseInput exact_;        // [max_rows, E] what a mixer reads, in f32
  DenseInput input_;        // the same of the weight type, where that is another one
  DenseInput last_;         // [max_rows, what the head reads], of its type
  DenseInput wanted_last_;  // rows of last_ that want an output, where not all do
  Matrix outputs_;          // [rows that want one, V], which grows
  std::vector<LayerState*> states_;
  std::vector<std::int64_t> row_positions_;
  AdaptedRows adapted_;
  KeptRows kept_;
  std::vector<std::uint32_t> wanted_;  // of the kept rows: those that want an output
  AdaptedRows wanted_adapted_;         // among those
  PrefetchList prefetch_;
  MixerScratch scratch_;
};

// Const and shareable between threads, each with its DecoderBuffers.
class DecoderPass {
 public:
  explicit DecoderPass(const Decoder& decoder) : decoder_(decoder) {}

  // Feeds the rows. Returns the outputs of those that want one, [wanted, V], or without a head
  // [wanted, E], in order; valid until the next step.
  MatrixView<const float> step(std::span<const DecoderRow> rows, DecoderBuffers& buffers,
                               StepThreadPool* team, StepObserver* observer) const;

 private:
  struct Rows;

  void embed(std::span<const DecoderRow> rows, DecoderBuffers& buffers) const;
  void add_inputs(std::size_t layer, const Rows& at) const;
  void prepare(const RowNorm* norm, MatrixView<const float> x, bool keeps_floats,
               StepThreadPool* team, DecoderBuffers& buffers) const;
  void mix(const RowNorm& norm, const Mixer& mixer, bool leaves_out, std::size_t& first_layout,
           MatrixView<float> from, MatrixView<float> to, Rows& at) const;
  void keep_wanted(Rows& at) const;
  void choose_wanted(DecoderBuffers& buffers) const;
  MatrixView<const float> predict(const Rows& at) const;

  const Decoder& decoder_;
};

}  // namespace lintel
