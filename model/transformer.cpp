// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>
#include <vector>

#include "model/formats/weights.h"
#include "model/forward_pass.h"
#include "model/layer.h"
#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "model/ops/tile_scope.h"

namespace lintel {

Workspace::Workspace(std::unique_ptr<Activations> buffers) : buffers_(std::move(buffers)) {}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;

std::size_t Workspace::max_rows() const { return buffers_->max_rows; }
void Workspace::observe(StepObserver* observer) { buffers_->observer = observer; }
void Workspace::share_with(StepThreadPool* team) { buffers_->team = team; }

namespace {

class StateMode final : public DecodeMode {
 public:
  explicit StateMode(const TransformerParts& parts)
      : layouts_(parts.attention.begin(), parts.attention.end()), pass_(parts) {}

  MatrixView<const float> step(std::span<const BatchRow> rows,
                               Activations& buffers) const override {
    buffers.drafts.begin_speculation(rows, layouts_);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      SequenceState& sequence = *rows[r].sequence;
      pass_.embed(rows[r].token, sequence.position(), sequence.adapter().get(), r, buffers);
      sequence.advance();
    }
    return pass_.predict(pass_.run(rows, buffers), buffers);
  }

  std::unique_ptr<Activations> new_buffers(std::size_t max_rows) const override {
    return pass_.new_buffers(max_rows);
  }
  void reserve_drafts(std::size_t rows, Activations& buffers) const override {
    buffers.drafts.reserve(rows, layouts_);
  }
  DraftMemory::Layouts layouts() const override { return layouts_; }

 private:
  const std::vector<std::shared_ptr<const StateLayout>> layouts_;
  const ForwardPass pass_;
};

}  // namespace

std::unique_ptr<DecodeMode> step_from_states(const TransformerParts& parts) {
  return std::make_unique<StateMode>(parts);
}

struct Transformer::Impl {
  explicit Impl(TransformerParts given)
      : parts(std::move(given)),
        native_modules(parts.decoder != nullptr ? std::vector<AdaptableModule>()
                                                : adaptable_modules(parts.config)),
        stepper(mode_of(parts)) {}

  static std::unique_ptr<DecodeMode> mode_of(const TransformerParts& parts) {
    if (parts.decoder != nullptr) return decoder_mode(*parts.decoder);
    return parts.recompute ? recompute_mode(parts) : step_from_states(parts);
  }

  int num_counts() const { return parts.head->supports_filters() ? parts.config.vocab_size : 0; }

  std::span<const AdaptableModule> modules() const {
    return parts.decoder != nullptr ? parts.decoder->modules : native_modules;
  }

  const TransformerParts parts;
  const std::vector<AdaptableModule> native_modules;  // of our own format
  const std::unique_ptr<DecodeMode> stepper;
};

Transformer::Transformer(TransformerParts parts)
    : impl_(std::make_unique<Impl>(std::move(parts))) {}
Transformer::~Transformer() = default;

Workspace Transformer::new_workspace(std::size_t max_rows, std::size_t max_drafting_rows) const {
  std::unique_ptr<Activations> buffers = impl_->stepper->new_buffers(max_rows);
  impl_->stepper->reserve_drafts(max_drafting_rows, *buffers);
  return Workspace(std::move(buffers));
}

SequenceState Transformer::new_sequence(std::shared_ptr<const Adapter> adapter) const {
  const ModelConfig& config = impl_->parts.config;
  return SequenceState(impl_->stepper->layouts(), impl_->num_counts(), std::move(adapter),
                       {.max_length = config.max_length, .vocab_size = config.vocab_size});
}

MatrixView<const float> Transformer::step(std::span<const BatchRow> rows,
                                          Workspace& workspace) const {
  assert(!rows.empty() && rows.size() <= workspace.max_rows());
  const TileScope tiles;  // one for all products of the step
  return impl_->stepper->step(rows, *workspace.buffers_);
}

