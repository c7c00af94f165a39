// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/decoder.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/ops/block_formats.h"

namespace lintel {

TokenEmbedding::TokenEmbedding(DType type, std::size_t width, std::size_t rows)
    : type_(type),
      width_(width),
      row_bytes_(width / values_per_block(type) * bytes_per_block(type)),
      size_(rows * row_bytes_),
      bytes_(make_aligned<std::byte>(size_)) {}

void TokenEmbedding::row(std::int32_t token, std::span<float> out) const {
  const std::size_t begin = static_cast<std::size_t>(token) * row_bytes_;
  assert(token >= 0 && begin + row_bytes_ <= size_);
  dequantize(type_, std::span<const std::byte>(bytes_.get() + begin, row_bytes_), out);
}

void PositionEmbedding::set_frequencies() {
  frequencies_.resize((width_ + 1) / 2);
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / width_);
  }
}

// pe[p, 2i] = sin(p * 10000^(-2i/d)), pe[p, 2i+1] = cos of the same. The angle is a double: a float
// could not tell positions beyond 2^24 apart.
template <typename Body>
void PositionEmbedding::for_each_part(std::int64_t position, Body&& body) const {
  assert(position >= 0);
  if (frequencies_.empty()) {
    const std::span<const float> row = table_.row(static_cast<std::size_t>(position));
    for (std::size_t i = 0; i < width_; ++i) body(i, row[i]);
    return;
  }
  for (std::size_t i = 0; i < width_; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i / 2];
    body(i, static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle)));
  }
}

void PositionEmbedding::row(std::int64_t position, std::span<float> out) const {
  assert(out.size() == width_);
  for_each_part(position, [&](std::size_t i, float part) { out[i] = part; });
}

void PositionEmbedding::add_row(std::int64_t position, std::span<float> out) const {
  assert(out.size() == width_);
  for_each_part(position, [&](std::size_t i, float part) { out[i] += part; });
}

