#include "model/network/transformer.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "model/files/weights.h"
#include "model/network/transformer_parts.h"

namespace lintel {

struct Workspace::Impl {
  std::size_t max_rows = 0;
  Matrix x;                             // [max_rows, E] the residual stream
  DenseInput sublayer;                  // [max_rows, E] what a sub-layer reads of it
  Matrix query_value_key;               // [max_rows, 3 * H*D]
  DenseInput attended;                  // [max_rows, H*D]
  DenseInput hidden;                    // [max_rows, F]
  DenseInput last;                      // [max_rows, E] what the predictor reads; f32
  Matrix outputs;                       // [max_rows, num_outputs]
  std::vector<AttentionState*> states;  // [max_rows]
  PrefetchList prefetch;
  AttentionScratch scratch;
  AlignedArray<float> draft_memory;   // what rewinding needs; grows to its high-water mark
  std::size_t draft_floats = 0;       // of draft_memory
  std::size_t draft_floats_used = 0;  // since they were zeroed
  StepObserver* observer = nullptr;
  std::unique_ptr<Impl> prefix;  // recompute mode: for the longest prefix so far
};

Workspace::Workspace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;
std::size_t Workspace::max_rows() const { return impl_->max_rows; }

void Workspace::forget_drafts() {
  zero_memory(std::span(impl_->draft_memory.get(), std::exchange(impl_->draft_floats_used, 0)));
}
void Workspace::observe(StepObserver* observer) { impl_->observer = observer; }

struct Transformer::Impl : TransformerParts {
  // What a pass through the layers works on: the first `count` rows of a workspace. They belong to
  // `rows`, or to a whole prefix of as many positions, of which only the last one's output is
  // wanted.
  struct Rows {
    std::span<const StepRow> rows;  // empty: a prefix
    std::size_t count = 0;
    Workspace::Impl& workspace;

    MatrixView<float> of(MatrixView<float> matrix) const { return matrix.rows_from(0, count); }
    bool wanted(std::size_t r) const {
      return rows.empty() ? r + 1 == count : rows[r].wants_output;
    }
    void enter(StepPart part) const {
      if (workspace.observer != nullptr) workspace.observer->enter(part);
    }
  };

  int num_counts() const { return head->supports_filters() ? config.vocab_size : 0; }

  // Calls body(sequence, number of its drafts) for every sequence that has any.
  template <typename Body>
  static void for_each_drafting(std::span<const StepRow> rows, Body&& body) {
    for (std::size_t r = 0; r < rows.size();) {
      const std::size_t first = r;
      std::size_t drafts = 0;
      for (; r < rows.size() && rows[r].sequence == rows[first].sequence; ++r) {
        assert(drafts == 0 || rows[r].is_draft);
        if (rows[r].is_draft) ++drafts;
      }
      if (drafts > 0) body(*rows[first].sequence, drafts);
    }
  }