const ModelConfig& Transformer::config() const { return impl_->parts.config; }
std::span<const AdaptableModule> Transformer::modules() const { return impl_->modules(); }
const Head& Transformer::head() const { return *impl_->parts.head; }
WeightType Transformer::weight_type() const { return impl_->parts.weight_type; }
std::optional<KvType> Transformer::kv_type() const {
  const TransformerParts& parts = impl_->parts;
  return parts.decoder != nullptr ? parts.decoder->kv_type : std::nullopt;
}
// What a step does once, reading the weights above all, is no longer seen from here on. In f32
// products wait for arithmetic sooner, and of more rows less stays in the caches.
std::size_t Transformer::most_prompt_rows() const {
  return weight_type() == WeightType::kF32 ? 64 : 128;
}
std::string Transformer::kernels() const { return kernels_of(impl_->parts.products()); }
std::int64_t Transformer::num_parameters() const {
  const TransformerParts& parts = impl_->parts;
  return parts.decoder != nullptr ? parts.decoder->num_parameters : count_parameters(parts.config);
}

std::size_t Transformer::weight_bytes() const {
  const TransformerParts& parts = impl_->parts;
  std::size_t total = parts.decoder != nullptr ? parts.decoder->embedding.size_bytes() +
                                                     parts.decoder->head->weight_bytes()
                                               : parts.predictor->weight_bytes();
  for (const Dense* dense : parts.products()) total += dense->weight_bytes();
  return total;
}

std::size_t Transformer::state_bytes(std::int64_t num_tokens) const {
  const std::size_t counts = impl_->num_counts() * sizeof(std::uint32_t);
  std::size_t total = 0;
  return __builtin_add_overflow(counts, impl_->stepper->state_bytes(num_tokens), &total) ? SIZE_MAX
                                                                                         : total;
}

std::size_t Transformer::sequence_bytes(std::int64_t num_tokens) const {
  // Measured, with the allocator's own share (tests/server/sessions/session_bytes_test.cpp): a
  // layer's object and the ends of its blocks; the lists of layers and the tail of stop strings.
  constexpr std::size_t kLayerBytes = 320;
  constexpr std::size_t kSequenceBytes = 512;
  const std::size_t layers = impl_->stepper->layouts().size();
  std::size_t total = state_bytes(num_tokens);
  const std::size_t objects = kSequenceBytes + layers * kLayerBytes;
  return __builtin_add_overflow(total, objects, &total) ? SIZE_MAX : total;
}

std::int64_t Transformer::tokens_until_full() const { return impl_->stepper->tokens_until_full(); }
std::int64_t Transformer::page_tokens() const { return impl_->stepper->page_tokens(); }
bool Transformer::recomputes() const { return impl_->parts.recompute; }

const std::string& Transformer::fingerprint() const { return impl_->parts.fingerprint; }
const std::string& Transformer::config_json() const { return impl_->parts.config_json; }
const std::vector<std::string>& Transformer::warnings() const { return impl_->parts.warnings; }
const std::shared_ptr<const Tokenizer>& Transformer::tokenizer() const {
  return impl_->parts.tokenizer;
}

// Transformer::load: from a model directory to the parts of a transformer.

namespace {

void warn_of_recomputing(TransformerParts& parts) {
  const bool as_stepped = std::ranges::all_of(
      parts.attention, [](const auto& backend) { return backend->full_pass_equals_steps(); });
  parts.warnings.push_back(
      std::string("recompute mode keeps no state and runs the whole prefix again for every token, "
                  "as published baselines did: for comparison, not for production") +
      (as_stepped ? "" : "; its outputs differ from those of a session with state"));
}

void warn_of_no_kv_cache(KvType type, TransformerParts& parts) {
  if (type == KvType::kF32) return;
  parts.warnings.push_back("--kv-type " + std::string(to_string(type)) +
                           " changes nothing: the model has no KV cache, its states stay in f32");
}

void warn_of_part_of_an_image(TransformerParts& parts) {
  const ModelConfig& config = parts.config;
  if (config.modality != ModalityKind::kImage) return;
  if (config.max_tokens() == config.image.num_tokens()) return;
  parts.warnings.push_back("max_length " + std::to_string(config.max_length) +
                           " ends a sequence before its image of " +
                           std::to_string(config.image.num_tokens()) + " tokens is whole");
}

}  // namespace