std::vector<std::shared_ptr<const StateLayout>> Decoder::layouts() const {
  std::vector<std::shared_ptr<const StateLayout>> all;
  for (std::size_t i = 0; i < num_layers(); ++i) {
    for (const Mixer* const mixer : layer(i).mixers()) {
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

std::size_t Decoder::weight_bytes() const {
  std::size_t total = embedding.size_bytes() + (head ? head->weight_bytes() : 0);
  for (const Dense* dense : products()) total += dense->weight_bytes();
  if (drafts != nullptr) total += drafts->in->weight_bytes() + drafts->layers.weight_bytes();
  return total;
}

void Decoder::embed(std::int32_t token, std::int64_t position, std::span<float> out) const {
  if (embedding.size_bytes() == 0) return head->row(static_cast<std::size_t>(token), out);
  embedding.row(token, out.first(embedding.width()));
  if (embedding.width() < out.size()) {
    positions.row(position, out.subspan(embedding.width()));
  } else if (positions.width() > 0) {
    positions.add_row(position, out);
  }
}

DecoderBuffers::DecoderBuffers(const Decoder& decoder, std::size_t max_rows)
    : x_(max_rows, decoder.width),
      carry_(max_rows, decoder.width),
      exact_(WeightType::kF32, max_rows, decoder.width),
      last_(decoder.head ? decoder.head->weight_type() : WeightType::kF32, max_rows,
            decoder.head ? decoder.head->in_features() : decoder.width) {
  if (decoder.residual != Residual::kSum) second_ = Matrix(max_rows, decoder.width);
  if (decoder.drafts != nullptr) {
    wanted_last_ = DenseInput(decoder.head->weight_type(), max_rows, decoder.head->in_features());
  }
  if (decoder.has_positions_in_layers) positions_ = Matrix(max_rows, decoder.width);
  if (decoder.weight_type != WeightType::kF32) {
    input_ = DenseInput(decoder.weight_type, max_rows, decoder.width);
  }
  states_.reserve(max_rows);
  row_positions_.reserve(max_rows);
  adapted_.reserve(max_rows);
  kept_.rows.reserve(max_rows);
  kept_.adapted.reserve(max_rows);
  wanted_.reserve(max_rows);
  wanted_adapted_.reserve(max_rows);
  // Outputs of a large vocabulary are not reserved: few rows want one.
  constexpr std::size_t kMostReserved = (std::size_t{16} << 20) / sizeof(float);
  const std::size_t per_row = decoder.head ? decoder.head->out_features() : 0;
  if (max_rows * per_row <= kMostReserved) outputs_ = Matrix(max_rows, per_row);
  for (const DecoderLayer& layer : decoder.layers) {
    for (const Mixer* const mixer : layer.mixers()) mixer->reserve(max_rows, scratch_);
  }
  constexpr std::size_t kBlocksOfAdapters = 256;  // beside a state for each row
  prefetch_.reserve(max_rows + kBlocksOfAdapters);
}

std::size_t DecoderBuffers::bytes() const {
  std::size_t total = scratch_.bytes();
  for (const Matrix* const matrix : {&x_, &second_, &positions_, &carry_}) {
    total += matrix->values().size_bytes();
  }
  for (const DenseInput* const input : {&exact_, &input_, &last_, &wanted_last_}) {
    total += input->bytes();
  }
  return total;
}

// The rows of a step and their buffers, of which the first `count` rows are used.
struct DecoderPass::Rows {
  std::span<const DecoderRow> rows;
  std::size_t count = 0;
  const AdaptedRows* adapted = nullptr;
  DecoderBuffers& buffers;
  StepThreadPool* team = nullptr;
  StepObserver* observer = nullptr;

  // The stream that token mixers add to and the one that they read; the same where there is one.
  MatrixView<float> x() const { return buffers.x_.view().rows_from(0, count); }
  MatrixView<float> y() const {
    return buffers.second_.rows() == 0 ? x() : buffers.second_.view().rows_from(0, count);
  }
  bool leaves_some() const { return buffers.kept_.rows.size() < rows.size(); }
  void enter(StepPart part) const {
    if (observer != nullptr) observer->enter(part);
  }
};

void DecoderPass::embed(std::span<const DecoderRow> rows, DecoderBuffers& buffers) const {
  buffers.row_positions_.clear();
  buffers.adapted_.clear();
  buffers.kept_.rows.clear();
  buffers.kept_.adapted.clear();
  buffers.wanted_.clear();
  buffers.wanted_adapted_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const DecoderRow& row = rows[r];
    const std::span<float> x = buffers.x_.row(r);
    if (row.input != nullptr) {
      std::copy_n(row.input, x.size(), x.begin());
    } else {
      decoder_.embed(row.token, row.position, x);
    }
    if (row.adapter != nullptr) row.adapter->add_value(row.token, x);
    if (buffers.second_.rows() > 0) std::ranges::copy(x, buffers.second_.row(r).begin());
    if (buffers.positions_.rows() > 0) {
      decoder_.positions.row(row.position, buffers.positions_.row(r));
    }
    buffers.row_positions_.push_back(row.position);
    buffers.adapted_.note(r, row.adapter);
    if (!row.wants_output && !row.keeps_hidden) continue;
    const std::size_t kept = buffers.kept_.rows.size();
    buffers.kept_.adapted.note(kept, row.adapter);
    buffers.kept_.rows.push_back(static_cast<std::uint32_t>(r));
    if (!row.wants_output) continue;
    buffers.wanted_adapted_.note(buffers.wanted_.size(), row.adapter);
    buffers.wanted_.push_back(static_cast<std::uint32_t>(kept));
  }
  buffers.adapted_.group();
  buffers.kept_.adapted.group();
  buffers.wanted_adapted_.group();
  if (!decoder_.input_norm.has_value()) return;
  const MatrixView<float> x = buffers.x_.view().rows_from(0, rows.size());
  decoder_.input_norm->apply(x, x);
}

// Adds a layer's inputs to the streams before its mixers: the position again, the row of the step.
void DecoderPass::add_inputs(std::size_t layer, const Rows& at) const {
  DecoderBuffers& buffers = at.buffers;
  const auto add_to_streams = [&](std::size_t r, std::span<const float> row) {
    const auto add = [&](std::span<float> to) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += row[i];
    };
    add(buffers.x_.row(r));
    if (buffers.second_.rows() > 0) add(buffers.second_.row(r));
  };
  const bool has_positions = layer > 0 && buffers.positions_.rows() > 0;
  const bool has_row = decoder_.layer_rows.rows() > 0;
  if (!has_positions && !has_row) return;
  for (std::size_t r = 0; r < at.count; ++r) {
    if (has_positions) add_to_streams(r, buffers.positions_.row(r));
    if (has_row) add_to_streams(r, decoder_.layer_rows.row(layer));
  }
}

// Prepares a mixer's input a few rows at a time, so that these are prepared for their product while
// they are in the first cache. norm: null: the rows themselves.
void DecoderPass::prepare(const RowNorm* norm, MatrixView<const float> x, bool keeps_floats,
                          StepThreadPool* team, DecoderBuffers& buffers) const {
  constexpr std::size_t kAtOnce = 4;
  const bool is_exact = decoder_.weight_type == WeightType::kF32;
  keeps_floats = keeps_floats || is_exact;
  const auto prepare_some = [&](std::size_t r, std::size_t count, std::size_t place) {
    MatrixView<const float> rows = x.rows_from(r, count);
    const MatrixView<float> values = buffers.exact_.values().rows_from(place, count);
    if (norm != nullptr) {
      norm->apply(rows, values);
    } else if (keeps_floats) {
      for (std::size_t i = 0; i < count; ++i) {
        std::ranges::copy(rows.row(i), values.row(i).begin());
      }
    }
    if (is_exact) return;
    if (norm != nullptr) rows = values;
    for (std::size_t i = 0; i < count; ++i) buffers.input_.assign(r + i, rows.row(i));
  };
  if (x.rows() < kRowsWorthSharing) team = nullptr;
  split_among(team, x.rows(), [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
    for (std::size_t r = begin; r < end; r += kAtOnce) {
      // Floats that nothing reads always go to the same few rows of a thread: written all over
      // memory they would cost more than the norm.
      prepare_some(r, std::min(kAtOnce, end - r), keeps_floats ? r : begin);
    }
  });
}

// Moves the rows that are read after the last layer to the front: nothing reads the others any
// more.
void DecoderPass::keep_wanted(Rows& at) const {
  const MatrixView<float> x = at.x();
  const MatrixView<float> y = at.y();
  const std::vector<std::uint32_t>& kept = at.buffers.kept_.rows;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == i) continue;
    std::ranges::copy(x.row(kept[i]), x.row(i).begin());
    if (y.data() != x.data()) std::ranges::copy(y.row(kept[i]), y.row(i).begin());
  }
  at.count = kept.size();
  at.adapted = &at.buffers.kept_.adapted;
}