  // Tells the states of the sequences that have drafts, with memory to take them back.
  void announce_drafts(std::span<const StepRow> rows, Workspace::Impl& w) const {
    std::size_t total = 0;
    for_each_drafting(rows, [&](SequenceState&, std::size_t drafts) {
      for (std::size_t i = 0; i < layers.size(); ++i) total += draft_floats(i, drafts);
    });
    grow_draft_memory(total, w);
    w.draft_floats_used = std::max(w.draft_floats_used, total);
    float* next = w.draft_memory.get();
    for_each_drafting(rows, [&](SequenceState& sequence, std::size_t drafts) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        sequence.layer(i)->expect_drafts(drafts, {next, draft_floats(i, drafts)});
        next += draft_floats(i, drafts);
      }
    });
  }

  // Memory of a sequence's drafts in a layer, in whole cache lines.
  std::size_t draft_floats(std::size_t layer, std::size_t drafts) const {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    const std::size_t needed = attention[layer]->rewind_floats(drafts);
    return (needed + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }

  static void grow_draft_memory(std::size_t floats, Workspace::Impl& w) {
    if (floats <= w.draft_floats) return;
    zero_memory(std::span(w.draft_memory.get(), std::exchange(w.draft_floats_used, 0)));
    w.draft_memory = make_aligned<float>(floats);
    w.draft_floats = floats;
  }

  // For any drafts in a step of `rows` rows: of one sequence, or of half as many as there are rows.
  void reserve_drafts(std::size_t rows, Workspace::Impl& w) const {
    if (recompute || rows < 2) return;
    std::size_t of_one = 0;
    std::size_t of_many = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      of_one += draft_floats(i, rows - 1);
      of_many += rows / 2 * draft_floats(i, 2);
    }
    grow_draft_memory(std::max(of_one, of_many), w);
  }

  void embed(const Rows& at) const {
    for (std::size_t r = 0; r < at.rows.size(); ++r) {
      SequenceState& sequence = *at.rows[r].sequence;
      embedding->embed(at.rows[r].token, sequence.position(), at.workspace.x.row(r));
      sequence.advance();
    }
  }

  // The states of the rows, and what attention will read of them once it has its queries.
  static void list_states(std::size_t layer, const Rows& at) {
    Workspace::Impl& w = at.workspace;
    w.prefetch.clear();
    for (std::size_t r = 0; r < at.rows.size(); ++r) {
      w.states[r] = at.rows[r].sequence->layer(layer);
      if (r == 0 || w.states[r] != w.states[r - 1]) w.prefetch.add(w.states[r]->read_next());
    }
  }

  // attended = Attention(sublayer)
  void attend(std::size_t layer, const Rows& at) const {
    Workspace::Impl& w = at.workspace;
    const auto width = static_cast<std::size_t>(config.n_heads) * config.d_head;
    const std::size_t projected = layers[layer].query_value_key.out_features();
    // Without gaps between the rows, also when there are no keys.
    const MatrixView<float> all(w.query_value_key.view().data(), at.count, projected, projected);
    list_states(layer, at);
    at.enter(StepPart::kProducts);
    layers[layer].query_value_key.apply(w.sublayer, all, Dense::Output::kStore, &w.prefetch);
    const MatrixView<const float> q = all.cols_from(0, width);
    const MatrixView<const float> v = all.cols_from(width, width);
    MatrixView<const float> k;
    if (attention[layer]->uses_keys()) k = all.cols_from(2 * width, width);

    at.enter(StepPart::kAttention);
    const MatrixView<float> out = at.of(w.attended.values());
    if (at.rows.empty()) {
      attention[layer]->full_pass(q, k, v, out, w.scratch);
      return;
    }
    attention[layer]->step({w.states.data(), at.rows.size()}, q, k, v, out, w.scratch);
  }

  // x += attended W_O
  void add_attended(const Layer& layer, const Rows& at) const {
    Workspace::Impl& w = at.workspace;
    at.enter(StepPart::kOther);
    w.attended.prepare(0, at.count);
    at.enter(StepPart::kProducts);
    layer.out.apply(w.attended, at.of(w.x.view()), Dense::Output::kAdd);
  }

  // x += W_2 activation(W_1 sublayer)
  void feed_forward(const Layer& layer, const Rows& at) const {
    Workspace::Impl& w = at.workspace;
    at.enter(StepPart::kProducts);
    layer.linear1.apply(w.sublayer, at.of(w.hidden.values()));
    at.enter(StepPart::kOther);
    w.hidden.prepare(0, at.count);
    at.enter(StepPart::kProducts);
    layer.linear2.apply(w.hidden, at.of(w.x.view()), Dense::Output::kAdd);
    at.enter(StepPart::kOther);
  }

  // Moves the rows whose output is wanted to the front. In the last layer nothing reads the others
  // once attention has seen their keys and values.
  static void keep_wanted(Rows& at) {
    const MatrixView<float> x = at.workspace.x.view();
    const MatrixView<float> attended = at.workspace.attended.values();
    std::size_t kept = 0;
    for (std::size_t r = 0; r < at.count; ++r) {
      if (!at.wanted(r)) continue;
      if (kept != r) {
        std::ranges::copy(x.row(r), x.row(kept).begin());
        std::ranges::copy(attended.row(r), attended.row(kept).begin());
      }
      ++kept;
    }
    at.count = kept;
  }

  void run_layer(std::size_t i, Rows& at) const {
    const Layer& layer = layers[i];
    Workspace::Impl& w = at.workspace;
    const bool norms_first = config.norm_placement == NormPlacement::kPre;
    norms_first ? layer.norm1.apply(at.of(w.x.view()), w.sublayer)
                : take(at.of(w.x.view()), w.sublayer);
    attend(i, at);
    if (i + 1 == layers.size()) keep_wanted(at);
    if (at.count == 0) return;
    add_attended(layer, at);

    at.enter(StepPart::kOther);
    const MatrixView<float> x = at.of(w.x.view());
    if (norms_first) {
      layer.norm2.apply(x, w.sublayer);
    } else {
      layer.norm1.apply(x, x);
      take(x, w.sublayer);
    }
    feed_forward(layer, at);
    if (!norms_first) layer.norm2.apply(x, x);
  }

  static void take(MatrixView<const float> x, DenseInput& into) {
    for (std::size_t r = 0; r < x.rows(); ++r) into.assign(r, x.row(r));
  }

  // Runs every layer; then the first rows of x are what leaves the last one where it is wanted.
  std::size_t run_layers(Rows at) const {
    at.enter(StepPart::kOther);
    for (std::size_t i = 0; i < layers.size(); ++i) run_layer(i, at);
    return at.count;
  }

  // One step of every row from its state.
  MatrixView<const float> step(std::span<const StepRow> rows, Workspace::Impl& w) const {
    const Rows at{.rows = rows, .count = rows.size(), .workspace = w};
    announce_drafts(rows, w);
    embed(at);
    return predict(run_layers(at), w);
  }

  // Recompute mode: the rows that want an output run their whole prefix again.
  MatrixView<const float> recompute_step(std::span<const StepRow> rows, Workspace::Impl& w) const {
    std::size_t wanted = 0;
    for (const StepRow& row : rows) {
      row.sequence->remember(row.token);
      if (!row.wants_output) continue;
      std::ranges::copy(run_prefix(*row.sequence, w), w.x.row(wanted++).begin());
    }
    return predict(wanted, w);
  }

  // What leaves the last layer at the last position.
  std::span<const float> run_prefix(const SequenceState& sequence, Workspace::Impl& w) const {
    const auto length = static_cast<std::size_t>(sequence.position());
    if (w.prefix == nullptr || w.prefix->max_rows < length) {
      w.prefix.reset();
      w.prefix = new_workspace(length + length / 2);
    }
    Workspace::Impl& prefix = *w.prefix;
    prefix.observer = w.observer;
    for (std::size_t t = 0; t < length; ++t) {
      const auto position = static_cast<std::int64_t>(t);
      embedding->embed(sequence.token(position), position, prefix.x.row(t));
    }
    run_layers({.rows = {}, .count = length, .workspace = prefix});
    return prefix.x.row(0);
  }

  // The head's outputs of the first rows of x.
  MatrixView<const float> predict(std::size_t wanted, Workspace::Impl& w) const {
    if (wanted == 0) return {w.outputs.view().data(), 0, w.outputs.cols(), w.outputs.cols()};
    const Rows at{.rows = {}, .count = wanted, .workspace = w};
    const MatrixView<float> outputs = at.of(w.outputs.view());
    at.enter(StepPart::kOther);
    final_norm != nullptr ? final_norm->apply(at.of(w.x.view()), w.last)
                          : take(at.of(w.x.view()), w.last);
    at.enter(StepPart::kProducts);
    predictor->apply(w.last, outputs);
    at.enter(StepPart::kOther);
    return outputs;
  }

  std::unique_ptr<Workspace::Impl> new_workspace(std::size_t max_rows) const {
    const auto e = static_cast<std::size_t>(config.d_model);
    const auto hd = static_cast<std::size_t>(config.n_heads) * config.d_head;
    const auto f = static_cast<std::size_t>(config.d_ff);
    // What leaves a rectifier is not negative.
    const auto hidden_range = config.activation == Activation::kRelu
                                  ? DenseInput::Range::kNonNegative
                                  : DenseInput::Range::kSigned;
    auto workspace = std::make_unique<Workspace::Impl>();
    workspace->max_rows = max_rows;
    workspace->x = Matrix(max_rows, e);
    workspace->sublayer = DenseInput(weight_type, max_rows, e);
    workspace->query_value_key = Matrix(max_rows, 3 * hd);
    workspace->attended = DenseInput(weight_type, max_rows, hd);
    workspace->hidden = DenseInput(weight_type, max_rows, f, hidden_range);
    workspace->last = DenseInput(WeightType::kF32, max_rows, e);
    workspace->outputs = Matrix(max_rows, static_cast<std::size_t>(config.num_outputs()));
    workspace->states.resize(max_rows);
    workspace->prefetch.reserve(max_rows);
    return workspace;
  }
};