namespace {

TransformerParts load_family(const ModelFiles& files, const Transformer::Options& options) {
  TransformerParts parts;
  parts.config = files.config();
  if (options.attention.has_value()) {
    throw ModelError("--attention " + options.attention->text + ": a model of family " +
                     parts.config.family + " has its own layers");
  }
  parts.weight_type = options.weight_type;
  parts.config_json = files.config_json();
  parts.fingerprint = fingerprint_of(files);
  parts.head = make_head(parts.config);
  parts.tokenizer = files.load_tokenizer(parts.warnings);
  parts.decoder = files.family()->make(
      files.checkpoint(), {.weight_type = options.weight_type, .library = options.product_library},
      options.kv_type, parts.warnings);
  return parts;
}

}  // namespace

std::unique_ptr<Transformer> Transformer::load(const ModelFiles& files, const Options& options) {
  check_has_blocks(files, options.weight_type);
  if (files.family() != nullptr) {
    TransformerParts parts = load_family(files, options);
    if (!parts.decoder->kv_type) warn_of_no_kv_cache(options.kv_type, parts);
    return std::unique_ptr<Transformer>(new Transformer(std::move(parts)));
  }
  TransformerParts parts;
  parts.config = files.config();
  const ModelConfig& config = parts.config;
  check_weight_type(config, options.weight_type);
  auto [weights, fingerprint] = load_with_fingerprint(files);
  if (options.attention.has_value()) {
    const AttentionSpec& spec = *options.attention;
    parts.recompute = spec.recompute;
    if (!replace_attention(spec, parts.config, weights)) {
      parts.warnings.push_back("the weights were not trained for attention " + spec.text +
                               ": its speed can be compared, what it generates means nothing");
    }
  }
  parts.weight_type = options.weight_type;
  parts.config_json = files.config_json();
  parts.tokenizer = files.load_tokenizer(parts.warnings);
  parts.fingerprint = std::move(fingerprint);
  parts.head = make_head(config);
  parts.embedding = std::make_unique<Embedding>(config, weights.value_embedding.values(),
                                                weights.position_embedding.values());
  parts.step_embedding = std::move(weights.step_embedding);
  for (int i = 0; i < config.n_layers; ++i) {
    const AttentionConfig& attention = config.attention[i];
    const int first = config.first_layer_with(config.weights_of(i));
    if (first < i) {
      parts.attention.push_back(parts.attention[first]);
      continue;
    }
    LayerWeights& own = weights.layers[parts.layers.size()];
    parts.attention.push_back(
        make_attention({.config = attention, .dims = config.dims(), .own = own.own}));
    parts.layers.push_back(
        make_layer(config, attention, own,
                   {.weight_type = options.weight_type, .library = options.product_library}));
  }
  warn_of_no_kv_cache(options.kv_type, parts);
  if (parts.recompute) warn_of_recomputing(parts);
  warn_of_part_of_an_image(parts);
  if (config.final_norm) {
    parts.final_norm = std::make_unique<Norm>(std::move(weights.final_norm), config.layer_norm_eps);
  }
  // In f32 in every model: it is small, and likelihood is most sensitive to it. Always by our own
  // kernels, so that an int8 model has the same bits with both.
  parts.predictor =
      std::make_unique<Dense>(pack(weights.predictor, {.kernels = KernelChoice::kOwn}));
  return std::unique_ptr<Transformer>(new Transformer(std::move(parts)));
}

std::unique_ptr<Transformer> Transformer::load(const std::filesystem::path& directory,
                                               const Options& options) {
  return load(ModelFiles(directory), options);
}

}  // namespace lintel
