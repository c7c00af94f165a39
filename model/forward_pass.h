// SPDX-License-Identifier: Apache-2.0
// ForwardPass: rows on their way through the layers.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/core/tensor.h"
#include "model/layer.h"
#include "model/layers/attention/attention.h"
#include "model/layers/mixers/decoder.h"
#include "model/lora/adapter.h"
#include "model/ops/dense_input.h"
#include "model/ops/weight_type.h"
#include "model/sequence.h"
#include "model/transformer.h"

namespace lintel {

// DraftMemory: what a step keeps so that its drafts can be taken back.

// Two halves in turn, as drafts of one step may enter their states with the rows of the next. Each
// grows to its high-water mark. One worker thread's.
class DraftMemory {
 public:
  using Layouts = SequenceState::Layouts;

  // Announces the drafts to the states of their sequences, with memory to take them back. What the
  // step before last announced is no longer needed.
  void begin_speculation(std::span<const BatchRow> rows, Layouts layouts) {
    turn_ = 1 - turn_;
    Half& half = halves_[turn_];
    std::size_t total = 0;
    for_each_drafting(rows, [&](SequenceState&, std::size_t drafts, std::int64_t end) {
      for (const auto& layout : layouts) total += floats_of(*layout, drafts, end);
    });
    half.grow(total);
    float* next = half.memory.get();
    for_each_drafting(rows, [&](SequenceState& sequence, std::size_t drafts, std::int64_t end) {
      sequence.begin_drafts();
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        const std::size_t floats = floats_of(*layouts[i], drafts, end);
        sequence.layer(i)->begin_speculation(drafts, {next, floats});
        next += floats;
      }
    });
  }

  // For any drafts in a step of `rows` rows, but of long sequences: of one, or of half as many as
  // there are rows.
  void reserve(std::size_t rows, Layouts layouts) {
    if (rows < 2) return;
    std::size_t of_one = 0;
    std::size_t of_many = 0;
    for (const auto& layout : layouts) {
      of_one += floats_of(*layout, rows - 1, 0);
      of_many += rows / 2 * floats_of(*layout, 2, 0);
    }
    for (Half& half : halves_) half.grow(std::max(of_one, of_many));
  }

 private:
  struct Half {
    // The states zero what they had there.
    void grow(std::size_t count) {
      if (count <= floats) return;
      memory = make_aligned<float>(count);
      floats = count;
    }
    AlignedArray<float> memory;
    std::size_t floats = 0;
  };

  // Calls body(sequence, number of its drafts, where they end) for every sequence that has any.
  template <typename Body>
  static void for_each_drafting(std::span<const BatchRow> rows, Body&& body) {
    for (std::size_t r = 0; r < rows.size();) {
      const std::size_t first = r;
      std::size_t drafts = 0;
      for (; r < rows.size() && rows[r].sequence == rows[first].sequence; ++r) {
        assert(drafts == 0 || rows[r].is_draft);
        if (rows[r].is_draft) ++drafts;
      }
      if (drafts == 0) continue;
      SequenceState& sequence = *rows[first].sequence;
      body(sequence, drafts, sequence.position() + static_cast<std::int64_t>(r - first));
    }
  }

  // Memory of a sequence's drafts in a layer, in whole cache lines.
  static std::size_t floats_of(const StateLayout& layout, std::size_t drafts, std::int64_t end) {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    const std::size_t needed = layout.rollback_floats(drafts, end);
    return (needed + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }

  std::array<Half, 2> halves_;
  std::size_t turn_ = 0;  // whose half the last step has
};

// Working memory of one thread.
struct Activations {
  std::size_t max_rows = 0;
  Matrix x;             // [max_rows, E] the residual stream
  Matrix second;        // [max_rows, E] the other one of a reversible model
  Matrix joined;        // [max_rows, last_width()] of a reversible model: what leaves both
  Matrix positions;     // [max_rows, E] the positions' rows, where every layer adds them
  DenseInput sublayer;  // [max_rows, E] what a sub-layer reads of it
  Matrix projected;     // [max_rows, the widest layer's projections]
  // By width: [max_rows, width] what attention makes of them.
  std::map<std::size_t, DenseInput> attended;
  DenseInput hidden;                                // [max_rows, F]
  DenseInput last;                                  // [max_rows, last_width()], f32
  Matrix outputs;                                   // [max_rows, num_outputs]
  std::vector<LayerState*> states;                  // [max_rows]
  std::vector<MatrixView<const float>> inputs;      // one a projection
  std::vector<MatrixView<const float>> run_inputs;  // the same of one sequence
  PrefetchList prefetch;
  AdaptedRows adapted;
  AttentionScratch scratch;
  DraftMemory drafts;
  StepObserver* observer = nullptr;
  StepThreadPool* team = nullptr;         // whose leader is this thread; null: this thread alone
  std::unique_ptr<Activations> prefix;    // recompute mode: for the longest prefix so far
  std::optional<DecoderBuffers> decoder;  // of a Decoder, which uses nothing else here
  std::vector<DecoderRow> decoder_rows;   // but the drafts and the team
};

// Const and shareable between threads, each with its Activations.
class ForwardPass {
 public:
  explicit ForwardPass(const TransformerParts& parts) : parts_(parts) {}

