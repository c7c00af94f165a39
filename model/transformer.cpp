#include "model/transformer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "model/embedding.h"
#include "model/kernels.h"
#include "model/sha256.h"
#include "model/weights.h"

namespace lintel {
namespace {

// A linear projection with its weights packed.
Dense pack(const LinearWeights& linear, const Dense::Options& options) {
  return Dense(linear.weight.values(), linear.bias.values(), linear.weight.cols(),
               linear.weight.rows(), options);
}

// Projections of one input, one below the other: one product instead of several.
Dense pack_stacked(std::span<const LinearWeights* const> parts, const Dense::Options& options) {
  std::vector<float> weight;
  std::vector<float> bias;
  for (const LinearWeights* part : parts) {
    weight.insert(weight.end(), part->weight.values().begin(), part->weight.values().end());
    bias.insert(bias.end(), part->bias.values().begin(), part->bias.values().end());
  }
  return Dense(weight, bias, parts[0]->weight.cols(), bias.size(), options);
}

struct Norm {
  Norm(NormWeights weights, double layer_norm_eps)
      : gain(std::move(weights.weight)),
        bias(std::move(weights.bias)),
        eps(static_cast<float>(layer_norm_eps)) {}

  void apply(MatrixView<const float> x, MatrixView<float> y) const {
    layer_norm(x, gain.values(), bias.values(), eps, y);
  }

  Matrix gain;
  Matrix bias;
  float eps;
};

struct Layer {
  Dense query_value_key;  // [2 or 3 * H*D, E]; the keys last, and only where attention reads them
  Dense out;              // [E, H*D]
  Dense linear1;          // [F, E], with the activation
  Dense linear2;          // [E, F]
  Norm norm1;
  Norm norm2;
};

Layer make_layer(const ModelConfig& config, LayerWeights& weights, bool uses_keys,
                 WeightType weight_type) {
  const Dense::Options plain{.weight_type = weight_type};
  const Dense::Options activated{
      .weight_type = weight_type,
      .fused = config.activation == Activation::kRelu ? Dense::Fused::kRelu : Dense::Fused::kGelu};
  const std::array projections = {&std::as_const(weights.query), &std::as_const(weights.value),
                                  &std::as_const(weights.key)};
  return {.query_value_key = pack_stacked(std::span(projections).first(uses_keys ? 3 : 2), plain),
          .out = pack(weights.out, plain),
          .linear1 = pack(weights.linear1, activated),
          .linear2 = pack(weights.linear2, plain),
          .norm1 = Norm(std::move(weights.norm1), config.layer_norm_eps),
          .norm2 = Norm(std::move(weights.norm2), config.layer_norm_eps)};
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw ModelError(file.string() + ": cannot be read");
  return text.str();
}

}  // namespace

struct Workspace::Impl {
  std::size_t max_rows = 0;
  Matrix x;                             // [max_rows, E] the residual stream
  Matrix normed;                        // [max_rows, E]
  Matrix query_value_key;               // [max_rows, 3 * H*D]
  Matrix attended;                      // [max_rows, H*D]
  Matrix delta;                         // [max_rows, E] what a sub-layer adds
  Matrix hidden;                        // [max_rows, F]
  Matrix outputs;                       // [max_rows, num_outputs]
  std::vector<AttentionState*> states;  // [max_rows]
  AttentionScratch scratch;
  AlignedArray<float> draft_memory;  // what rewinding needs; grows to its high-water mark
  std::size_t draft_floats = 0;      // of draft_memory
  std::unique_ptr<Impl> prefix;      // recompute mode: for the longest prefix so far
};

Workspace::Workspace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;
std::size_t Workspace::max_rows() const { return impl_->max_rows; }

struct Transformer::Impl {
  ModelConfig config;
  WeightType weight_type = WeightType::kF32;
  std::string config_json;
  std::string fingerprint;
  std::vector<std::string> warnings;
  bool recompute = false;
  std::unique_ptr<Head> head;
  std::unique_ptr<Embedding> embedding;
  std::vector<std::unique_ptr<AttentionBackend>> attention;  // [n_layers]
  std::vector<Layer> layers;                                 // [n_layers]
  std::unique_ptr<Norm> final_norm;                          // null without
  std::unique_ptr<Dense> predictor;

