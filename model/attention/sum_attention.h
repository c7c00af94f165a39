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
#include <utility>

#include "model/attention/attention.h"
#include "model/attention/parts/feature_map.h"
#include "model/attention/parts/sum_kernels.h"
#include "model/attention/sum_state.h"

namespace lintel {

// The state of a layer is S [H, C, D], Z [H, C] and, of a feature map that is logarithmic, m
// [H, C], whatever the length of the sequence.
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

  std::unique_ptr<AttentionState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<State>(block, *this);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }

  std::size_t take_back_floats(std::size_t num_rows) const override {
    return SumState::take_back_floats(block_floats(), kept_floats(), num_rows);
  }

  void step(std::span<AttentionState* const> states, AttentionInputs inputs, MatrixView<float> out,
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
      const bool at_once = rows > 1 && run.end - run.first_draft <= kMostAside;
      at_once&& state.takes_rows(rows) ? feed_rows(run, state) : feed_one_by_one(run, state);
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

  // Several at once. Drafts are the last of them, so that S is as it was when they are judged.
  void feed_rows(const Run& run, State& state) const {
    float* const sums = run.scratch;
    float* const work = sums + linear_rows_floats(shape_);
    float* next = work + map_.work_floats();
    std::array<LinearAttentionRow, kRowsAtOnce> rows;
    std::size_t count = 0;
    for (std::size_t r = run.begin; r < run.first_draft; ++r) {
      float* const phi_q = next + 2 * count * row_floats();
      float* const phi_k = phi_q + row_floats();
      map_.apply(run.inputs[0].row(r), phi_q, work);
      map_.apply(run.inputs[1].row(r), phi_k, work);
      rows[count++] = {phi_q, phi_k, run.inputs[2].row(r).data(), run.out.row(r).data()};
      if (count < kRowsAtOnce && r + 1 < run.first_draft) continue;
      state.feed_rows({rows.data(), count}, sums);
      count = 0;
    }
    if (run.first_draft < run.end) feed_drafts(run, state);
  }

  void feed_drafts(const Run& run, State& state) const {
    float* const sums = run.scratch;
    float* const work = sums + linear_rows_floats(shape_);
    const std::size_t count = run.end - run.first_draft;
    float* const kept = state.keep_drafts_aside(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t r = run.first_draft + i;
      const KeptDraft draft = kept_draft(kept + i * kept_floats());
      map_.apply(run.inputs[1].row(r), draft.phi_k, work);  // its slack ends in phi_q,
      map_.apply(run.inputs[0].row(r), draft.phi_q, work);  // and that one's in v
      std::ranges::copy(run.inputs[2].row(r), draft.v);
    }
    state.attend_drafts(run.out.rows_from(run.first_draft, count), kept, sums);
  }

  // What is kept of a draft, and room for a row of output that nobody reads.
  struct KeptDraft {
    float* phi_k;
    float* phi_q;
    float* v;
    float* out;
  };
  KeptDraft kept_draft(float* kept) const {
    float* const phi_q = kept + features();
    float* const v = phi_q + features();
    return {kept, phi_q, v, v + width()};
  }

  // S, then Z, then m if there is one.
  class State final : public SumState {
   public:
    State(std::span<float> block, const SumAttention& backend)
        : SumState(block, backend.kept_floats()), backend_(backend) {}

    // Whether so many tokens may be fed at once: nothing is drawn for their sums.
    bool takes_rows(std::size_t num_rows) const {
      return !backend_.map_.is_logarithmic() &&
             position() + static_cast<std::int64_t>(num_rows) <= kFirstDrawnPosition;
    }

    void keep_draft(const float* phi_k, const float* v) {
      const KeptDraft draft = backend_.kept_draft(keep());
      std::copy_n(phi_k, backend_.features(), draft.phi_k);
      std::copy_n(v, backend_.width(), draft.v);
    }
    float* keep_drafts_aside(std::size_t count) {
      float* const first = keep_aside();
      for (std::size_t i = 1; i < count; ++i) keep_aside();
      return first;
    }

    // One token. phi_q and phi_k are overwritten where they are logarithms.
    void feed(float* phi_q, float* phi_k, const float* v, float* out) {
      const SumShape& shape = backend_.shape_;
      if (backend_.map_.is_logarithmic()) {
        float* const m = z() + backend_.features();
        relative_attention_step(shape, backend_.reading_, next_position(), phi_q, phi_k, v, s(),
                                z(), m, out);
      } else {
        linear_attention_step(shape, next_position(), phi_q, phi_k, v, s(), z(), out);
      }
    }

    // Of all of these: takes_rows(). work: linear_rows_floats().
    void feed_rows(std::span<const LinearAttentionRow> rows, float* work) {
      linear_attention_rows(backend_.shape_, rows, rows.size(), s(), z(), work);
      advance(rows.size());
    }
    void attend_drafts(MatrixView<float> out, float* kept, float* work) {
      std::array<LinearAttentionRow, kMostAside> rows;
      for (std::size_t i = 0; i < out.rows(); ++i, kept += backend_.kept_floats()) {
        const KeptDraft draft = backend_.kept_draft(kept);
        rows[i] = {draft.phi_q, draft.phi_k, draft.v, out.row(i).data()};
      }
      linear_attention_rows(backend_.shape_, {rows.data(), out.rows()}, 0, s(), z(), work);
      advance(out.rows());
    }

   private:
    float* s() const { return block().data(); }
    float* z() const { return s() + backend_.features() * backend_.shape_.d_head; }

    void feed_again(float* kept, std::size_t count) override {
      if (takes_rows(count)) {
        std::array<LinearAttentionRow, kRowsAtOnce> rows;
        for (std::size_t fed = 0; fed < count;) {
          const std::size_t some = std::min(kRowsAtOnce, count - fed);
          for (std::size_t i = 0; i < some; ++i, kept += backend_.kept_floats()) {
            const KeptDraft draft = backend_.kept_draft(kept);
            rows[i] = {draft.phi_k, draft.phi_k, draft.v, draft.out};
          }
          feed_rows({rows.data(), some}, nullptr);
          fed += some;
        }
        return;
      }
      for (std::size_t i = 0; i < count; ++i, kept += backend_.kept_floats()) {
        const KeptDraft draft = backend_.kept_draft(kept);
        std::copy_n(draft.phi_k, backend_.features(), draft.phi_q);
        feed(draft.phi_q, draft.phi_k, draft.v, draft.out);
      }
    }

    const SumAttention& backend_;
  };

  static constexpr std::size_t kRowsAtOnce = 32;  // whose features lie in scratch
  static constexpr std::size_t kMostAside =
      kMostLinearRows;  // drafts that need no copy of the sums

  std::size_t features() const { return shape_.n_heads * shape_.n_features; }  // H*C
  std::size_t width() const { return shape_.n_heads * shape_.d_head; }         // H*D
  std::size_t kept_floats() const { return 2 * features() + 2 * width(); }     // of a draft
  std::size_t row_floats() const { return features() + FeatureMap::kSlack; }   // of a row's phi
  std::size_t scratch_floats() const {
    return linear_rows_floats(shape_) + map_.work_floats() + 2 * kRowsAtOnce * row_floats();
  }

  const FeatureMap map_;
  const SumReading reading_;
  const SumShape shape_;
};

}  // namespace lintel
