// SPDX-License-Identifier: Apache-2.0
// Decoder: a stack of mixers between an embedding and a head, what checkpoints of other projects
// are served as.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/core/dtype.h"
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
  // out: [width]. REQUIRES: token in 0 .. rows - 1.
  void row(std::int32_t token, std::span<float> out) const;

 private:
  DType type_ = DType::kF32;
  std::size_t row_bytes_ = 0;
  std::size_t size_ = 0;
  AlignedArray<std::byte> bytes_;
};

struct DecoderLayer {
  RowNorm token_norm;
  std::unique_ptr<const Mixer> token_mixer;
  RowNorm channel_norm;
  std::unique_ptr<const Mixer> channel_mixer;

  // The mixers in their order.
  std::array<const Mixer*, 2> mixers() const { return {token_mixer.get(), channel_mixer.get()}; }
};

//   x = embedding[token], normed where there is an input_norm
//   each layer: x += token_mixer(token_norm(x));  x += channel_mixer(channel_norm(x))
//   logits = head(final_norm(x))
struct Decoder {
  WeightType weight_type = WeightType::kF32;
  std::size_t width = 0;     // E
  TokenEmbedding embedding;  // empty: the rows of `head`
  std::optional<RowNorm> input_norm;
  std::vector<DecoderLayer> layers;
  RowNorm final_norm;
  std::optional<Dense> head;  // [V, E]
  std::int64_t num_parameters = 0;
  std::vector<AdaptableModule> modules;
  std::optional<KvType> kv_type;  // of its KV caches; nothing: it has none

  // The states of a sequence: of each layer those of its mixers that keep one, in order.
  std::vector<std::shared_ptr<const StateLayout>> layouts() const;
  std::vector<const Dense*> products() const;
  // What a token enters the first layer as. out: [E]. REQUIRES: token in 0 .. V-1.
  void embed(std::int32_t token, std::span<float> out) const {
    if (embedding.size_bytes() > 0) return embedding.row(token, out);
    head->row(static_cast<std::size_t>(token), out);
  }
};

// A row of a step of a Decoder. states: as many as layouts().
struct DecoderRow {
  std::int32_t token = 0;
  std::int64_t position = 0;
  bool wants_output = false;
  const Adapter* adapter = nullptr;  // null: none
};

// Working memory of one thread.
class DecoderBuffers {
 public:
  DecoderBuffers(const Decoder& decoder, std::size_t max_rows);

 private:
  friend class DecoderPass;
  Matrix x_;          // [max_rows, E] the residual stream
  Matrix normed_;     // [max_rows, E]
  Matrix carry_;      // [max_rows, E]
  DenseInput input_;  // [max_rows, E] of the weight type
  DenseInput exact_;  // the same in f32
  Matrix outputs_;    // [rows that want one, V], which grows
  std::vector<LayerState*> states_;
  std::vector<std::int64_t> positions_;
  AdaptedRows adapted_;
  MixerScratch scratch_;
};

// Const and shareable between threads, each with its DecoderBuffers.
class DecoderPass {
 public:
  explicit DecoderPass(const Decoder& decoder) : decoder_(decoder) {}

  // Feeds the rows. state_of(row, number of the layout) is the state that the row extends. Returns
  // the outputs of the rows that want one, [wanted, V], in order; valid until the next step.
  template <typename StateOf>
  MatrixView<const float> step(std::span<const DecoderRow> rows, DecoderBuffers& buffers,
                               StepThreadPool* team, const StateOf& state_of) const {
    embed(rows, buffers);
    std::size_t layout = 0;
    std::size_t count = rows.size();
    const auto list_states = [&](const Mixer& mixer) {
      buffers.states_.clear();
      if (!mixer.keeps_state()) return;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        buffers.states_.push_back(state_of(r, layout));
      }
      ++layout;
    };
    for (const DecoderLayer& layer : decoder_.layers) {
      list_states(*layer.token_mixer);
      mix(layer.token_norm, *layer.token_mixer, count, buffers, team);
      list_states(*layer.channel_mixer);
      const bool is_last = &layer == &decoder_.layers.back();
      if (is_last && buffers.states_.empty()) count = keep_wanted(rows, buffers);
      if (count > 0) mix(layer.channel_norm, *layer.channel_mixer, count, buffers, team);
      if (is_last && !buffers.states_.empty()) count = keep_wanted(rows, buffers);
    }
    return predict(count, buffers, team);
  }

 private:
  void embed(std::span<const DecoderRow> rows, DecoderBuffers& buffers) const;
  void mix(const RowNorm& norm, const Mixer& mixer, std::size_t count, DecoderBuffers& buffers,
           StepThreadPool* team) const;
  static std::size_t keep_wanted(std::span<const DecoderRow> rows, DecoderBuffers& buffers);
  MatrixView<const float> predict(std::size_t count, DecoderBuffers& buffers,
                                  StepThreadPool* team) const;

  const Decoder& decoder_;
};

}  // namespace lintel
