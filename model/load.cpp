// Transformer::load: from a model directory to the parts of a transformer.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "model/formats/model_files.h"
#include "model/formats/replace_attention.h"
#include "model/transformer.h"
#include "model/transformer_parts.h"

namespace lintel {
namespace {

void warn_of_recomputing(TransformerParts& parts) {
  const bool as_stepped = std::ranges::all_of(
      parts.attention, [](const auto& backend) { return backend->full_pass_equals_steps(); });
  parts.warnings.push_back(
      std::string("recompute mode keeps no state and runs the whole prefix again for every token, "
                  "as published baselines did: for comparison, not for production") +
      (as_stepped ? "" : "; its outputs differ from those of a session with state"));
}

void warn_of_part_of_an_image(TransformerParts& parts) {
  const ModelConfig& config = parts.config;
  if (config.modality != ModalityKind::kImage) return;
  if (config.max_values() == config.image.num_values()) return;
  parts.warnings.push_back("max_length " + std::to_string(config.max_length) +
                           " ends a sequence before its image of " +
                           std::to_string(config.image.num_values()) + " values is whole");
}

}  // namespace

std::unique_ptr<Transformer> Transformer::load(const ModelFiles& files, const Options& options) {
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
