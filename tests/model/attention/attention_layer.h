// SPDX-License-Identifier: Apache-2.0
// A layer of any kind of attention, with tokens for several sequences: what the tests of all kinds
// run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/formats/weights.h"
#include "model/layers/attention/attention.h"
#include "model/sequence.h"

namespace lintel::testing {

struct AttentionCase {
  std::string spec;  // "lsh:rounds=2,bits=4,chunk_size=8"
  int n_heads;
  int d_head;
};

// Every sample of every kind, in several shapes. LINTEL_ONLY_KIND: of a program whose other kinds
// are those of model_test, which has them all.
inline std::vector<AttentionCase> all_attention_cases() {
  std::vector<AttentionCase> cases;
#ifdef LINTEL_ONLY_KIND
  const std::vector<std::string> types = {LINTEL_ONLY_KIND};
#else
  const std::vector<std::string> types = attention_types();
#endif
  for (const std::string& type : types) {
    for (const std::string& spec : sample_specs(type)) {
      for (const auto& [n_heads, d_head] : {std::pair{4, 16}, {3, 5}, {1, 33}, {2, 32}}) {
        cases.push_back({spec, n_heads, d_head});
      }
    }
  }
  return cases;
}

class AttentionLayer {
 public:
  static constexpr std::size_t kSequences = 3;
  static constexpr std::size_t kTokens = 70;  // more than a chunk, a page or a window of a sample

  using Outputs = std::vector<std::vector<float>>;  // [rows][out_width]

  explicit AttentionLayer(const AttentionCase& which) : AttentionLayer(params_of(which)) {}

  const AttentionBackend& backend() const { return *backends_[0]; }
  const AttentionParams& params() const { return params_; }
  SequenceState new_sequence() const { return SequenceState(layouts_, 0); }

  struct Fed {
    SequenceState* sequence;
    std::size_t source;  // of the tokens: 0 .. kSequences-1
    std::size_t token;
    bool is_draft = false;
  };

  // One step; a row of outputs for each row fed. Inputs lie side by side, as in the model.
  Outputs step(const std::vector<Fed>& rows) {
    Matrix inputs(rows.size(), inputs_.cols());
    std::vector<LayerState*> states;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::ranges::copy(inputs_.row(rows[r].source * kTokens + rows[r].token),
                        inputs.row(r).begin());
      states.push_back(rows[r].sequence->layer(0));
      rows[r].sequence->advance();
    }
    announce_drafts(rows);
    Matrix out(rows.size(), out_width_);
    backend().step(states, parts_of(inputs.view()), out.view(), scratch_);
    return rows_of(out);
  }

  // All tokens of a source at once.
  Outputs full_pass(std::size_t source) {
    const Matrix& all = inputs_;
    Matrix out(kTokens, out_width_);
    backend().full_pass(parts_of(all.view().rows_from(source * kTokens, std::size_t{kTokens})),
                        out.view(), scratch_);
    return rows_of(out);
  }

  // Tokens first .. last - 1 of a source, one step each.
  Outputs walk(SequenceState& sequence, std::size_t source, std::size_t first, std::size_t last) {
    Outputs outputs;
    for (std::size_t t = first; t < last; ++t) outputs.push_back(step({{&sequence, source, t}})[0]);
    return outputs;
  }

  // Another token for a source, from here on.
  void change(std::size_t source, std::size_t token) {
    for (float& value : inputs_.row(source * kTokens + token)) value = -2.0f * value + 0.5f;
  }
  void spoil(std::size_t source, std::size_t token, float with) {
    std::ranges::fill(inputs_.row(source * kTokens + token), with);
  }

  // True if the memory of the drafts of the last two steps still holds anything of them.
  bool remembers_drafts() const {
    const auto is_used = [](const std::vector<float>& memory) {
      return !std::ranges::all_of(memory, [](float x) { return x == 0.0f || x == kUntouched; });
    };
    return std::ranges::any_of(draft_memory_, is_used) ||
           std::ranges::any_of(last_draft_memory_, is_used);
  }