  std::unique_ptr<Activations> new_buffers(std::size_t max_rows) const;

  // The row of the streams that a token becomes. adapter: null without.
  void embed(std::int32_t token, std::int64_t position, const Adapter* adapter, std::size_t row,
             Activations& w) const;

  // Run every layer over the first rows of the streams, one for each of `rows`, from the states of
  // their sequences; or over a whole prefix at once, of which only the last output is wanted.
  // Return how many outputs are wanted: so many rows of last(), from the first, have left the last
  // layer.
  std::size_t run(std::span<const BatchRow> rows, Activations& w) const;
  std::size_t run_prefix(std::size_t num_positions, const Adapter* adapter, Activations& w) const;

  // What leaves the last layer, [max_rows, last_width()].
  MatrixView<float> last(Activations& w) const;
  // The head's outputs of the first rows of last(); their adapters are noted in w.adapted.
  MatrixView<const float> predict(std::size_t wanted, Activations& w) const;

 private:
  struct Rows;

  void list_states(std::size_t layer, const Rows& at) const;
  void attend_into(const AttentionBackend& attention, DenseInput& out, const Rows& at) const;
  bool attend(std::size_t layer, const Rows& at) const;
  void add_attended(std::size_t layer, bool is_prepared, const Rows& at) const;
  static bool all_are_wanted(const Rows& at);
  void feed_forward(std::size_t layer, const Rows& at) const;
  void note_adapters(const Rows& at) const;
  MatrixView<const float> sublayer_input(const Rows& at) const;
  void add_inputs(std::size_t layer, const Rows& at) const;
  void keep_wanted(Rows& at) const;
  void join(const Rows& at) const;
  void run_layer(std::size_t layer, Rows& at) const;
  std::size_t run_layers(Rows at) const;

  std::size_t weights_of(std::size_t layer) const {
    return static_cast<std::size_t>(parts_.config.weights_of(static_cast<int>(layer)));
  }

  const TransformerParts& parts_;
};

// DecodeMode: how rows become outputs.

// What Transformer asks of the three ways there are. Const and shareable between threads.
class DecodeMode {
 public:
  virtual ~DecodeMode() = default;

  // As Transformer::step.
  virtual MatrixView<const float> step(std::span<const BatchRow> rows,
                                       Activations& buffers) const = 0;
  virtual std::unique_ptr<Activations> new_buffers(std::size_t max_rows) const = 0;
  // Makes room for a step of so many rows that has drafts.
  virtual void reserve_drafts(std::size_t rows, Activations& buffers) const = 0;

  // What a sequence keeps a state of.
  virtual DraftMemory::Layouts layouts() const = 0;
  // Bytes of what a sequence keeps, as StateLayout::state_bytes and tokens_until_full.
  virtual std::size_t state_bytes(std::int64_t num_tokens) const {
    std::size_t total = 0;
    for (const auto& layout : layouts()) {
      if (__builtin_add_overflow(total, layout->state_bytes(num_tokens), &total)) return SIZE_MAX;
    }
    return total;
  }
  virtual std::int64_t tokens_until_full() const {
    std::int64_t tokens = 0;
    for (const auto& layout : layouts()) tokens = std::max(tokens, layout->tokens_until_full());
    return tokens;
  }
  // As StateLayout::page_tokens, of all that grows; 0 where nothing does, or not all in pages.
  virtual std::int64_t page_tokens() const {
    std::int64_t tokens = 0;
    for (const auto& layout : layouts()) {
      if (layout->tokens_until_full() == 0) continue;
      tokens = layout->page_tokens();
      if (tokens == 0) return 0;
    }
    return tokens;
  }
};

// From the states of the sequences.
std::unique_ptr<DecodeMode> step_from_states(const TransformerParts& parts);
// Recompute mode: sequences keep their tokens, and rows that want an output run their whole prefix
// again.
std::unique_ptr<DecodeMode> recompute_mode(const TransformerParts& parts);
// A stack of mixers, from the states of the sequences.
std::unique_ptr<DecodeMode> decoder_mode(const Decoder& decoder);

}  // namespace lintel