// to += mixer(from). first_layout: of the mixer's state, if it keeps one; then of the next one's.
void DecoderPass::mix(const RowNorm& norm, const Mixer& mixer, bool leaves_out,
                      std::size_t& first_layout, MatrixView<float> from, MatrixView<float> to,
                      Rows& at) const {
  DecoderBuffers& buffers = at.buffers;
  const std::size_t count = at.count;
  const AdaptedRows* const adapted = at.adapted;
  buffers.states_.clear();
  if (mixer.keeps_state()) {
    const std::size_t layout = first_layout++;
    if (at.rows.front().states != nullptr) {
      for (const DecoderRow& row : at.rows) buffers.states_.push_back(row.states[layout].get());
    }
  }
  prepare(decoder_.has_norms_after ? nullptr : &norm, from,
          mixer.reads_floats() || !adapted->empty(), at.team, buffers);
  if (leaves_out) keep_wanted(at);
  const bool is_exact = decoder_.weight_type == WeightType::kF32;
  at.enter(StepPart::kProducts);
  mixer.step({.states = buffers.states_,
              .positions = std::span(buffers.row_positions_).first(count),
              .normed = buffers.exact_.values().rows_from(0, count),
              .input = is_exact ? buffers.exact_ : buffers.input_,
              .exact = buffers.exact_,
              .carry = buffers.carry_.view().rows_from(0, count),
              .adapted = adapted,
              .prefetch = &buffers.prefetch_,
              .kept = leaves_out ? &buffers.kept_ : nullptr,
              .team = at.team,
              .observer = at.observer},
             to, buffers.scratch_);
  at.enter(StepPart::kOther);
  if (!decoder_.has_norms_after) return;
  const MatrixView<float> left = to.rows_from(0, at.count);
  norm.apply(left, left);
}

