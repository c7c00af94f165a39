#include "model/config/config.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/config/attention_json.h"
#include "model/config/config_limits.h"
#include "model/config/json_fields.h"
#include "model/config/names.h"

namespace lintel {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const char* name_of(Activation a) { return a == Activation::kRelu ? "relu" : "gelu"; }
const char* name_of(NormPlacement p) { return p == NormPlacement::kPost ? "post" : "pre"; }
ordered_json layers_json(const std::vector<AttentionConfig>& layers) {
  const bool all_equal =
      std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) == layers.end();
  if (all_equal) return attention_json(layers.front());
  ordered_json out = ordered_json::array();
  for (const AttentionConfig& layer : layers) out.push_back(attention_json(layer));
  return out;
}

ordered_json head_json(const ModelConfig& config) {
  if (config.head == HeadKind::kCategorical) return {{"type", "categorical"}};
  return {{"type", "mixture_of_logistics"}, {"mixtures", config.mixtures}};
}

ordered_json modality_json(const ModelConfig& config) {
  switch (config.modality) {
    case ModalityKind::kBytes:
      return {{"type", "bytes"}};
    case ModalityKind::kTokens:
      return {{"type", "tokens"}};
    case ModalityKind::kImage:
      break;
  }
  return {{"type", "image"},
          {"height", config.image.height},
          {"width", config.image.width},
          {"channels", config.image.channels},
          {"start_token", config.image.start_token}};
}

std::vector<AttentionConfig> read_layers(Fields& root, int n_layers, const std::string& file) {
  const json& value = root.value("attention", "an object or a list of them");
  const std::size_t layers = static_cast<std::size_t>(n_layers);
  if (value.is_object()) return {layers, read_attention(value, file, "attention.")};
  if (!value.is_array()) {
    root.fail("attention", found_text(value), "an object or a list of them");
  }
  if (value.size() != layers) {
    root.fail("attention", "a list of " + std::to_string(value.size()),
              "a list of n_layers = " + std::to_string(n_layers));
  }
  std::vector<AttentionConfig> attention;
  for (std::size_t i = 0; i < layers; ++i) {
    attention.push_back(read_attention(value[i], file, "attention[" + std::to_string(i) + "]."));
  }
  return attention;
}

// Those of the layers that have their own are left out.
std::vector<int> read_layer_weights(Fields& root, int n_layers) {
  if (!root.has("layer_weights")) return {};
  const std::vector<std::int64_t> given =
      root.integers("layer_weights", 0, n_layers - 1,
                    "a list of n_layers whole numbers from 0 to " + std::to_string(n_layers - 1));
  if (given.size() != static_cast<std::size_t>(n_layers)) {
    root.fail("layer_weights", "a list of " + std::to_string(given.size()),
              "a list of n_layers = " + std::to_string(n_layers));
  }
  std::vector<int> weights(given.begin(), given.end());
  int known = 0;
  for (int i = 0; i < n_layers; ++i) {
    if (weights[i] > known) {
      root.fail("layer_weights[" + std::to_string(i) + "]", std::to_string(weights[i]),
                "at most " + std::to_string(known) + ": new numbers come in order");
    }
    known = std::max(known, weights[i] + 1);
  }
  return known == n_layers ? std::vector<int>() : weights;
}

void read_structure(Fields& root, ModelConfig& config) {
  config.layer_weights = read_layer_weights(root, config.n_layers);
  if (root.has("position_injection")) {
    config.position_injection = root.choice<PositionInjection>(
        "position_injection",
        {{"input", PositionInjection::kInput}, {"every_layer", PositionInjection::kEveryLayer}});
  }
  if (root.has("step_embedding")) config.step_embedding = root.boolean("step_embedding");
  if (root.has("residual")) {
    config.residual = root.choice<Residual>(
        "residual", {{to_string(Residual::kSum), Residual::kSum},
                     {to_string(Residual::kReversibleMean), Residual::kReversibleMean},
                     {to_string(Residual::kReversibleConcat), Residual::kReversibleConcat}});
  }
}

void read_head(Fields& root, const std::string& file, ModelConfig& config) {
  Fields head(root.value("head", "an object"), file, "head.");
  config.head =
      head.choice<HeadKind>("type", {{"mixture_of_logistics", HeadKind::kMixtureOfLogistics},
                                     {"categorical", HeadKind::kCategorical}});
  const bool mixture = config.head == HeadKind::kMixtureOfLogistics;
  if (mixture) config.mixtures = head.small_integer("mixtures", 1, kMaxMixtures);
  head.finish(mixture ? " for head type \"mixture_of_logistics\""
                      : " for head type \"categorical\"");
}