Transformer::Transformer(TransformerParts parts)
    : impl_(std::make_unique<Impl>(Impl{std::move(parts)})) {}
Transformer::~Transformer() = default;

Workspace Transformer::new_workspace(std::size_t max_rows, std::size_t max_drafting_rows) const {
  std::unique_ptr<Workspace::Impl> workspace = impl_->new_workspace(max_rows);
  impl_->reserve_drafts(max_drafting_rows, *workspace);
  return Workspace(std::move(workspace));
}

SequenceState Transformer::new_sequence() const {
  using Backends = std::span<const std::unique_ptr<AttentionBackend>>;
  return SequenceState(impl_->recompute ? Backends() : Backends(impl_->attention),
                       impl_->num_counts());
}

MatrixView<const float> Transformer::step(std::span<const StepRow> rows,
                                          Workspace& workspace) const {
  assert(!rows.empty() && rows.size() <= workspace.max_rows());
  return impl_->recompute ? impl_->recompute_step(rows, *workspace.impl_)
                          : impl_->step(rows, *workspace.impl_);
}

const ModelConfig& Transformer::config() const { return impl_->config; }
const Head& Transformer::head() const { return *impl_->head; }
WeightType Transformer::weight_type() const { return impl_->weight_type; }
std::string Transformer::kernels() const { return kernels_of(impl_->layers); }
std::int64_t Transformer::num_parameters() const { return count_parameters(impl_->config); }

