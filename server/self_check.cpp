#include "server/self_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

namespace lintel {
namespace {

constexpr int kSteps = 2;  // the second one reads a state

std::int32_t token_of(int sequence, int step, int vocab_size) {
  return (17 * sequence + 5 * step + 1) % vocab_size;
}

// Outputs of sequences 0 .. count-1 stepped together, after the last step: [count, num_outputs].
std::vector<float> outputs_of(const Transformer& model, Workspace& workspace, int first,
                              int count) {
  std::vector<SequenceState> sequences;
  for (int i = 0; i < count; ++i) sequences.push_back(model.new_sequence());
  std::vector<float> outputs;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<StepRow> rows;
    for (int i = 0; i < count; ++i) {
      rows.push_back({token_of(first + i, step, model.config().vocab_size),
                      &sequences[static_cast<std::size_t>(i)], /*wants_output=*/true});
    }
    const MatrixView<const float> out = model.step(rows, workspace);
    outputs.clear();
    for (std::size_t r = 0; r < out.rows(); ++r) {
      outputs.insert(outputs.end(), out.row(r).begin(), out.row(r).end());
    }
  }
  return outputs;
}

}  // namespace

bool rows_are_independent(const Transformer& model, int max_rows) {
  const int most = std::min(max_rows, 32);
  if (model.config().max_length != 0 && model.config().max_length < kSteps) return true;
  Workspace workspace = model.new_workspace(static_cast<std::size_t>(most));
  // First, last and between of every batch: all alone would take most of the time to start.
  std::map<int, std::vector<float>> alone;
  for (const int i : {0, 1, 2, 6, 13, most - 1}) {
    if (i < most) alone[i] = outputs_of(model, workspace, i, 1);
  }
  for (const int count : {2, 3, 7, 16, most}) {
    if (count > most) continue;
    const std::vector<float> together = outputs_of(model, workspace, 0, count);
    for (const auto& [i, one] : alone) {
      const float* const row = together.data() + static_cast<std::size_t>(i) * one.size();
      if (i < count && std::memcmp(row, one.data(), one.size() * sizeof(float)) != 0) return false;
    }
  }
  return true;
}

}  // namespace lintel
