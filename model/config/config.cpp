// SPDX-License-Identifier: Apache-2.0
#include "model/config/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/core/errors.h"
#include "model/core/json_reader.h"

namespace lintel {

std::string attention_names(const ModelConfig& config) {
  std::string names;
  if (!config.mixers.empty()) {
    for (auto mixer = config.mixers.begin(); mixer != config.mixers.end(); ++mixer) {
      if (std::find(config.mixers.begin(), mixer, *mixer) != mixer) continue;
      names += (names.empty() ? "" : ",") + *mixer;
    }
    return names;
  }
  bool differ = false;
  for (const AttentionConfig& layer : config.attention) {
    differ = differ || &layer.kind() != &config.attention.front().kind();
    names += (names.empty() ? "" : ",") + std::string(layer.type());
  }
  return differ || config.attention.empty() ? names : config.attention.front().type();
}

using nlohmann::json;

json parse_strictly(std::string_view text, const std::string& file) {
  const JsonBounds bounds{
      .max_depth = 8, .max_bytes = std::int64_t{16} << 20, .takes_repeated_names = false};
  JsonFailure failure;
  std::optional<json> tree = read_json_tree(text, bounds, failure);
  if (tree) return *std::move(tree);
  switch (failure.kind) {
    case JsonFailure::Kind::kTooDeep:
      throw ModelError(file + ": found JSON nested " + std::to_string(bounds.max_depth + 1) +
                       " deep, expected at most " + std::to_string(bounds.max_depth));
    case JsonFailure::Kind::kRepeatedName:
      throw ModelError(file + ": key " + quote(failure.name) + " is there twice, expected once");
    case JsonFailure::Kind::kNotJson:
      throw ModelError(file + ": not JSON: " + one_line(shorten(failure.what, 300)));
    default:
      throw ModelError(file + ": found JSON that " + failure.what);
  }
}

std::string found_text(const json& value) {
  return shorten(value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
}

Fields::Fields(const json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (!object.is_object()) {
    const std::string name = path_.empty() ? "" : path_.substr(0, path_.size() - 1);
    throw ModelError(file_ + ": " + (name.empty() ? "" : "key \"" + name + "\": ") + "found " +
                     found_text(object) + ", expected an object");
  }
}

void Fields::fail(const std::string& key, const std::string& found,
                  const std::string& expected) const {
  throw ModelError(file_ + ": key \"" + path_ + key + "\": found " + found + ", expected " +
                   expected);
}

bool Fields::has(const std::string& key) {
  known_.insert(key);
  return object_.contains(key);
}

const json& Fields::value(const std::string& key, const std::string& expected) {
  if (!has(key)) fail(key, "nothing", expected);
  return object_.at(key);
}

namespace {

bool is_integer_within(const json& v, std::int64_t low, std::int64_t high) {
  const bool fits = v.is_number_unsigned() ? v.get<std::uint64_t>() <= std::uint64_t(INT64_MAX)
                                           : v.is_number_integer();
  return fits && v.get<std::int64_t>() >= low && v.get<std::int64_t>() <= high;
}

// Not one that is 0 as f32 and nowhere else.
bool is_positive_float(double number, double high) {
  return number >= std::numeric_limits<float>::min() && number <= high;
}

}  // namespace

std::int64_t Fields::integer(const std::string& key, std::int64_t low, std::int64_t high,
                             const char* or_else) {
  const std::string expected = whole_number_text(low, high) + or_else;
  const json& v = value(key, expected);
  if (!is_integer_within(v, low, high)) fail(key, found_text(v), expected);
  return v.get<std::int64_t>();
}

std::vector<std::int64_t> Fields::integers(const std::string& key, std::int64_t low,
                                           std::int64_t high, std::string expected) {
  if (expected.empty()) expected = whole_number_text(low, high) + ", or a list of n_heads of them";
  const json& list = value(key, expected);
  const auto all_fit = [&] {
    for (const json& v : list) {
      if (!is_integer_within(v, low, high)) return false;
    }
    return list.is_array() && !list.empty();
  };
  if (!all_fit()) fail(key, found_text(list), expected);
  return list.get<std::vector<std::int64_t>>();
}

double Fields::positive(const std::string& key, double high, const char* or_null) {
  const std::string expected = "a number above 0 and at most " + json(high).dump() + or_null;
  const json& v = value(key, expected);
  if (!v.is_number() || !is_positive_float(v.get<double>(), high)) {
    fail(key, found_text(v), expected);
  }
  return v.get<double>();
}

double Fields::not_negative(const std::string& key, double high, const char* or_null) {
  const std::string expected = "a number from 0 to " + json(high).dump() + or_null;
  const json& v = value(key, expected);
  const bool fits =
      v.is_number() && (v.get<double>() == 0.0 || is_positive_float(v.get<double>(), high));
  if (!fits) fail(key, found_text(v), expected);
  return v.get<double>();
}

bool Fields::boolean(const std::string& key) {
  const json& v = value(key, "true or false");
  if (!v.is_boolean()) fail(key, found_text(v), "true or false");
  return v.get<bool>();
}

std::size_t Fields::choice(const std::string& key, std::span<const char* const> names) {
  std::string expected;
  for (const char* const name : names) {
    expected += (expected.empty() ? "\"" : " or \"") + std::string(name) + "\"";
  }
  const json& v = value(key, expected);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (v.is_string() && v.get_ref<const std::string&>() == names[i]) return i;
  }
  fail(key, found_text(v), expected);
}

void Fields::finish(const std::string& of) const {
  for (const auto& [key, unused] : object_.items()) {
    if (known_.contains(key)) continue;
    std::string expected;
    for (const std::string& name : known_) expected += (expected.empty() ? "" : ", ") + name;
    throw ModelError(file_ + ": unknown key " + quote(path_ + key) + of + ", expected one of " +
                     expected);
  }
}

void check_attention(const AttentionConfig& attention, const LayerDims& dims,
                     const std::string& file, const std::string& path) {
  const auto contradiction = attention.kind().contradiction;
  if (contradiction == nullptr) return;
  if (const auto wrong = contradiction(attention, dims)) {
    throw ModelError(file + ": key \"" + path + wrong->key + "\": found " + wrong->found +
                     ", expected " + wrong->expected);
  }
}

void check_config(const ModelConfig& config, const std::string& file) {
  const auto fail = [&](const std::string& key, const std::string& found,
                        const std::string& expected) {
    throw ModelError(file + ": key \"" + key + "\": found " + found + ", expected " + expected);
  };
  const std::int64_t projection = std::int64_t{config.n_heads} * config.d_head;
  if (projection > kMaxProjectionWidth) {
    fail("d_head", "n_heads * d_head = " + std::to_string(projection),
         "at most " + std::to_string(kMaxProjectionWidth));
  }

  const bool concat = config.embedding == EmbeddingKind::kValueConcatPosition;
  const bool positions = config.embedding != EmbeddingKind::kValue;
  const std::string width = std::to_string(config.d_model);
  if (concat && config.d_model % 2 != 0) {
    fail("d_model", width, "an even number for embedding \"value_concat_position\"");
  }
  if (positions == (config.position_encoding == PositionEncoding::kNone)) {
    fail("position_encoding", std::string("\"") + to_string(config.position_encoding) + "\"",
         std::string(positions ? "\"sinusoidal\" or \"learned\"" : "\"none\"") +
             " for embedding \"" + to_string(config.embedding) + "\"");
  }
  if (config.position_encoding == PositionEncoding::kSinusoidal &&
      config.d_model % (concat ? 4 : 2) != 0) {
    fail("d_model", width,
         concat ? "a multiple of 4: half of it holds pairs of sine and cosine"
                : "an even number: it holds pairs of sine and cosine");
  }
  if (config.position_encoding == PositionEncoding::kLearned && config.max_length == 0) {
    fail("max_length", "0", "at least 1 for position_encoding \"learned\"");
  }

  if (config.position_injection == PositionInjection::kEveryLayer &&
      config.embedding != EmbeddingKind::kValueAddPosition) {
    fail("position_injection", "\"every_layer\"",
         std::string("\"input\" for embedding \"") + to_string(config.embedding) + "\"");
  }
  if (config.is_reversible() && config.norm_placement != NormPlacement::kPre) {
    fail("residual", std::string("\"") + to_string(config.residual) + "\"",
         "\"sum\" for norm_placement \"post\"");
  }

  const std::string vocab = std::to_string(config.vocab_size);
  if (config.head == HeadKind::kMixtureOfLogistics && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for head type \"mixture_of_logistics\"");
  }
  if (config.modality == ModalityKind::kBytes && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for modality type \"bytes\"");
  }
  if (config.modality == ModalityKind::kImage && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for modality type \"image\"");
  }
  const bool all_equal =
      std::ranges::adjacent_find(config.attention, std::not_equal_to<>()) == config.attention.end();
  for (std::size_t i = 0; i < config.attention.size(); ++i) {
    const std::string path = all_equal ? "attention." : "attention[" + std::to_string(i) + "].";
    check_attention(config.attention[i], config.dims(), file, path);
    const int layer = static_cast<int>(i);
    const int first = config.first_layer_with(config.weights_of(layer));
    if (config.attention[i] == config.attention[static_cast<std::size_t>(first)]) continue;
    fail("attention[" + std::to_string(i) + "]", shorten(to_json(config.attention[i])),
         "that of layer " + std::to_string(first) + ", whose weights it shares");
  }
}

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

// The set of weights of each layer; empty: each layer has its own.
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
  std::string text(kMaxConfigBytes + 1, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    throw ModelError(file.string() + ": cannot read: " + std::strerror(errno));
  }
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
