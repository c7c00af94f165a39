#include "model/layers/attention/attention.h"

#include <algorithm>

namespace lintel {

void AttentionBackend::full_pass(AttentionInputs inputs, MatrixView<float> out,
                                 AttentionScratch& scratch) const {
  const AlignedArray<float> block = make_aligned<float>(block_floats());
  const std::unique_ptr<AttentionState> state = new_state({block.get(), block_floats()});
  const std::vector<AttentionState*> states(out.rows(), state.get());
  step(states, inputs, out, scratch);
  zero_memory(std::span(block.get(), block_floats()));
}

std::size_t run_length(std::span<AttentionState* const> states) {
  return static_cast<std::size_t>(
      std::ranges::find_if(states, [&](const auto* state) { return state != states[0]; }) -
      states.begin());
}

}  // namespace lintel
