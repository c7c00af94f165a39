// SPDX-License-Identifier: Apache-2.0
// AttentionMixer: a kind of attention between its projections, the token mixer of models of our own
// format.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "model/layers/attention/attention.h"
#include "model/layers/mixers/mixer.h"

namespace lintel {

//   y = out(attention(projections h))
class AttentionMixer final : public Mixer {
 public:
  // projections: [sum of input_widths, E], those that attention reads, one below the other.
  AttentionMixer(Dense projections, std::vector<std::size_t> input_widths,
                 std::shared_ptr<const AttentionBackend> attention, Dense out)
      : projections_(std::move(projections)),
        input_widths_(std::move(input_widths)),
        attention_(std::move(attention)),
        out_(std::move(out)) {}

  const AttentionBackend& attention() const { return *attention_; }

  std::shared_ptr<const StateLayout> layout() const override { return attention_; }
  bool keeps_state() const override { return true; }
  bool reads_floats() const override { return false; }
  bool can_leave_out() const override { return true; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  void reserve(std::size_t rows, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override { return {&projections_, &out_}; }

 private:
  void attend_into(const MixerRows& rows, DenseInput& out, MixerScratch& scratch) const;

  const Dense projections_;
  const std::vector<std::size_t> input_widths_;
  const std::shared_ptr<const AttentionBackend> attention_;
  const Dense out_;  // [E, out_width]
};

}  // namespace lintel
