// SPDX-License-Identifier: Apache-2.0
// A stack of mixers as a DecodeMode.
#include <memory>
#include <vector>

#include "model/forward_pass.h"

namespace lintel {
namespace {

class DecoderMode final : public DecodeMode {
 public:
  explicit DecoderMode(const Decoder& decoder)
      : decoder_(decoder), layouts_(decoder.layouts()), pass_(decoder) {}

  MatrixView<const float> step(std::span<const BatchRow> rows,
                               Activations& buffers) const override {
    buffers.drafts.begin_speculation(rows, layouts_);
    std::vector<DecoderRow>& fed = buffers.decoder_rows;
    fed.clear();
    for (const BatchRow& row : rows) {
      fed.push_back({.token = row.token,
                     .position = row.sequence->position(),
                     .wants_output = row.wants_output,
                     .adapter = row.sequence->adapter().get()});
      row.sequence->advance();
    }
    if (buffers.observer != nullptr) buffers.observer->enter(StepPart::kProducts);
    const auto state_of = [&](std::size_t r, std::size_t layout) {
      return rows[r].sequence->layer(layout);
    };
    const MatrixView<const float> outputs =
        pass_.step(fed, *buffers.decoder, buffers.team, state_of);
    if (buffers.observer != nullptr) buffers.observer->enter(StepPart::kOther);
    return outputs;
  }

  std::unique_ptr<Activations> new_buffers(std::size_t max_rows) const override {
    auto buffers = std::make_unique<Activations>();
    buffers->max_rows = max_rows;
    buffers->decoder.emplace(decoder_, max_rows);
    buffers->decoder_rows.reserve(max_rows);
    return buffers;
  }
  // Nothing: copies of states of many megabytes are made when there are drafts.
  void reserve_drafts(std::size_t /*rows*/, Activations& /*buffers*/) const override {}
  DraftMemory::Layouts layouts() const override { return layouts_; }

 private:
  const Decoder& decoder_;
  const std::vector<std::shared_ptr<const StateLayout>> layouts_;
  const DecoderPass pass_;
};

}  // namespace

std::unique_ptr<DecodeMode> decoder_mode(const Decoder& decoder) {
  return std::make_unique<DecoderMode>(decoder);
}

}  // namespace lintel
