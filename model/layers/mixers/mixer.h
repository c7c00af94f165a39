// SPDX-License-Identifier: Apache-2.0
// Mixer: one half of a layer of a decoder, x += mixer(norm(x)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/core/step_observer.h"
#include "model/core/step_thread_pool.h"
#include "model/core/tensor.h"
#include "model/layers/attention/attention.h"
#include "model/layers/layer_state.h"
#include "model/lora/adapter.h"
#include "model/ops/dense.h"
#include "model/ops/dense_input.h"

namespace lintel {

// Working memory of mixers: matrices by number, which grow to their high-water mark and stay. One
// worker thread's. A mixer finds in a matrix what another one left there.
class MixerScratch {
 public:
  // At least [rows, cols], without gaps between the rows.
  MatrixView<float> matrix(std::size_t number, std::size_t rows, std::size_t cols) {
    Matrix& found = matrices_[number];
    if (found.values().size() < rows * cols) found = Matrix(1, rows * cols);
    return {found.view().data(), rows, cols, cols};
  }
  // Rows for products of `cols` inputs.
  DenseInput& input(std::size_t number, WeightType type, std::size_t rows, std::size_t cols,
                    DenseInput::Range range = DenseInput::Range::kSigned) {
    Input& found = inputs_[{number, type, range, cols}];
    if (found.rows < rows) found = {rows, DenseInput(type, rows, cols, range)};
    return found.input;
  }
  std::size_t bytes() const {
    std::size_t total = (floats.capacity() + attention.floats.capacity()) * sizeof(float) +
                        (numbers.capacity() + attention.ints.capacity()) * sizeof(std::uint32_t);
    for (const auto& [number, matrix] : matrices_) total += matrix.values().size_bytes();
    for (const auto& [key, input] : inputs_) total += input.input.bytes();
    return total;
  }
  std::vector<float> floats;
  std::vector<std::uint32_t> numbers;
  std::vector<MatrixView<const float>> views;
  std::vector<MatrixView<const float>> run_views;
  AttentionScratch attention;

 private:
  struct Key {
    std::size_t number;
    WeightType type;
    DenseInput::Range range;
    std::size_t cols;
    auto operator<=>(const Key&) const = default;
  };
  struct Input {
    std::size_t rows = 0;
    DenseInput input;
  };
  std::map<std::size_t, Matrix> matrices_;
  std::map<Key, Input> inputs_;
};

// The rows of a step whose results a mixer writes.
struct KeptRows {
  std::vector<std::uint32_t> rows;  // ascending
  AdaptedRows adapted;              // by their places in `rows`
};

// The rows of a step, as a mixer sees them. Rows of one sequence are consecutive, in order.
struct MixerRows {
  // [rows] of this mixer; empty for one that keeps none, and where the rows are one sequence from
  // its first token on, without states (recompute mode).
  std::span<LayerState* const> states;
  std::span<const std::int64_t> positions;  // [rows] of the tokens in their sequences, from 0
  MatrixView<const float> normed;           // [rows, E]; anything without Mixer::reads_floats()
  // The same, prepared for products of the model's weight type and, where these are read, in f32.
  const DenseInput& input;
  const DenseInput& exact;
  // [rows, E] what the first layer leaves to the others (RWKV-7: v of layer 0).
  MatrixView<float> carry;
  const AdaptedRows* adapted = nullptr;  // which rows have adapters; null: none
  PrefetchList* prefetch = nullptr;      // for the next apply(), which empties it; null: nothing
  const KeptRows* kept = nullptr;        // null: all; else of a mixer that can_leave_out() rows
  StepThreadPool* team = nullptr;        // its leader is this thread; null: this thread alone
  StepObserver* observer = nullptr;

  bool has_adapters() const { return adapted != nullptr && !adapted->empty(); }

  std::size_t count() const { return normed.rows(); }
  // A mixer begins in kProducts.
  void enter(StepPart part) const {
    if (observer != nullptr) observer->enter(part);
  }

