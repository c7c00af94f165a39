#include "server/models/self_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

namespace lintel {
namespace {

constexpr int kSteps = 2;       // the second one reads a state
constexpr int kMostRows = 256;  // several of the largest blocks that kernels take

class SelfCheck {
 public:
  SelfCheck(const Transformer& model, int max_rows, const StepFunction& step)
      : model_(model),
        step_(step),
        most_(std::min(max_rows, kMostRows)),
        workspace_(model.new_workspace(static_cast<std::size_t>(most_))) {}

  bool passes() {
    // Batches of several sizes and the largest there is: what multiplies a matrix was proven for
    // its shape before (ProductLibrary), this is the whole. Of each the last row and some between:
    // all alone would take most of the start.
    std::map<int, Outputs> alone;
    for (const int i : {0, 1, 2, 6, 15, 30, 47, 64, most_ - 1}) {
      if (i < most_) alone[i] = last_outputs(i, 1);
    }
    for (const int count : {2, 3, 7, 16, 31, 48, 65, most_}) {
      if (count <= most_ && !agrees(last_outputs(0, count), count, alone)) return false;
    }
    return most_ < kSteps || same_bits(in_one_step(), alone[0]);
  }

 private:
  using Outputs = std::vector<float>;  // [rows, num_outputs]

  std::int32_t token(int sequence, int step) const {
    return (17 * sequence + 5 * step + 1) % model_.config().vocab_size;
  }

  // Outputs of `count` sequences from `first` on, stepped together, after the last step.
  Outputs last_outputs(int first, int count) {
    std::vector<SequenceState> sequences;
    for (int i = 0; i < count; ++i) sequences.push_back(model_.new_sequence());
    Outputs outputs;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<StepRow> rows;
      for (int i = 0; i < count; ++i) {
        rows.push_back({token(first + i, step), &sequences[static_cast<std::size_t>(i)],
                        /*wants_output=*/true});
      }
      outputs = run(rows);
    }
    return outputs;
  }

  // Sequence 0 again, its tokens as rows of one step, as prompts are read.
  Outputs in_one_step() {
    SequenceState sequence = model_.new_sequence();
    std::vector<StepRow> rows;
    for (int step = 0; step < kSteps; ++step) {
      rows.push_back({token(0, step), &sequence, /*wants_output=*/step == kSteps - 1});
    }
    return run(rows);
  }

  Outputs run(std::span<const StepRow> rows) {
    const MatrixView<const float> out = step_(rows, workspace_);
    Outputs outputs;
    for (std::size_t r = 0; r < out.rows(); ++r) {
      outputs.insert(outputs.end(), out.row(r).begin(), out.row(r).end());
    }
    return outputs;
  }

  static bool agrees(const Outputs& together, int count, const std::map<int, Outputs>& alone) {
    return std::ranges::all_of(alone, [&](const auto& entry) {
      const auto& [i, one] = entry;
      if (i >= count) return true;
      return same_bits(
          std::span(together).subspan(static_cast<std::size_t>(i) * one.size(), one.size()), one);
    });
  }

  static bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  }

  const Transformer& model_;
  const StepFunction& step_;
  const int most_;
  Workspace workspace_;
};

}  // namespace

bool rows_are_independent(const Transformer& model, int max_rows) {
  return rows_are_independent(model, max_rows,
                              [&](std::span<const StepRow> rows, Workspace& workspace) {
                                return model.step(rows, workspace);
                              });
}

bool rows_are_independent(const Transformer& model, int max_rows, const StepFunction& step) {
  if (model.config().max_length != 0 && model.config().max_length < kSteps) return true;
  return SelfCheck(model, max_rows, step).passes();
}

}  // namespace lintel
