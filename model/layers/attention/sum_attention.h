// SPDX-License-Identifier: Apache-2.0
// SumAttention: attention whose keys and values are added to sums, which queries read: what the
// kinds `linear` and `efficient` are.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/feature_map.h"
#include "model/layers/attention/common/sum_kernels.h"
#include "model/layers/recurrent_state.h"

namespace lintel {

// The state of a layer is S [H, C, D], Z [H, C] and, of a feature map that is logarithmic, m
// [H, C], regardless of the length of the sequence.
class SumAttention final : public AttentionBackend {
 public:
  // REQUIRES: SumReading::kByChannel only with a map that is logarithmic.
  SumAttention(FeatureMap map, SumReading reading, float eps)
      : map_(std::move(map)),
        reading_(reading),
        shape_{.n_heads = map_.options().n_heads,
               .n_features = map_.num_features(),
               .d_head = map_.options().d_head,
               .eps = eps} {
    assert(reading == SumReading::kByRow || map_.is_logarithmic());
  }

  std::size_t block_floats() const override {
    return features() * (shape_.d_head + (map_.is_logarithmic() ? 2 : 1));
  }

  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<State>(block, *this);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }

  std::size_t rollback_floats(std::size_t num_rows, std::int64_t end) const override {
    const std::size_t copied = keeps_aside(num_rows, end) ? 0 : block_floats();
    return RecurrentState::rollback_floats(copied, kept_floats(), num_rows);
  }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    if (scratch.floats.size() < scratch_floats()) scratch.floats.resize(scratch_floats());
    for (std::size_t begin = 0; begin < states.size();) {
      const std::size_t rows = run_length(states.subspan(begin));
      auto& state = static_cast<State&>(*states[begin]);
      const Run run{.inputs = inputs,
                    .out = out,
                    .begin = begin,
                    .end = begin + rows,
                    .first_draft = begin + state.begin_run(rows),
                    .scratch = scratch.floats.data()};
      const bool is_single = rows == 1 && state.pending().empty();
      if (!is_single && keeps_aside(run.end - run.first_draft, state.end_of(rows))) {
        feed_rows(run, state);
      } else {
        state.settle();
        feed_one_by_one(run, state);
      }
      begin += rows;
    }
  }

 private:
  class State;

  // Consecutive rows of one sequence, drafts last.
  struct Run {
    AttentionInputs inputs;
    MatrixView<float> out;
    std::size_t begin = 0, end = 0, first_draft = 0;
    float* scratch = nullptr;  // scratch_floats()
  };

  void feed_one_by_one(const Run& run, State& state) const {
    float* const phi_q = run.scratch;
    float* const phi_k = phi_q + row_floats();
    float* const work = phi_k + row_floats();
    for (std::size_t r = run.begin; r < run.end; ++r) {
      map_.apply(run.inputs[0].row(r), phi_q, work);
      map_.apply(run.inputs[1].row(r), phi_k, work);
      const float* const v = run.inputs[2].row(r).data();
      if (r >= run.first_draft) state.keep_draft(phi_k, v);
      state.feed(phi_q, phi_k, v, run.out.row(r).data());
    }
  }

  // Several at once: what earlier drafts still have to add, rows that stay, drafts. Those are the
  // last, so that S is as it was when they are judged.
  void feed_rows(const Run& run, State& state) const {
    RowBatch batch(*this, run, state);
    const std::span<const float> pending = state.pending();
    for (std::size_t at = 0; at < pending.size(); at += kept_floats())
      batch.add_pending(&pending[at]);
    for (std::size_t r = run.begin; r < run.first_draft; ++r) batch.add(r);
    batch.make_room_for(run.end - run.first_draft);
    for (std::size_t r = run.first_draft; r < run.end; ++r) batch.add_draft(r);
    batch.feed();
    state.clear_pending();
  }

  // Rows of one sequence on their way into the kernel.
  class RowBatch {
   public:
    RowBatch(const SumAttention& backend, const Run& run, State& state)
        : backend_(backend),
          run_(run),
          state_(state),
          work_(run.scratch + linear_rows_floats(backend.shape_)),
          features_(work_ + backend.map_.work_floats()) {}

    void add_pending(const float* kept) {
      if (rows_.num_rows == kMostLinearRows) feed();
      const KeptDraft draft = backend_.kept_draft(kept);
      append({.phi_k = draft.phi_k, .v = draft.v});
      ++rows_.num_unread;
    }
    void add(std::size_t r) {
      make_room_for(2);  // of the places of features
      const float* const phi_k = map(1, r);
      append({.phi_q = map(0, r), .phi_k = phi_k, .v = v_of(r), .out = out_of(r)});
      ++num_staying_;
    }
    void add_draft(std::size_t r) {
      float* const kept = state_.keep_aside();
      float* const phi_k = kept;
      backend_.map_.apply(run_.inputs[1].row(r), phi_k, work_);  // its slack ends in v
      std::copy_n(v_of(r), backend_.width(), kept + backend_.features());
      append({.phi_q = map(0, r), .phi_k = phi_k, .v = v_of(r), .out = out_of(r)});
      ++num_drafts_;
    }
    // Feeds the batch if it has no room for `count` more rows, which must be fed together.
    void make_room_for(std::size_t count) {
      const bool is_full =
          rows_.num_rows + count > kMostLinearRows || num_mapped_ + count > 2 * kRowsAtOnce;
      if (is_full) feed();
    }
    void feed() {
      if (rows_.num_rows == 0) return;
      rows_.rows = batch_.data();
      rows_.num_kept = rows_.num_rows - num_drafts_;
      state_.feed_rows(rows_, num_staying_ + num_drafts_, run_.scratch);
      rows_ = {};
      num_mapped_ = num_staying_ = num_drafts_ = 0;
    }

   private:
    void append(const LinearAttentionRow& row) { batch_[rows_.num_rows++] = row; }
    const float* map(std::size_t input, std::size_t r) {
      float* const phi = features_ + num_mapped_++ * backend_.row_floats();
      backend_.map_.apply(run_.inputs[input].row(r), phi, work_);
      return phi;
    }
    const float* v_of(std::size_t r) const { return run_.inputs[2].row(r).data(); }
    float* out_of(std::size_t r) const { return run_.out.row(r).data(); }

    const SumAttention& backend_;
    const Run& run_;
    State& state_;
    float* const work_;
    float* const features_;  // [2 * kRowsAtOnce, row_floats()]
    std::array<LinearAttentionRow, kMostLinearRows> batch_;
    LinearAttentionRows rows_;
    std::size_t num_mapped_ = 0;
    std::size_t num_staying_ = 0;
    std::size_t num_drafts_ = 0;
  };

  // The values kept for a draft.
  struct KeptDraft {
    const float* phi_k;
    const float* v;
  };
  KeptDraft kept_draft(const float* kept) const { return {kept, kept + features()}; }

  // True if drafts of a run are attended aside: nothing is drawn for the sums of its rows, the last
  // of which has `end` tokens after it.
  bool keeps_aside(std::size_t num_drafts, std::int64_t end) const {
    return !map_.is_logarithmic() && end <= kFirstDrawnPosition && num_drafts <= kMostAside;
  }

  // S, then Z, then m if there is one.
  class State final : public RecurrentState {
   public:
    State(std::span<float> block, const SumAttention& backend)
        : RecurrentState(block, backend.kept_floats()), backend_(backend) {}

    std::int64_t end_of(std::size_t num_rows) const {
      return position() + static_cast<std::int64_t>(num_rows);
    }

    void keep_draft(const float* phi_k, const float* v) {
      float* const kept = keep();
      std::copy_n(phi_k, backend_.features(), kept);
      std::copy_n(v, backend_.width(), kept + backend_.features());
    }

    // One token. phi_q and phi_k are overwritten where they are logarithms.
    void feed(float* phi_q, float* phi_k, const float* v, float* out) {
      const SumShape& shape = backend_.shape_;
      if (backend_.map_.is_logarithmic()) {
        float* const m = z() + backend_.features();
        relative_attention_step(shape, backend_.reading_, next_position(), phi_q, phi_k, v, s(),
                                z(), m, out);
      } else {
        feed_linear(phi_q, phi_k, v, out);
      }
    }

    // num_tokens: of them, without those pending. work: linear_rows_floats().
    void feed_rows(const LinearAttentionRows& rows, std::size_t num_tokens, float* work) {
      linear_attention_rows(backend_.shape_, rows, s(), z(), work);
      advance(num_tokens);
    }

   private:
    void feed_linear(const float* phi_q, const float* phi_k, const float* v, float* out) {
      linear_attention_step(backend_.shape_, next_position(), phi_q, phi_k, v, s(), z(), out);
    }
    float* s() const { return block().data(); }
    float* z() const { return s() + backend_.features() * backend_.shape_.d_head; }

    void feed_again(const float* kept, std::size_t count, std::span<float> work) override {
      const std::size_t features = backend_.features();
      const std::size_t copied = backend_.map_.is_logarithmic() ? features : 0;
      assert(work.size() >= 2 * copied + backend_.width());
      for (std::size_t i = 0; i < count; ++i, kept += backend_.kept_floats()) {
        const KeptDraft draft = backend_.kept_draft(kept);
        // The output of the sums is discarded, so any query will do.
        std::copy_n(draft.phi_k, copied, work.data());
        std::copy_n(draft.phi_k, copied, work.data() + copied);
        float* const out = work.data() + 2 * copied;
        copied > 0 ? feed(work.data(), work.data() + copied, draft.v, out)
                   : feed_linear(draft.phi_k, draft.phi_k, draft.v, out);
      }
    }
    void feed_pending(const float* kept, std::size_t count) override {
      std::array<LinearAttentionRow, kMostAside> rows;
      for (std::size_t i = 0; i < count; ++i, kept += backend_.kept_floats()) {
        const KeptDraft draft = backend_.kept_draft(kept);
        rows[i] = {.phi_k = draft.phi_k, .v = draft.v};
      }
      const LinearAttentionRows all{
          .rows = rows.data(), .num_rows = count, .num_unread = count, .num_kept = count};
      feed_rows(all, 0, nullptr);
    }

    const SumAttention& backend_;
  };

  static constexpr std::size_t kRowsAtOnce = 32;  // their features lie in scratch
  // Drafts that need no copy of the sums, in one batch: of each of them, phi(q) lies in scratch.
  static constexpr std::size_t kMostAside = std::min(kMostLinearRows, 2 * kRowsAtOnce);

  std::size_t features() const { return shape_.n_heads * shape_.n_features; }  // H*C
  std::size_t width() const { return shape_.n_heads * shape_.d_head; }         // H*D
  // Floats kept for a draft: phi(k), v, and a line, without which many drafts would share places in
  // a cache.
  std::size_t kept_floats() const { return features() + width() + FeatureMap::kSlack; }
  std::size_t row_floats() const { return features() + FeatureMap::kSlack; }  // of a row's phi
  std::size_t scratch_floats() const {
    return linear_rows_floats(shape_) + map_.work_floats() + 2 * kRowsAtOnce * row_floats();
  }

  const FeatureMap map_;
  const SumReading reading_;
  const SumShape shape_;
};

}  // namespace lintel