std::size_t Transformer::weight_bytes() const {
  std::size_t total = impl_->predictor->weight_bytes();
  for (const Layer& layer : impl_->layers) {
    for (const Dense* dense :
         {&layer.query_value_key, &layer.out, &layer.linear1, &layer.linear2}) {
      total += dense->weight_bytes();
    }
  }
  return total;
}

std::size_t Transformer::state_bytes(std::int64_t num_tokens) const {
  std::size_t total = impl_->num_counts() * sizeof(std::uint32_t);
  if (impl_->recompute) return total + SequenceState::token_bytes(num_tokens);
  for (const auto& backend : impl_->attention) {
    if (__builtin_add_overflow(total, backend->state_bytes(num_tokens), &total)) return SIZE_MAX;
  }
  return total;
}

std::size_t Transformer::sequence_bytes(std::int64_t num_tokens) const {
  // Measured, with the allocator's own share (tests/server/sessions/session_bytes_test.cpp): a
  // layer's object and the ends of its blocks; the lists of layers and the tail of stop strings.
  constexpr std::size_t kLayerBytes = 320;
  constexpr std::size_t kSequenceBytes = 512;
  const std::size_t layers = impl_->recompute ? 0 : impl_->attention.size();
  std::size_t total = state_bytes(num_tokens);
  const std::size_t objects = kSequenceBytes + layers * kLayerBytes;
  return __builtin_add_overflow(total, objects, &total) ? SIZE_MAX : total;
}

bool Transformer::constant_state() const {
  if (impl_->recompute) return false;
  for (const auto& backend : impl_->attention) {
    if (!backend->constant_state()) return false;
  }
  return true;
}

bool Transformer::recomputes() const { return impl_->recompute; }

const std::string& Transformer::fingerprint() const { return impl_->fingerprint; }
const std::string& Transformer::config_json() const { return impl_->config_json; }
const std::vector<std::string>& Transformer::warnings() const { return impl_->warnings; }

}  // namespace lintel
