// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/decoder.h"

#include <algorithm>
#include <cassert>

#include "model/ops/block_formats.h"

namespace lintel {

TokenEmbedding::TokenEmbedding(DType type, std::size_t width, std::size_t rows)
    : type_(type),
      row_bytes_(width / values_per_block(type) * bytes_per_block(type)),
      size_(rows * row_bytes_),
      bytes_(make_aligned<std::byte>(size_)) {}

void TokenEmbedding::row(std::int32_t token, std::span<float> out) const {
  const std::size_t begin = static_cast<std::size_t>(token) * row_bytes_;
  assert(begin + row_bytes_ <= size_);
  dequantize(type_, std::span<const std::byte>(bytes_.get() + begin, row_bytes_), out);
}

std::vector<std::shared_ptr<const StateLayout>> Decoder::layouts() const {
  std::vector<std::shared_ptr<const StateLayout>> all;
  for (const DecoderLayer& layer : layers) {
    for (const Mixer* const mixer : layer.mixers()) {
      if (auto layout = mixer->layout()) all.push_back(std::move(layout));
    }
  }
  return all;
}

std::vector<const Dense*> Decoder::products() const {
  std::vector<const Dense*> all;
  for (const DecoderLayer& layer : layers) {
    for (const Mixer* const mixer : layer.mixers()) {
      const auto of_mixer = mixer->products();
      all.insert(all.end(), of_mixer.begin(), of_mixer.end());
    }
  }
  return all;
}

DecoderBuffers::DecoderBuffers(const Decoder& decoder, std::size_t max_rows)
    : x_(max_rows, decoder.width),
      normed_(max_rows, decoder.width),
      carry_(max_rows, decoder.width),
      input_(decoder.weight_type, max_rows, decoder.width),
      exact_(WeightType::kF32, max_rows, decoder.width) {
  states_.reserve(max_rows);
  positions_.reserve(max_rows);
  adapted_.reserve(max_rows);
}

void DecoderPass::embed(std::span<const DecoderRow> rows, DecoderBuffers& buffers) const {
  buffers.positions_.clear();
  buffers.adapted_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    decoder_.embed(rows[r].token, buffers.x_.row(r));
    buffers.positions_.push_back(rows[r].position);
    buffers.adapted_.note(r, rows[r].adapter);
  }
  buffers.adapted_.group();
  if (!decoder_.input_norm.has_value()) return;
  const MatrixView<float> x = buffers.x_.view().rows_from(0, rows.size());
  decoder_.input_norm->apply(x, x);
}

void DecoderPass::mix(const RowNorm& norm, const Mixer& mixer, std::size_t count,
                      DecoderBuffers& buffers, StepThreadPool* team) const {
  const MatrixView<float> x = buffers.x_.view().rows_from(0, count);
  const MatrixView<float> normed = buffers.normed_.view().rows_from(0, count);
  norm.apply(x, normed);
  for (std::size_t r = 0; r < count; ++r) {
    buffers.exact_.assign(r, normed.row(r));
    if (decoder_.weight_type != WeightType::kF32) buffers.input_.assign(r, normed.row(r));
  }
  const bool is_exact = decoder_.weight_type == WeightType::kF32;
  mixer.step({.states = buffers.states_,
              .positions = std::span(buffers.positions_).first(count),
              .normed = normed,
              .input = is_exact ? buffers.exact_ : buffers.input_,
              .exact = buffers.exact_,
              .carry = buffers.carry_.view().rows_from(0, count),
              .team = team,
              .adapted = &buffers.adapted_},
             x, buffers.scratch_);
}

// Moves the rows whose output is wanted to the front: nothing reads the others any more.
std::size_t DecoderPass::keep_wanted(std::span<const DecoderRow> rows, DecoderBuffers& buffers) {
  std::size_t kept = 0;
  buffers.adapted_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].wants_output) continue;
    if (kept != r) std::ranges::copy(buffers.x_.row(r), buffers.x_.row(kept).begin());
    buffers.adapted_.note(kept++, rows[r].adapter);
  }
  buffers.adapted_.group();
  return kept;
}

MatrixView<const float> DecoderPass::predict(std::size_t count, DecoderBuffers& buffers,
                                             StepThreadPool* team) const {
  const std::size_t vocabulary = decoder_.head->out_features();
  if (buffers.outputs_.rows() < count) buffers.outputs_ = Matrix(count, vocabulary);
  if (count == 0) return {buffers.outputs_.view().data(), 0, vocabulary, vocabulary};
  const MatrixView<float> normed = buffers.normed_.view().rows_from(0, count);
  decoder_.final_norm.apply(buffers.x_.view().rows_from(0, count), normed);
  const bool is_exact = decoder_.head->weight_type() == WeightType::kF32;
  DenseInput& input = is_exact ? buffers.exact_ : buffers.input_;
  for (std::size_t r = 0; r < count; ++r) input.assign(r, normed.row(r));
  const MatrixView<float> outputs = buffers.outputs_.view().rows_from(0, count);
  decoder_.head->apply(input, outputs, Dense::Output::kStore, nullptr, team);
  if (!buffers.adapted_.empty()) buffers.adapted_.add(decoder_.head->number(), normed, outputs);
  return outputs;
}

}  // namespace lintel
