// SumAttention: attention whose keys and values are added to sums, which queries read: what the
// kinds `linear` and `efficient` are.
#pragma once

#include <algorithm>
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
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    const std::size_t row_floats = features() + FeatureMap::kSlack;
    const std::size_t floats = 2 * row_floats + map_.work_floats();
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const phi_q = scratch.floats.data();
    float* const phi_k = phi_q + row_floats;
    float* const work = phi_k + row_floats;
    for (std::size_t begin = 0; begin < states.size();) {
      const std::size_t end = begin + run_length(states.subspan(begin));
      auto& state = static_cast<State&>(*states[begin]);
      const std::size_t first_draft = begin + state.begin_run(end - begin);
      for (std::size_t r = begin; r < end; ++r) {
        map_.apply(q.row(r), phi_q, work);
        map_.apply(k.row(r), phi_k, work);
        if (r >= first_draft) state.keep_draft(phi_k, v.row(r).data());
        state.feed(phi_q, phi_k, v.row(r).data(), out.row(r).data());
      }
      begin = end;
    }
  }

 private:
  // S, then Z, then m if there is one. Of a draft phi(k) and v are kept, with room for a query and
  // for a row of output that nobody reads.
  class State final : public SumState {
   public:
    State(std::span<float> block, const SumAttention& backend)
        : SumState(block, backend.kept_floats()), backend_(backend) {}

    void keep_draft(const float* phi_k, const float* v) {
      float* const kept = keep();
      std::copy_n(phi_k, backend_.features(), kept);
      std::copy_n(v, backend_.width(), kept + 2 * backend_.features());
    }

    // One token. phi_q and phi_k are overwritten where they are logarithms.
    void feed(float* phi_q, float* phi_k, const float* v, float* out) {
      const SumShape& shape = backend_.shape_;
      float* const s = block().data();
      float* const z = s + backend_.features() * shape.d_head;
      if (backend_.map_.is_logarithmic()) {
        float* const m = z + backend_.features();
        relative_attention_step(shape, backend_.reading_, next_position(), phi_q, phi_k, v, s, z, m,
                                out);
      } else {
        linear_attention_step(shape, next_position(), phi_q, phi_k, v, s, z, out);
      }
    }

   private:
    void feed_again(float* kept) override {
      const std::size_t features = backend_.features();
      float* const phi_q = kept + features;
      float* const v = phi_q + features;
      std::copy_n(kept, features, phi_q);
      feed(phi_q, /*phi_k=*/kept, v, /*out=*/v + backend_.width());
    }

    const SumAttention& backend_;
  };

  std::size_t features() const { return shape_.n_heads * shape_.n_features; }  // H*C
  std::size_t width() const { return shape_.n_heads * shape_.d_head; }         // H*D
  std::size_t kept_floats() const { return 2 * features() + 2 * width(); }     // of a draft

  const FeatureMap map_;
  const SumReading reading_;
  const SumShape shape_;
};

}  // namespace lintel