void read_modality(Fields& root, const std::string& file, ModelConfig& config) {
  Fields modality(root.value("modality", "an object"), file, "modality.");
  config.modality = modality.choice<ModalityKind>("type", {{"image", ModalityKind::kImage},
                                                           {"bytes", ModalityKind::kBytes},
                                                           {"tokens", ModalityKind::kTokens}});
  if (config.modality == ModalityKind::kImage) {
    config.image.height = modality.small_integer("height", 1, kMaxImageSide);
    config.image.width = modality.small_integer("width", 1, kMaxImageSide);
    config.image.channels = modality.small_integer("channels", 1, kMaxImageChannels);
    config.image.start_token = modality.small_integer("start_token", 0, config.vocab_size - 1);
  }
  modality.finish();
}

}  // namespace

ModelConfig parse_config(std::string_view json_text, const std::string& file) {
  if (json_text.size() > kMaxConfigBytes) {
    throw ModelError(file + ": found " + std::to_string(json_text.size()) +
                     " bytes, expected at most " + std::to_string(kMaxConfigBytes));
  }
  const json parsed = parse_strictly(json_text, file);
  Fields root(parsed, file, "");
  ModelConfig config;
  root.integer("format_version", 1, 1);
  config.vocab_size = root.small_integer("vocab_size", 1, kMaxVocabSize);
  config.max_length = root.integer("max_length", 0, kMaxMaxLength);
  config.d_model = root.small_integer("d_model", 1, kMaxModelWidth);
  config.n_layers = root.small_integer("n_layers", 1, kMaxLayers);
  config.n_heads = root.small_integer("n_heads", 1, kMaxHeads);
  config.d_head = root.small_integer("d_head", 1, kMaxHeadWidth);
  config.d_ff = root.small_integer("d_ff", 1, kMaxFeedForwardWidth);
  config.activation = root.choice<Activation>(
      "activation", {{"relu", Activation::kRelu}, {"gelu", Activation::kGelu}});
  config.norm_placement = root.choice<NormPlacement>(
      "norm_placement", {{"post", NormPlacement::kPost}, {"pre", NormPlacement::kPre}});
  config.final_norm = root.boolean("final_norm");
  config.layer_norm_eps = root.positive("layer_norm_eps", kMaxEpsilon);
  config.embedding = root.choice<EmbeddingKind>(
      "embedding", {{"value_concat_position", EmbeddingKind::kValueConcatPosition},
                    {"value_add_position", EmbeddingKind::kValueAddPosition},
                    {"value", EmbeddingKind::kValue}});
  config.position_encoding = root.choice<PositionEncoding>(
      "position_encoding", {{"sinusoidal", PositionEncoding::kSinusoidal},
                            {"learned", PositionEncoding::kLearned},
                            {"none", PositionEncoding::kNone}});
  config.attention = read_layers(root, config.n_layers, file);
  read_structure(root, config);
  read_head(root, file, config);
  read_modality(root, file, config);
  if (root.has("trained_length")) {
    config.trained_length = root.integer("trained_length", 1, kMaxMaxLength);
  }
  root.finish();
  check_config(config, file);
  return config;
}

std::string read_config_text(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw ModelError(file.string() +
                     ": cannot open: " + (error ? error.message() : "expected a regular file"));
  }
  std::ifstream in(file, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) throw ModelError(file.string() + ": cannot read");
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxConfigBytes) {
    throw ModelError(file.string() + ": found more than " + std::to_string(kMaxConfigBytes) +
                     " bytes, expected at most that");
  }
  return text;
}

ModelConfig load_config(const std::filesystem::path& file) {
  return parse_config(read_config_text(file), file.string());
}

int ModelConfig::num_layer_weights() const {
  return layer_weights.empty() ? n_layers : *std::ranges::max_element(layer_weights) + 1;
}

int ModelConfig::first_layer_with(int weights) const {
  if (layer_weights.empty()) return weights;
  return static_cast<int>(std::ranges::find(layer_weights, weights) - layer_weights.begin());
}

std::string to_json(const ModelConfig& config) {
  ordered_json out = {{"format_version", 1},
                      {"vocab_size", config.vocab_size},
                      {"max_length", config.max_length},
                      {"d_model", config.d_model},
                      {"n_layers", config.n_layers},
                      {"n_heads", config.n_heads},
                      {"d_head", config.d_head},
                      {"d_ff", config.d_ff},
                      {"activation", name_of(config.activation)},
                      {"norm_placement", name_of(config.norm_placement)},
                      {"final_norm", config.final_norm},
                      {"layer_norm_eps", config.layer_norm_eps},
                      {"embedding", to_string(config.embedding)},
                      {"position_encoding", to_string(config.position_encoding)},
                      {"attention", layers_json(config.attention)},
                      {"head", head_json(config)},
                      {"modality", modality_json(config)}};
  // The optional keys, where they say something.
  if (!config.layer_weights.empty()) out["layer_weights"] = config.layer_weights;
  if (config.position_injection == PositionInjection::kEveryLayer) {
    out["position_injection"] = "every_layer";
  }
  if (config.step_embedding) out["step_embedding"] = true;
  if (config.is_reversible()) out["residual"] = to_string(config.residual);
  if (config.trained_length > 0) out["trained_length"] = config.trained_length;
  return out.dump(2) + "\n";
}

}  // namespace lintel
