// Recompute mode: every output takes its whole prefix again.
#include <algorithm>

#include "model/stepper.h"

namespace lintel {
namespace {

class RecomputingStepper final : public Stepper {
 public:
  explicit RecomputingStepper(const TransformerParts& parts) : pass_(parts) {}

  MatrixView<const float> step(std::span<const StepRow> rows, Buffers& buffers) const override {
    std::size_t wanted = 0;
    buffers.adapted.clear();
    for (const StepRow& row : rows) {
      row.sequence->remember(row.token);
      if (!row.wants_output) continue;
      buffers.adapted.note(wanted, row.sequence->adapter().get());
      std::ranges::copy(run_prefix(*row.sequence, buffers),
                        pass_.last(buffers).row(wanted++).begin());
    }
    buffers.adapted.group();
    return pass_.predict(wanted, buffers);
  }

  void reserve_drafts(std::size_t /*rows*/, Buffers& /*buffers*/) const override {}
  DraftMemory::Backends backends() const override { return {}; }
  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return SequenceState::token_bytes(num_tokens);
  }
  std::int64_t tokens_until_full() const override { return kNeverFull; }

 private:
  // What leaves the last layer at the last position.
  std::span<const float> run_prefix(const SequenceState& sequence, Buffers& buffers) const {
    const auto length = static_cast<std::size_t>(sequence.position());
    if (buffers.prefix == nullptr || buffers.prefix->max_rows < length) {
      buffers.prefix.reset();
      buffers.prefix = pass_.new_buffers(length + length / 2);
    }
    Buffers& prefix = *buffers.prefix;
    const Adapter* const adapter = sequence.adapter().get();
    prefix.observer = buffers.observer;
    for (std::size_t t = 0; t < length; ++t) {
      const auto position = static_cast<std::int64_t>(t);
      pass_.embed(sequence.token(position), position, adapter, t, prefix);
    }
    pass_.run_prefix(length, adapter, prefix);
    return pass_.last(prefix).row(0);
  }

  const Pass pass_;
};

}  // namespace

std::unique_ptr<Stepper> step_by_recomputing(const TransformerParts& parts) {
  return std::make_unique<RecomputingStepper>(parts);
}

}  // namespace lintel