  // A product of all rows, and what their adapters add to it. x: what `from` was prepared from.
  void apply(const Dense& dense, const DenseInput& from, MatrixView<const float> x,
             MatrixView<float> y, Dense::Output output = Dense::Output::kStore) const {
    apply(adapted, dense, from, x, y, output);
  }
  // The same of the rows of which `of` says the adapters.
  void apply(const AdaptedRows* of, const Dense& dense, const DenseInput& from,
             MatrixView<const float> x, MatrixView<float> y, Dense::Output output) const {
    if (of != nullptr && prefetch != nullptr) of->list(dense.number(), *prefetch);
    dense.apply(from, y, output, prefetch, team);
    if (prefetch != nullptr) prefetch->clear();
    if (of != nullptr) of->add(dense.number(), x, y);
  }
  // The same of several products at once, none of which reads what another one writes. x[i]: what
  // products[i].x was prepared from. REQUIRES: nothing is fused.
  void apply_all(std::span<const Dense::Multiplication> products,
                 std::span<const MatrixView<const float>> x) const {
    if (adapted != nullptr && prefetch != nullptr) {
      for (const auto& one : products) adapted->list(one.dense->number(), *prefetch);
    }
    Dense::apply_all(products, prefetch, team);
    if (prefetch != nullptr) prefetch->clear();
    if (adapted == nullptr) return;
    for (std::size_t i = 0; i < products.size(); ++i) {
      adapted->add(products[i].dense->number(), x[i], products[i].y);
    }
  }
};

// Const and shareable between threads. Rows are independent but for the state of their sequence:
// the bits of a row do not depend on what else is in the step, nor on the team.
class Mixer {
 public:
  virtual ~Mixer() = default;

  // The layout of its state of a sequence; null: it keeps none.
  virtual std::shared_ptr<const StateLayout> layout() const { return nullptr; }
  virtual bool keeps_state() const { return layout() != nullptr; }
  // True if it reads MixerRows::normed or exact where no row has an adapter.
  virtual bool reads_floats() const { return true; }
  // True if it can leave out the rows of add_to that are not read.
  virtual bool can_leave_out() const { return false; }
  // add_to += what it makes of the rows. add_to: [rows, E]; of `kept` those alone. It may lie where
  // the rows came from, but not where they are.
  virtual void step(const MixerRows& rows, MatrixView<float> add_to,
                    MixerScratch& scratch) const = 0;
  // Room in scratch for as many rows: where a mixer can say how much, a step allocates nothing.
  virtual void reserve(std::size_t /*rows*/, MixerScratch& /*scratch*/) const {}
  // Its products, for statistics.
  virtual std::vector<const Dense*> products() const = 0;
};

// Calls body(first row, number of rows) for the rows of each sequence.
template <typename Body>
void for_each_run(std::span<LayerState* const> states, const Body& body) {
  for (std::size_t first = 0; first < states.size();) {
    const std::size_t count = run_length(states.subspan(first));
    body(first, count);
    first += count;
  }
}

// The same for several sequences at a time: body(first row, number of rows, team), where several
// threads of the team have runs of their own and the team is null, or the one run has the team.
template <typename Body>
void share_runs(const MixerRows& rows, MixerScratch& scratch, const Body& body) {
  std::vector<std::uint32_t>& firsts = scratch.numbers;
  firsts.clear();
  for_each_run(rows.states, [&](std::size_t first, std::size_t /*length*/) {
    firsts.push_back(static_cast<std::uint32_t>(first));
  });
  const std::size_t runs = firsts.size();
  firsts.push_back(static_cast<std::uint32_t>(rows.states.size()));
  if (runs == 1) return body(std::size_t{0}, rows.states.size(), rows.team);
  split_among(rows.team, runs, [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
    for (std::size_t i = begin; i < end; ++i) {
      body(firsts[i], firsts[i + 1] - firsts[i], static_cast<StepThreadPool*>(nullptr));
    }
  });
}

// Fewer rows take one thread less time than it takes to involve others.
inline constexpr std::size_t kRowsWorthSharing = 8;

// Calls body(r) for rows that have nothing to do with each other, on the threads of the team.
template <typename Body>
void share_rows(StepThreadPool* team, std::size_t count, const Body& body) {
  if (count < kRowsWorthSharing) team = nullptr;
  split_among(team, count, [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
    for (std::size_t r = begin; r < end; ++r) body(r);
  });
}

// x / rms(x) * gain, or layer normalization where there is a bias.
struct RowNorm {
  Matrix gain;  // [1, width]
  Matrix bias;  // [1, width]; empty: root mean square
  float eps = 0.0f;

  void apply(MatrixView<const float> x, MatrixView<float> y) const;
};

}  // namespace lintel