 private:
  static constexpr float kUntouched = -7.5f;

  struct Params {
    AttentionParams params;
    std::vector<Matrix> own;
  };

  explicit AttentionLayer(Params given)
      : own_(std::move(given.own)),
        params_{given.params.config, given.params.dims, own_},
        out_width_(static_cast<std::size_t>(lintel::out_width(params_.config, params_.dims))) {
    std::size_t total = 0;
    for (const Projection& p : params_.config.kind().projections(params_.config, params_.dims)) {
      if (p.is_read) widths_.push_back(static_cast<std::size_t>(p.width));
    }
    for (const std::size_t width : widths_) total += width;
    inputs_ = Matrix(kSequences * kTokens, total);
    std::mt19937 generator(5);
    std::normal_distribution<float> normal;
    for (float& value : inputs_.values()) value = normal(generator);
    backends_.push_back(make_attention(params_));
    layouts_.push_back(backends_[0]);
  }

  static Params params_of(const AttentionCase& which) {
    const LayerDims dims{.d_model = which.n_heads * which.d_head,
                         .n_heads = which.n_heads,
                         .d_head = which.d_head,
                         .max_length = 256};
    Params result{{attention_of(which.spec), dims, {}}, {}};
    for (const OwnTensor& tensor : own_tensors(result.params.config, dims)) {
      result.own.push_back(TensorSpec{tensor.name, tensor.shape}.new_matrix());
      draw_tensor(result.own.back().values(), tensor, /*seed=*/9, /*layer=*/0,
                  result.own.size() - 1);
    }
    return result;
  }

  std::vector<MatrixView<const float>> parts_of(MatrixView<const float> all) const {
    std::vector<MatrixView<const float>> parts;
    std::size_t first = 0;
    for (const std::size_t width : widths_) {
      parts.push_back(all.cols_from(std::exchange(first, first + width), width));
    }
    return parts;
  }

  static Outputs rows_of(const Matrix& matrix) {
    Outputs outputs;
    for (std::size_t r = 0; r < matrix.rows(); ++r) {
      outputs.emplace_back(matrix.row(r).begin(), matrix.row(r).end());
    }
    return outputs;
  }

  // Memory of its own for every sequence that drafts, with random content.
  void announce_drafts(const std::vector<Fed>& rows) {
    std::swap(draft_memory_, last_draft_memory_);  // of which some may enter the states now
    draft_memory_.clear();
    for (const Fed& row : rows) {
      const auto of_same = [&](const Fed& other) { return other.sequence == row.sequence; };
      if (&row != &*std::ranges::find_if(rows, of_same)) continue;
      const auto drafts = static_cast<std::size_t>(std::ranges::count_if(
          rows, [&](const Fed& other) { return of_same(other) && other.is_draft; }));
      if (drafts == 0) continue;
      const auto fed = std::ranges::count_if(rows, of_same);
      draft_memory_.emplace_back(backend().rollback_floats(drafts, row.sequence->position() + fed),
                                 -7.5f);
      row.sequence->begin_drafts();
      row.sequence->layer(0)->begin_speculation(drafts, draft_memory_.back());
    }
  }

  std::vector<Matrix> own_;
  AttentionParams params_;
  std::size_t out_width_;
  std::vector<std::size_t> widths_;  // of what the kind reads
  Matrix inputs_;                    // [sequences * tokens, sum of widths]
  std::vector<std::vector<float>> draft_memory_, last_draft_memory_;
  std::vector<std::shared_ptr<const AttentionBackend>> backends_;
  std::vector<std::shared_ptr<const StateLayout>> layouts_;
  AttentionScratch scratch_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool same_bits(const AttentionLayer::Outputs& a, const AttentionLayer::Outputs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return same_bits(x, y); });
}

#define LINTEL_FOR_EACH_ATTENTION(layer)                                           \
  const auto which = GENERATE(from_range(lintel::testing::all_attention_cases())); \
  CAPTURE(which.spec, which.n_heads, which.d_head);                                \
  lintel::testing::AttentionLayer layer(which)

}  // namespace lintel::testing