MatrixView<const float> DecoderPass::step(std::span<const DecoderRow> rows, DecoderBuffers& buffers,
                                          StepThreadPool* team, StepObserver* observer) const {
  Rows at{.rows = rows,
          .count = rows.size(),
          .adapted = &buffers.adapted_,
          .buffers = buffers,
          .team = team,
          .observer = observer};
  at.enter(StepPart::kOther);
  embed(rows, buffers);
  std::size_t layout = 0;
  for (std::size_t i = 0; i < decoder_.num_layers() && at.count > 0; ++i) {
    const DecoderLayer& layer = decoder_.layer(i);
    const Mixer& tokens = *layer.token_mixer;
    const Mixer& channels = *layer.channel_mixer;
    const bool leaves_some = i + 1 == decoder_.num_layers() && at.leaves_some();
    const bool leaves_early = leaves_some && tokens.can_leave_out();
    add_inputs(i, at);
    mix(layer.token_norm, tokens, leaves_early, layout, at.y(), at.x(), at);
    if (leaves_some && !leaves_early && !channels.keeps_state()) keep_wanted(at);
    if (at.count == 0) break;
    mix(layer.channel_norm, channels, /*leaves_out=*/false, layout, at.x(), at.y(), at);
    if (leaves_some && channels.keeps_state()) keep_wanted(at);
  }
  return predict(at);
}

// Copies the rows that want an output to where the head reads them side by side: few, in a step
// that reads the end of a prompt.
void DecoderPass::choose_wanted(DecoderBuffers& buffers) const {
  DenseInput& input = buffers.wanted_last_;
  for (std::size_t i = 0; i < buffers.wanted_.size(); ++i) {
    const std::span<const float> row = buffers.last_.values().row(buffers.wanted_[i]);
    std::ranges::copy(row, input.values().row(i).begin());  // adapters read it, too
  }
  input.prepare(0, buffers.wanted_.size());
}

MatrixView<const float> DecoderPass::predict(const Rows& at) const {
  DecoderBuffers& buffers = at.buffers;
  const std::size_t wanted = decoder_.head ? buffers.wanted_.size() : at.count;
  const std::size_t outputs_per_row = decoder_.head ? decoder_.head->out_features() : 0;
  if (buffers.outputs_.rows() < wanted) buffers.outputs_ = Matrix(wanted, outputs_per_row);
  const MatrixView<float> outputs = buffers.outputs_.view().rows_from(0, wanted);
  if (at.count == 0) return outputs;
  const MatrixView<float> last = buffers.last_.values().rows_from(0, at.count);
  const MatrixView<float> x = at.x();
  const MatrixView<float> y = at.y();
  const std::size_t width = decoder_.width;
  MatrixView<const float> from = x;
  if (decoder_.residual != Residual::kSum) {
    for (std::size_t r = 0; r < at.count; ++r) {
      const std::span<float> row = last.row(r);
      if (decoder_.residual == Residual::kReversibleConcat) {
        std::ranges::copy(x.row(r), row.begin());
        std::ranges::copy(y.row(r), row.subspan(width).begin());
      } else {
        for (std::size_t i = 0; i < width; ++i) row[i] = (x.row(r)[i] + y.row(r)[i]) / 2;
      }
    }
    from = last;
  }
  if (decoder_.final_norm.has_value()) {
    decoder_.final_norm->apply(from, last);
  } else if (from.data() != last.data()) {
    for (std::size_t r = 0; r < at.count; ++r) std::ranges::copy(x.row(r), last.row(r).begin());
  }
  if (!decoder_.head) return last;
  if (wanted == 0) return outputs;
  const bool are_all = wanted == at.count;
  DenseInput& input = are_all ? buffers.last_ : buffers.wanted_last_;
  if (are_all) {
    input.prepare(0, wanted);
  } else {
    choose_wanted(buffers);
  }
  at.enter(StepPart::kProducts);
  decoder_.head->apply(input, outputs, Dense::Output::kStore, nullptr, at.team);
  buffers.wanted_adapted_.add(decoder_.head->number(), input.values().rows_from(0, wanted),
                              outputs);
  at.enter(StepPart::kOther);
  return outputs;
}

}  // namespace lintel
