// SPDX-License-Identifier: Apache-2.0
#include "model/forward_pass.h"

#include <algorithm>
#include <utility>

namespace lintel {

// What a pass through the layers works on: the first `count` rows of a workspace. They belong to
// `rows`, or to a whole prefix of as many positions, of which only the last one's output is
// wanted.
struct ForwardPass::Rows {
  std::span<const BatchRow> rows;  // empty: a prefix
  std::size_t count = 0;
  const Adapter* adapter = nullptr;  // of a prefix
  Activations& workspace;

  MatrixView<float> of(MatrixView<float> matrix) const { return matrix.rows_from(0, count); }
  // The stream that attention adds to and the one that it reads; the same where there is one.
  MatrixView<float> x() const { return of(workspace.x.view()); }
  MatrixView<float> y() const {
    return workspace.second.rows() == 0 ? x() : of(workspace.second.view());
  }
  bool wanted(std::size_t r) const { return rows.empty() ? r + 1 == count : rows[r].wants_output; }
  const Adapter* adapter_of(std::size_t r) const {
    return rows.empty() ? adapter : rows[r].sequence->adapter().get();
  }
  void enter(StepPart part) const {
    if (workspace.observer != nullptr) workspace.observer->enter(part);
  }
};

namespace {

void take(MatrixView<const float> x, DenseInput& into) {
  for (std::size_t r = 0; r < x.rows(); ++r) into.assign(r, x.row(r));
}

void add(std::span<const float> row, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += row[i];
}

}  // namespace

std::unique_ptr<Activations> ForwardPass::new_buffers(std::size_t max_rows) const {
  const ModelConfig& config = parts_.config;
  const auto e = static_cast<std::size_t>(config.d_model);
  const auto f = static_cast<std::size_t>(config.d_ff);
  // What leaves a rectifier is not negative.
  const auto hidden_range = config.activation == Activation::kRelu ? DenseInput::Range::kNonNegative
                                                                   : DenseInput::Range::kSigned;
  auto buffers = std::make_unique<Activations>();
  buffers->max_rows = max_rows;
  buffers->x = Matrix(max_rows, e);
  buffers->sublayer = DenseInput(parts_.weight_type, max_rows, e);
  std::size_t projected = 0;
  std::size_t inputs = 0;
  if (config.is_reversible()) {
    buffers->second = Matrix(max_rows, e);
    buffers->joined = Matrix(max_rows, static_cast<std::size_t>(config.last_width()));
  }
  if (config.position_injection == PositionInjection::kEveryLayer) {
    buffers->positions = Matrix(max_rows, e);
  }
  for (const Layer& layer : parts_.layers) {
    projected = std::max(projected, layer.projections.out_features());
    inputs = std::max(inputs, layer.input_widths.size());
    const std::size_t width = layer.out.in_features();
    buffers->attended.try_emplace(width, parts_.weight_type, max_rows, width);
  }
  buffers->projected = Matrix(max_rows, projected);
  buffers->inputs.reserve(inputs);
  buffers->run_inputs.reserve(inputs);
  buffers->hidden = DenseInput(parts_.weight_type, max_rows, f, hidden_range);
  buffers->last =
      DenseInput(WeightType::kF32, max_rows, static_cast<std::size_t>(config.last_width()));
  buffers->outputs = Matrix(max_rows, static_cast<std::size_t>(config.num_outputs()));
  buffers->states.resize(max_rows);
  buffers->prefetch.reserve(max_rows + 16 * 2 * inputs);
  buffers->adapted.reserve(max_rows);
  return buffers;
}

void ForwardPass::embed(std::int32_t token, std::int64_t position, const Adapter* adapter,
                        std::size_t row, Activations& w) const {
  parts_.embedding->embed(token, position, w.x.row(row));
  if (adapter != nullptr) adapter->add_value(token, w.x.row(row));
  if (w.second.rows() > 0) std::ranges::copy(w.x.row(row), w.second.row(row).begin());
  if (w.positions.rows() > 0) parts_.embedding->position_row(position, w.positions.row(row));
}

// What a layer adds to the streams before anything else: the position again, the row of the step.
void ForwardPass::add_inputs(std::size_t i, const Rows& at) const {
  Activations& w = at.workspace;
  const auto add_to_streams = [&](std::size_t r, std::span<const float> row) {
    add(row, w.x.row(r));
    if (w.second.rows() > 0) add(row, w.second.row(r));
  };
  for (std::size_t r = 0; r < at.count; ++r) {
    if (i > 0 && w.positions.rows() > 0) add_to_streams(r, w.positions.row(r));
    if (parts_.config.step_embedding) add_to_streams(r, parts_.step_embedding.row(i));
  }
}

// The states of the rows, and what attention will read of them once it has its queries.
void ForwardPass::list_states(std::size_t layer, const Rows& at) const {
  Activations& w = at.workspace;
  w.prefetch.clear();
  w.adapted.list(product_number(AdaptedProduct::kProjections, weights_of(layer)), w.prefetch);
  for (std::size_t r = 0; r < at.rows.size(); ++r) {
    w.states[r] = at.rows[r].sequence->layer(layer);
    if (r == 0 || w.states[r] != w.states[r - 1]) w.prefetch.add(w.states[r]->read_next());
  }
}

void ForwardPass::note_adapters(const Rows& at) const {
  AdaptedRows& adapted = at.workspace.adapted;
  adapted.clear();
  for (std::size_t r = 0; r < at.count; ++r) adapted.note(r, at.adapter_of(r));
  adapted.group();
}

// What a sub-layer reads, as it was before a product's weight type made something of it.
MatrixView<const float> ForwardPass::sublayer_input(const Rows& at) const {
  const bool norms_first = parts_.config.norm_placement == NormPlacement::kPre;
  return norms_first ? at.of(at.workspace.sublayer.values()) : at.x();
}

// Attention a sequence at a time, whose floats are prepared for the next product while they are in
// the first cache, and always in the same place: with rows of their own they would go to the second
// cache and come back.
void ForwardPass::attend_into(const AttentionBackend& attention, DenseInput& out,
                              const Rows& at) const {
  Activations& w = at.workspace;
  const std::span<LayerState* const> states(w.states.data(), at.rows.size());
  for (std::size_t begin = 0; begin < states.size();) {
    const std::size_t count = run_length(states.subspan(begin));
    w.run_inputs.clear();
    for (const auto& input : w.inputs) w.run_inputs.push_back(input.rows_from(begin, count));
    const MatrixView<float> values = out.values().rows_from(0, count);
    attention.step(states.subspan(begin, count), w.run_inputs, values, w.scratch);
    for (std::size_t r = 0; r < count; ++r) out.assign(begin + r, values.row(r));
    begin += count;
  }
}

// attended = Attention(sublayer). Returns whether it is prepared.
bool ForwardPass::attend(std::size_t i, const Rows& at) const {
  const Layer& layer = parts_.layer(i);
  const AttentionBackend& attention = *parts_.attention[i];
  Activations& w = at.workspace;
  // Without gaps between the rows, for layers of any width.
  const std::size_t projected = layer.projections.out_features();
  const MatrixView<float> all(w.projected.view().data(), at.count, projected, projected);
  list_states(i, at);
  at.enter(StepPart::kProducts);
  layer.projections.apply(w.sublayer, all, Dense::Output::kStore, &w.prefetch, w.team);
  w.adapted.add(product_number(AdaptedProduct::kProjections, weights_of(i)), sublayer_input(at),
                all);
  w.inputs.clear();
  std::size_t first = 0;
  for (const std::size_t width : layer.input_widths) {
    w.inputs.push_back(all.cols_from(std::exchange(first, first + width), width));
  }

  at.enter(StepPart::kAttention);
  DenseInput& attended = w.attended.at(layer.out.in_features());
  if (at.rows.empty()) {
    attention.full_pass(w.inputs, at.of(attended.values()), w.scratch);
    return false;
  }
  // Adapters read the floats, and so does the caller that moves rows after the last layer.
  if (attended.type() != WeightType::kF32 && w.adapted.empty() &&
      (i + 1 < parts_.attention.size() || all_are_wanted(at))) {
    attend_into(attention, attended, at);
    return true;
  }
  attention.step({w.states.data(), at.rows.size()}, w.inputs, at.of(attended.values()), w.scratch);
  return false;
}

// x += attended W_O
void ForwardPass::add_attended(std::size_t i, bool is_prepared, const Rows& at) const {
  const Layer& layer = parts_.layer(i);
  Activations& w = at.workspace;
  DenseInput& attended = w.attended.at(layer.out.in_features());
  at.enter(StepPart::kOther);
  if (!is_prepared) attended.prepare(0, at.count);
  at.enter(StepPart::kProducts);
  w.prefetch.clear();
  w.adapted.list(product_number(AdaptedProduct::kOut, weights_of(i)), w.prefetch);
  layer.out.apply(attended, at.x(), Dense::Output::kAdd, &w.prefetch, w.team);
  w.adapted.add(product_number(AdaptedProduct::kOut, weights_of(i)), at.of(attended.values()),
                at.x());
}

// y += W_2 activation(W_1 sublayer). What an adapter adds comes before the activation.
void ForwardPass::feed_forward(std::size_t i, const Rows& at) const {
  const Layer& layer = parts_.layer(i);
  Activations& w = at.workspace;
  const MatrixView<float> hidden = at.of(w.hidden.values());
  at.enter(StepPart::kProducts);
  bool is_prepared = false;
  if (w.adapted.empty()) {
    is_prepared = layer.linear1.apply_into(w.sublayer, at.count, w.hidden, w.team);
  } else {
    w.prefetch.clear();
    w.adapted.list(product_number(AdaptedProduct::kLinear1, weights_of(i)), w.prefetch);
    layer.linear1.apply(w.sublayer, hidden, Dense::Output::kStoreUnfused, &w.prefetch, w.team);
    w.adapted.add(product_number(AdaptedProduct::kLinear1, weights_of(i)), sublayer_input(at),
                  hidden);
    layer.linear1.fuse(hidden);
  }
  at.enter(StepPart::kOther);
  if (!is_prepared) w.hidden.prepare(0, at.count);
  at.enter(StepPart::kProducts);
  w.prefetch.clear();
  w.adapted.list(product_number(AdaptedProduct::kLinear2, weights_of(i)), w.prefetch);
  layer.linear2.apply(w.hidden, at.y(), Dense::Output::kAdd, &w.prefetch, w.team);
  w.adapted.add(product_number(AdaptedProduct::kLinear2, weights_of(i)), hidden, at.y());
  at.enter(StepPart::kOther);
}

bool ForwardPass::all_are_wanted(const Rows& at) {
  return std::ranges::all_of(at.rows, &BatchRow::wants_output);
}

// Moves the rows whose output is wanted to the front. In the last layer nothing reads the others
// once attention has seen their keys and values.
void ForwardPass::keep_wanted(Rows& at) const {
  const Layer& last = parts_.layer(parts_.attention.size() - 1);
  AdaptedRows& adapted = at.workspace.adapted;
  adapted.clear();
  const MatrixView<float> x = at.x();
  const MatrixView<float> y = at.y();
  const MatrixView<float> attended = at.workspace.attended.at(last.out.in_features()).values();
  std::size_t kept = 0;
  for (std::size_t r = 0; r < at.count; ++r) {
    if (!at.wanted(r)) continue;
    if (kept != r) {
      std::ranges::copy(x.row(r), x.row(kept).begin());
      if (parts_.config.is_reversible()) std::ranges::copy(y.row(r), y.row(kept).begin());
      std::ranges::copy(attended.row(r), attended.row(kept).begin());
    }
    adapted.note(kept, at.adapter_of(r));
    ++kept;
  }
  adapted.group();
  at.count = kept;
}

// Of a reversible model y is the other stream: x += attention(norm1(y)), y +=
// feed_forward(norm2(x)).
void ForwardPass::run_layer(std::size_t i, Rows& at) const {
  const Layer& layer = parts_.layer(i);
  Activations& w = at.workspace;
  const bool norms_first = parts_.config.norm_placement == NormPlacement::kPre;
  add_inputs(i, at);
  norms_first ? layer.norm1.apply(at.y(), w.sublayer, !w.adapted.empty())
              : take(at.x(), w.sublayer);
  const bool is_prepared = attend(i, at);
  if (i + 1 == parts_.attention.size()) keep_wanted(at);
  if (at.count == 0) return;
  add_attended(i, is_prepared, at);

  at.enter(StepPart::kOther);
  const MatrixView<float> x = at.x();
  if (norms_first) {
    layer.norm2.apply(x, w.sublayer, !w.adapted.empty());
  } else {
    layer.norm1.apply(x, x);
    take(x, w.sublayer);
  }
  feed_forward(i, at);
  if (!norms_first) layer.norm2.apply(x, x);
}

// What leaves a reversible model: the mean of its streams, or both.
void ForwardPass::join(const Rows& at) const {
  const auto width = static_cast<std::size_t>(parts_.config.d_model);
  const bool mean = parts_.config.residual == Residual::kReversibleMean;
  for (std::size_t r = 0; r < at.count; ++r) {
    const std::span<const float> x = at.x().row(r);
    const std::span<const float> y = at.y().row(r);
    const std::span<float> out = at.workspace.joined.row(r);
    std::ranges::copy(x, out.begin());
    if (!mean) std::ranges::copy(y, out.subspan(width).begin());
    for (std::size_t i = 0; mean && i < width; ++i) out[i] = (x[i] + y[i]) / 2;
  }
}

std::size_t ForwardPass::run_layers(Rows at) const {
  at.enter(StepPart::kOther);
  note_adapters(at);
  for (std::size_t i = 0; i < parts_.attention.size(); ++i) run_layer(i, at);
  if (parts_.config.is_reversible()) join(at);
  return at.count;
}

MatrixView<float> ForwardPass::last(Activations& w) const {
  return parts_.config.is_reversible() ? w.joined.view() : w.x.view();
}

std::size_t ForwardPass::run(std::span<const BatchRow> rows, Activations& w) const {
  return run_layers({.rows = rows, .count = rows.size(), .workspace = w});
}

std::size_t ForwardPass::run_prefix(std::size_t num_positions, const Adapter* adapter,
                                    Activations& w) const {
  return run_layers({.rows = {}, .count = num_positions, .adapter = adapter, .workspace = w});
}

MatrixView<const float> ForwardPass::predict(std::size_t wanted, Activations& w) const {
  if (wanted == 0) return {w.outputs.view().data(), 0, w.outputs.cols(), w.outputs.cols()};
  const Rows at{.rows = {}, .count = wanted, .workspace = w};
  const MatrixView<float> outputs = at.of(w.outputs.view());
  at.enter(StepPart::kOther);
  const MatrixView<float> last = at.of(this->last(w));
  parts_.final_norm != nullptr ? parts_.final_norm->apply(last, w.last, true) : take(last, w.last);
  at.enter(StepPart::kProducts);
  parts_.predictor->apply(w.last, outputs, Dense::Output::kStore, nullptr, w.team);
  w.adapted.add(product_number(AdaptedProduct::kPredictor, 0), at.of(w.last.values()), outputs);
  at.enter(StepPart::kOther);
  return outputs;
}

// Recompute mode: every output takes its whole prefix again.

namespace {

class RecomputeMode final : public DecodeMode {
 public:
  explicit RecomputeMode(const TransformerParts& parts) : pass_(parts) {}

