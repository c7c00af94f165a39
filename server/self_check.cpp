#include "server/self_check.h"

#include <algorithm>
#include <cstring>
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
  std::vector<float> alone;
  for (int i = 0; i < most; ++i) {
    const std::vector<float> one = outputs_of(model, workspace, i, 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  for (const int count : {2, 3, 7, 16, most}) {
    if (count > most) continue;
    const std::vector<float> together = outputs_of(model, workspace, 0, count);
    if (std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace lintel
