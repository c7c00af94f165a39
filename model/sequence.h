// SPDX-License-Identifier: Apache-2.0
// SequenceState: everything one sequence remembers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "model/layers/layer_state.h"
#include "model/token_counts.h"

namespace lintel {

class Adapter;  // model/lora/adapter.h

// The tokens that a model accepts; a saved sequence has to keep to them.
struct SequenceLimits {
  std::int64_t max_length = 0;          // positions; 0: unbounded
  std::int32_t vocab_size = INT32_MAX;  // tokens are below it
};

// The states of the layers, the position, the token that was produced but not yet fed, and what
// sampling needs to continue. Made by Transformer::new_sequence, which must outlive it; used by one
// thread at a time. States that do not grow lie in one flat block. In recompute mode there are no
// states, but the tokens.
class SequenceState {
 public:
  // One for each state that a model keeps; layers that share weights share theirs.
  using Layouts = std::span<const std::shared_ptr<const StateLayout>>;

  // layouts: outliving the state; none in recompute mode. vocab_size: length of `counts`; 0 where
  // the head has no use for them. adapter: what its tokens go through beside the model's own
  // weights; null: nothing. It stays as it is, also in clones.
  SequenceState(Layouts layouts, int vocab_size, std::shared_ptr<const Adapter> adapter = nullptr,
                const SequenceLimits& limits = {});
  SequenceState(SequenceState&&) = default;
  SequenceState& operator=(SequenceState&& other) noexcept;  // zeroes what this one held
  ~SequenceState();  // zeroes what it held: nothing shows in the next owner of the memory

  // A copy: what happens to one of the two is not seen in the other. They share pages that neither
  // writes again (KvCache), so a copy may be used on another thread.
  SequenceState clone() const;
  // Becomes such a copy of `other`, a sequence of the same model and adapter; in the memory that it
  // has, where states do not grow.
  void assign(const SequenceState& other);
  // Back to an empty sequence, in place; everything it held is zeroed.
  void reset();
  // Bytes of the layers' states, or the tokens, and of `counts`; at most
  // Transformer::state_bytes(position()).
  std::size_t bytes() const;

  std::int64_t position() const { return position_; }  // tokens fed
  const std::shared_ptr<const Adapter>& adapter() const { return adapter_; }
  // Tokens of the sequence so far: those fed and the pending one.
  std::int64_t num_tokens() const { return position_ + (pending ? 1 : 0); }
  // Position of the next token in the whole sequence.
  std::int64_t next_position() const { return origin + num_tokens(); }

  // All but the adapter, as bytes of this byte order: fixed fields, tail, counts, then what each
  // layer saves, or the tokens (docs/snapshot_format.md). Not between the steps that
  // begin_speculation drafts and rollback().
  void save(StateWriter& writer) const;
  std::size_t saved_bytes() const;  // the bytes that save() writes now
  // The end of the full pages of the states: no token before it changes them any more. 0 where
  // states do not lie in pages, or not all of the sequence does (origin).
  std::int64_t full_pages() const;
  // Saves as save(), without the full pages of tokens before `from`, which were saved before; those
  // of [from, full_pages()) are appended to `pages`, in runs of powers of two up to 256, the rest
  // to `bytes`. load() takes all of it through a PagedStateReader. REQUIRES: from <= full_pages(),
  // and pages end there.
  void save_pages(std::int64_t from, std::vector<std::byte>& bytes,
                  std::vector<PageRun>& pages) const;
  // Becomes the sequence that was saved: it continues bit for bit as that one. REQUIRES: an empty
  // sequence of an equal model with the same adapter.
  //
  // The bytes may be a stranger's. Throws ModelError for what cannot be a sequence of this model
  // and for more than most_tokens tokens, before memory is taken for them; then the sequence is
  // empty again. Takes no more memory than Transformer::state_bytes of the position. What it took
  // is safe to step. It does not look at what may follow in the reader.
  void load(StateReader& reader, std::int64_t most_tokens = INT64_MAX);

  // Takes back the last num_rows rows of the step before, as if they had never been fed. REQUIRES:
  // they were drafts (BatchRow::is_draft); once after a step that had any of this sequence, with 0
  // where all stay, before anything else is asked of it and before another step of the workspace.
  //
  // The drafts that stay may enter the states with the next step's rows. So the workspace's next
  // step has rows of this sequence, or settle() comes before it; every other use of the sequence
  // settles by itself.
  void rollback(std::int64_t num_rows);
  // Moves all state of the sequence into its own memory; the workspace then has nothing left of it.
  // Drafts that were not judged stay; after a step that failed, the sequence is in doubt.
  void settle();

  // For Transformer only.
  LayerState* layer(std::size_t i) { return layers_[i].get(); }
  const std::unique_ptr<LayerState>* layers() const { return layers_.data(); }
  void begin_drafts() { has_drafts_ = true; }  // the step has some
  void advance() { ++position_; }
  // Recompute mode: a token is fed by remembering it.
  void remember(std::int32_t token);
  std::int32_t token(std::int64_t position) const;          // REQUIRES: 0 <= position < position()
  static std::size_t token_bytes(std::int64_t num_tokens);  // of so many remembered
  static constexpr std::size_t kTokenPage = 1024;           // tokens of a page

  // Position of its first token in the whole sequence: tokens before it are in `counts` only.
  std::int64_t origin = 0;
  std::optional<std::int32_t> pending;  // produced, not yet fed
  TokenCounts counts;                   // of the tokens before next_position(); or empty
  std::string generated_tail;           // last generated bytes, for stop strings across calls
  static constexpr std::size_t kMostTailBytes = 256;  // of a saved one

 private:
  void settle_layers() const;
  void load_all(StateReader& reader, std::int64_t most_tokens);
  void forget();  // zeroes the block, the counts and the tail where they lie

  Layouts layouts_;
  SequenceLimits limits_;
  std::shared_ptr<const Adapter> adapter_;
  std::size_t block_floats_ = 0;
  AlignedArray<float> block_;  // the states that do not grow, of all layers, one after the other
  std::vector<std::unique_ptr<LayerState>> layers_;
  PagedArray<std::int32_t> tokens_;  // recompute mode
  std::int64_t position_ = 0;
  bool has_drafts_ = false;  // of the last step, not judged yet
};

}  // namespace lintel