  // What a pass through the layers works on: the first `count` rows of a workspace. They belong to
  // `rows`, or to a whole prefix of prefix_tokens positions, rounded up.
  struct Rows {
    std::span<const StepRow> rows;
    std::size_t prefix_tokens = 0;  // 0: a step
    std::size_t count = 0;
    Workspace::Impl& workspace;
    MatrixView<float> of(Matrix& matrix) const { return matrix.view().rows_from(0, count); }
  };

  // Puts `spec` in place of every layer's attention, and planes where it needs others.
  void replace_attention(const AttentionSpec& spec, ModelWeights& weights) {
    bool as_trained = true;
    for (int i = 0; i < config.n_layers; ++i) {
      const AttentionConfig own =
          std::exchange(config.attention[i], spec.applied_to(config.attention[i]));
      const AttentionConfig& now = config.attention[i];
      as_trained = as_trained && now == own && !spec.seed.has_value();
      const bool own_planes = now.rounds == own.rounds && now.bits == own.bits;
      if (own_planes && !spec.seed.has_value()) continue;
      const std::vector<float> planes = draw_planes(now, config.d_head, spec.seed.value_or(0), i);
      const auto d_head = static_cast<std::size_t>(config.d_head);
      weights.layers[i].planes = Matrix(planes.size() / d_head, d_head);
      std::ranges::copy(planes, weights.layers[i].planes.values().begin());
    }
    recompute = spec.recompute;
    if (!as_trained) {
      warnings.push_back("the weights were not trained for attention " + spec.text +
                         ": its speed can be compared, what it generates means nothing");
    }
  }

