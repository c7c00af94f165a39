// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/experts.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "model/ops/mixer_kernels.h"

namespace lintel {
namespace {

// Numbers in MixerScratch, whose 0 an expert uses.
constexpr std::size_t kLogits = 1;   // [rows, N + 1]
constexpr std::size_t kWeights = 2;  // [rows, k]
constexpr std::size_t kSum = 3;      // [rows, E]
constexpr std::size_t kOutput = 4;   // [rows, E] of one expert
constexpr std::size_t kGathered = 1;

void softmax(std::span<float> x) {
  const float largest = *std::ranges::max_element(x);
  float sum = 0.0f;
  for (float& value : x) {
    value = std::exp(value - largest);
    sum += value;
  }
  for (float& value : x) value /= sum;
}

// The largest of p, equal ones by lower index, in order of index.
void choose_largest(std::span<const float> p, std::span<std::uint32_t> chosen) {
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < p.size(); ++i) {
    const bool is_full = count == chosen.size();
    if (is_full && !(p[i] > p[chosen.back()])) continue;
    std::size_t at = is_full ? count - 1 : count++;
    for (; at > 0 && p[i] > p[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = i;
  }
  std::ranges::sort(chosen);
}

// sum += weight * x.
void add_scaled(float weight, std::span<const float> x, std::span<float> sum) {
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += weight * x[i];
}

}  // namespace

Experts::Experts(std::size_t chosen, bool is_normalized, ExpertsWeights weights)
    : chosen_(chosen), is_normalized_(is_normalized), weights_(std::move(weights)) {
  assert(chosen_ >= 1 && chosen_ <= weights_.experts.size());
  assert(weights_.router->out_features() == weights_.experts.size() + 1);
}

Experts::~Experts() = default;

std::vector<const Dense*> Experts::products() const {
  std::vector<const Dense*> all = {&*weights_.router};
  const auto add = [&](const Swiglu& expert) {
    const auto of_expert = expert.products();
    all.insert(all.end(), of_expert.begin(), of_expert.end());
  };
  for (const Swiglu& expert : weights_.experts) add(expert);
  add(*weights_.shared);
  return all;
}

void Experts::choose(std::span<float> logits, std::span<std::uint32_t> chosen,
                     std::span<float> weights) const {
  softmax(logits);
  choose_largest(logits, chosen);
  float sum = 0.0f;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    weights[i] = logits[chosen[i]];
    sum += weights[i];
  }
  if (!is_normalized_) return;
  for (float& weight : weights) weight /= sum;
}

void Experts::add_expert(const Swiglu& expert, const MixerRows& rows,
                         std::span<const std::uint32_t> of_expert, std::span<const float> weights,
                         MatrixView<float> sum, MixerScratch& scratch) const {
  const std::size_t count = of_expert.size();
  if (count == 0) return;
  // Scratch for all rows of the step, whose number does not change with what they choose.
  const DenseInput* input = &rows.input;
  if (count < rows.count()) {
    DenseInput& gathered =
        scratch.input(kGathered, rows.input.type(), rows.count(), rows.normed.cols());
    for (std::size_t i = 0; i < count; ++i) {
      gathered.assign(i, rows.normed.row(of_expert[i] / chosen_));
    }
    input = &gathered;
  }
  const MatrixView<float> y = scratch.matrix(kOutput, rows.count(), sum.cols()).rows_from(0, count);
  expert.apply(*input, y, rows.team, scratch);
  for (std::size_t i = 0; i < count; ++i) {
    add_scaled(weights[of_expert[i]], y.row(i), sum.row(of_expert[i] / chosen_));
  }
}

void Experts::step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  const std::size_t experts = weights_.experts.size();
  const std::size_t places = count * chosen_;  // place r k + i: choice i of row r
  const MatrixView<float> logits = scratch.matrix(kLogits, count, experts + 1);
  rows.apply(*weights_.router, rows.exact, rows.normed, logits);

  // The expert of each place, the places in order of experts, and where those of each expert end.
  scratch.numbers.assign(2 * places + experts + 1, 0);
  const std::span<std::uint32_t> numbers(scratch.numbers);
  const std::span<std::uint32_t> expert_of = numbers.first(places);
  const std::span<std::uint32_t> sorted = numbers.subspan(places, places);
  const std::span<std::uint32_t> ends = numbers.subspan(2 * places);
  const MatrixView<float> weights = scratch.matrix(kWeights, count, chosen_);
  for (std::size_t r = 0; r < count; ++r) {
    choose(logits.row(r).first(experts), expert_of.subspan(r * chosen_, chosen_), weights.row(r));
  }
  for (const std::uint32_t expert : expert_of) ++ends[expert + 1];
  for (std::size_t e = 0; e < experts; ++e) ends[e + 1] += ends[e];
  // From the start of each expert to its end.
  for (std::uint32_t place = 0; place < places; ++place) sorted[ends[expert_of[place]]++] = place;

  const MatrixView<float> sum = scratch.matrix(kSum, count, add_to.cols());
  std::fill_n(sum.data(), count * add_to.cols(), 0.0f);
  weights_.experts.front().reserve(count, scratch);
  for (std::size_t e = 0; e < experts; ++e) {
    const std::size_t first = e == 0 ? 0 : ends[e - 1];
    add_expert(weights_.experts[e], rows, sorted.subspan(first, ends[e] - first),
               {weights.data(), places}, sum, scratch);
  }
  const MatrixView<float> shared = scratch.matrix(kOutput, count, add_to.cols());
  weights_.shared->apply(rows, shared, Dense::Output::kStore, scratch);
  for (std::size_t r = 0; r < count; ++r) {
    add_scaled(sigmoid(logits.row(r)[experts]), shared.row(r), sum.row(r));
    for (std::size_t i = 0; i < add_to.cols(); ++i) add_to.row(r)[i] += sum.row(r)[i];
  }
}

}  // namespace lintel