  MatrixView<const float> step(std::span<const BatchRow> rows,
                               Activations& buffers) const override {
    std::size_t wanted = 0;
    buffers.adapted.clear();
    for (const BatchRow& row : rows) {
      row.sequence->remember(row.token);
      if (!row.wants_output) continue;
      buffers.adapted.note(wanted, row.sequence->adapter().get());
      std::ranges::copy(run_prefix(*row.sequence, buffers),
                        pass_.last(buffers).row(wanted++).begin());
    }
    buffers.adapted.group();
    return pass_.predict(wanted, buffers);
  }

  std::unique_ptr<Activations> new_buffers(std::size_t max_rows) const override {
    return pass_.new_buffers(max_rows);
  }
  void reserve_drafts(std::size_t /*rows*/, Activations& /*buffers*/) const override {}
  DraftMemory::Layouts layouts() const override { return {}; }
  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return SequenceState::token_bytes(num_tokens);
  }
  std::int64_t tokens_until_full() const override { return kNeverFull; }
  std::int64_t page_tokens() const override { return 0; }

 private:
  // What leaves the last layer at the last position.
  std::span<const float> run_prefix(const SequenceState& sequence, Activations& buffers) const {
    const auto length = static_cast<std::size_t>(sequence.position());
    if (buffers.prefix == nullptr || buffers.prefix->max_rows < length) {
      buffers.prefix.reset();
      buffers.prefix = pass_.new_buffers(length + length / 2);
    }
    Activations& prefix = *buffers.prefix;
    const Adapter* const adapter = sequence.adapter().get();
    prefix.observer = buffers.observer;
    for (std::size_t t = 0; t < length; ++t) {
      const auto position = static_cast<std::int64_t>(t);
      pass_.embed(sequence.token(position), position, adapter, t, prefix);
    }
    pass_.run_prefix(length, adapter, prefix);
    return pass_.last(prefix).row(0);
  }

  const ForwardPass pass_;
};

}  // namespace

std::unique_ptr<DecodeMode> recompute_mode(const TransformerParts& parts) {
  return std::make_unique<RecomputeMode>(parts);
}

}  // namespace lintel