  void warn_of_recomputing() {
    const bool as_stepped = std::ranges::all_of(
        attention, [](const auto& backend) { return backend->full_pass_equals_steps(); });
    warnings.push_back(
        std::string(
            "recompute mode keeps no state and runs the whole prefix again for every token, "
            "as published baselines did: for comparison, not for production") +
        (as_stepped ? "" : "; its outputs differ from those of a session with state"));
  }

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
    const auto floats = [&](std::size_t layer, std::size_t drafts) {
      constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
      const std::size_t needed = attention[layer]->rewind_floats(drafts);
      return (needed + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
    };
    std::size_t total = 0;
    for_each_drafting(rows, [&](SequenceState&, std::size_t drafts) {
      for (std::size_t i = 0; i < layers.size(); ++i) total += floats(i, drafts);
    });
    if (total > w.draft_floats) {
      w.draft_memory = make_aligned<float>(total);
      w.draft_floats = total;
    }
    float* next = w.draft_memory.get();
    for_each_drafting(rows, [&](SequenceState& sequence, std::size_t drafts) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        sequence.layer(i)->expect_drafts(drafts, {next, floats(i, drafts)});
        next += floats(i, drafts);
      }
    });
  }

  void embed(const Rows& at) const {
    for (std::size_t r = 0; r < at.rows.size(); ++r) {
      SequenceState& sequence = *at.rows[r].sequence;
      embedding->embed(at.rows[r].token, sequence.position(), at.workspace.x.row(r));
      sequence.advance();
    }
  }

  // delta = Attention(x) W_O
  void attend(std::size_t layer, MatrixView<const float> x, const Rows& at) const {
    Workspace::Impl& w = at.workspace;
    const auto width = static_cast<std::size_t>(config.n_heads) * config.d_head;
    const std::size_t projected = layers[layer].query_value_key.out_features();
    // Without gaps between the rows, also when there are no keys.
    const MatrixView<float> all(w.query_value_key.view().data(), at.count, projected, projected);
    layers[layer].query_value_key.apply(x, all);
    const MatrixView<const float> q = all.cols_from(0, width);
    const MatrixView<const float> v = all.cols_from(width, width);
    MatrixView<const float> k;
    if (attention[layer]->uses_keys()) k = all.cols_from(2 * width, width);

    if (at.prefix_tokens > 0) {
      const auto of_tokens = [&at](auto view) {
        return view.rows() == 0 ? view : view.rows_from(0, at.prefix_tokens);
      };
      attention[layer]->full_pass(of_tokens(q), of_tokens(MatrixView<const float>(k)), of_tokens(v),
                                  of_tokens(at.of(w.attended)), w.scratch);
    } else {
      for (std::size_t r = 0; r < at.rows.size(); ++r) {
        w.states[r] = at.rows[r].sequence->layer(layer);
      }
      const std::span<AttentionState* const> states(w.states.data(), at.rows.size());
      attention[layer]->step(states, q, k, v, at.of(w.attended), w.scratch);
    }
    layers[layer].out.apply(at.of(w.attended), at.of(w.delta));
  }

  // delta = W_2 activation(W_1 x)
  void feed_forward(const Layer& layer, MatrixView<const float> x, const Rows& at) const {
    layer.linear1.apply(x, at.of(at.workspace.hidden));
    layer.linear2.apply(at.of(at.workspace.hidden), at.of(at.workspace.delta));
  }

  void run_layer(std::size_t i, const Rows& at) const {
    const Layer& layer = layers[i];
    const MatrixView<float> x = at.of(at.workspace.x);
    const MatrixView<float> delta = at.of(at.workspace.delta);
    if (config.norm_placement == NormPlacement::kPost) {
      attend(i, x, at);
      add_residual(delta, x);
      layer.norm1.apply(x, x);
      feed_forward(layer, x, at);
      add_residual(delta, x);
      layer.norm2.apply(x, x);
    } else {
      const MatrixView<float> normed = at.of(at.workspace.normed);
      layer.norm1.apply(x, normed);
      attend(i, normed, at);
      add_residual(delta, x);
      layer.norm2.apply(x, normed);
      feed_forward(layer, normed, at);
      add_residual(delta, x);
    }
  }

  // Recompute mode: the rows that want an output run their whole prefix again.
  MatrixView<const float> recompute_step(std::span<const StepRow> rows, Workspace::Impl& w) const {
    std::size_t wanted = 0;
    for (const StepRow& row : rows) {
      row.sequence->remember(row.token);
      if (!row.wants_output) continue;
      const std::span<const float> last = run_prefix(*row.sequence, w);
      std::ranges::copy(last, w.normed.row(wanted++).begin());
    }
    return predict(wanted, w);
  }

  // What leaves the last layer at the last position.
  std::span<const float> run_prefix(const SequenceState& sequence, Workspace::Impl& w) const {
    // Rounded up for the products, which prepare themselves for every number of rows they meet;
    // rows are independent, so what the last ones hold does not matter.
    constexpr std::size_t kRowMultiple = 64;
    const auto length = static_cast<std::size_t>(sequence.position());
    const std::size_t count = (length + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    if (w.prefix == nullptr || w.prefix->max_rows < count) {
      w.prefix.reset();
      w.prefix = new_workspace(count + count / 2);
    }
    Workspace::Impl& prefix = *w.prefix;
    for (std::size_t t = 0; t < length; ++t) {
      const auto position = static_cast<std::int64_t>(t);
      embedding->embed(sequence.token(position), position, prefix.x.row(t));
    }
    for (std::size_t t = length; t < count; ++t) std::ranges::fill(prefix.x.row(t), 0.0f);
    run_layers({.rows = {}, .prefix_tokens = length, .count = count, .workspace = prefix});
    return prefix.x.row(length - 1);
  }

  void run_layers(const Rows& at) const {
    for (std::size_t i = 0; i < layers.size(); ++i) run_layer(i, at);
  }

  // One step of every row from its state.
  MatrixView<const float> step(std::span<const StepRow> rows, Workspace::Impl& w) const {
    const Rows at{.rows = rows, .prefix_tokens = 0, .count = rows.size(), .workspace = w};
    announce_drafts(rows, w);
    embed(at);
    run_layers(at);
    std::size_t wanted = 0;
    for (std::size_t r = 0; r < at.rows.size(); ++r) {
      if (!at.rows[r].wants_output) continue;
      std::copy(w.x.row(r).begin(), w.x.row(r).end(), w.normed.row(wanted).begin());
      ++wanted;
    }
    return predict(wanted, w);
  }

  // The head's outputs of the first rows of w.normed, which is overwritten.
  MatrixView<const float> predict(std::size_t wanted, Workspace::Impl& w) const {
    if (wanted == 0) return {w.outputs.view().data(), 0, w.outputs.cols(), w.outputs.cols()};
    const MatrixView<float> rows = w.normed.view().rows_from(0, wanted);
    const MatrixView<float> outputs = w.outputs.view().rows_from(0, wanted);
    if (final_norm != nullptr) final_norm->apply(rows, rows);
    predictor->apply(rows, outputs);
    return outputs;
  }

  std::unique_ptr<Workspace::Impl> new_workspace(std::size_t max_rows) const {
    const auto e = static_cast<std::size_t>(config.d_model);
    const auto hd = static_cast<std::size_t>(config.n_heads) * config.d_head;
    auto workspace = std::make_unique<Workspace::Impl>();
    workspace->max_rows = max_rows;
    workspace->x = Matrix(max_rows, e);
    workspace->normed = Matrix(max_rows, e);
    workspace->query_value_key = Matrix(max_rows, 3 * hd);
    workspace->attended = Matrix(max_rows, hd);
    workspace->delta = Matrix(max_rows, e);
    workspace->hidden = Matrix(max_rows, static_cast<std::size_t>(config.d_ff));
    workspace->outputs = Matrix(max_rows, static_cast<std::size_t>(config.num_outputs()));
    workspace->states.resize(max_rows);
    return workspace;
  }
};

