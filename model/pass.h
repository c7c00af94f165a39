// Pass: rows on their way through the layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/core/tensor.h"
#include "model/drafts.h"
#include "model/layers/attention/attention.h"
#include "model/lora/adapted_rows.h"
#include "model/ops/dense_input.h"
#include "model/ops/prefetch_list.h"
#include "model/transformer_parts.h"
#include "model/workspace.h"

namespace lintel {

// Working memory of one thread.
struct Buffers {
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
  std::vector<AttentionState*> states;              // [max_rows]
  std::vector<MatrixView<const float>> inputs;      // one a projection
  std::vector<MatrixView<const float>> run_inputs;  // the same of one sequence
  PrefetchList prefetch;
  AdaptedRows adapted;
  AttentionScratch scratch;
  DraftMemory drafts;
  StepObserver* observer = nullptr;
  Team* team = nullptr;             // whose leader is this thread; null: this thread alone
  std::unique_ptr<Buffers> prefix;  // recompute mode: for the longest prefix so far
};

// Const and shareable between threads, each with its Buffers.
class Pass {
 public:
  explicit Pass(const TransformerParts& parts) : parts_(parts) {}

  std::unique_ptr<Buffers> new_buffers(std::size_t max_rows) const;

  // The row of the streams that a token becomes. adapter: null without.
  void embed(std::int32_t token, std::int64_t position, const Adapter* adapter, std::size_t row,
             Buffers& w) const;

  // Run every layer over the first rows of the streams, one for each of `rows`, from the states of
  // their sequences; or over a whole prefix at once, of which only the last output is wanted.
  // Return how many outputs are wanted: so many rows of last(), from the first, have left the last
  // layer.
  std::size_t run(std::span<const StepRow> rows, Buffers& w) const;
  std::size_t run_prefix(std::size_t num_positions, const Adapter* adapter, Buffers& w) const;

  // What leaves the last layer, [max_rows, last_width()].
  MatrixView<float> last(Buffers& w) const;
  // The head's outputs of the first rows of last(); their adapters are noted in w.adapted.
  MatrixView<const float> predict(std::size_t wanted, Buffers& w) const;

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

}  // namespace lintel