std::unique_ptr<Transformer> Transformer::load(const std::filesystem::path& directory,
                                               const Options& options) {
  const std::filesystem::path config_file = directory / "config.json";
  auto impl = std::make_unique<Impl>();
  impl->config = load_config(config_file);
  const ModelConfig& config = impl->config;
  ModelWeights weights = load_weights(directory, config);
  if (options.attention.has_value()) impl->replace_attention(*options.attention, weights);
  impl->weight_type = options.weight_type;
  impl->config_json = read_text(config_file);
  const std::array files = {config_file, directory / "model.safetensors"};
  impl->fingerprint = sha256_of_files(files);
  impl->head = make_head(config);
  impl->embedding = std::make_unique<Embedding>(config, weights.value_embedding.values(),
                                                weights.position_embedding.values());
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    impl->attention.push_back(make_attention({.config = config.attention[i],
                                              .n_heads = config.n_heads,
                                              .d_head = config.d_head,
                                              .planes = weights.layers[i].planes.values()}));
    impl->layers.push_back(make_layer(config, weights.layers[i], impl->attention[i]->uses_keys(),
                                      options.weight_type));
  }
  if (impl->recompute) impl->warn_of_recomputing();
  if (config.final_norm) {
    impl->final_norm = std::make_unique<Norm>(std::move(weights.final_norm), config.layer_norm_eps);
  }
  impl->predictor =
      std::make_unique<Dense>(pack(weights.predictor, {.weight_type = options.weight_type}));
  return std::unique_ptr<Transformer>(new Transformer(std::move(impl)));
}

Transformer::Transformer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transformer::~Transformer() = default;

Workspace Transformer::new_workspace(std::size_t max_rows) const {
  return Workspace(impl_->new_workspace(max_rows));
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

bool Transformer::constant_state() const {
  if (impl_->recompute) return false;
  for (const auto& backend : impl_->attention) {
    if (!backend->constant_state()) return false;
  }
  return true;
}

const std::string& Transformer::fingerprint() const { return impl_->fingerprint; }
const std::string& Transformer::config_json() const { return impl_->config_json; }
const std::vector<std::string>& Transformer::warnings() const { return impl_->warnings; }

}  // namespace lintel
