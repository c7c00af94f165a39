// SPDX-License-Identifier: Apache-2.0
// The families of flash-linear-attention (github.com/fla-org/flash-linear-attention) that share one
// block: gated_deltanet, delta_net, gla, retnet and linear_attn, and their hybrids with windowed
// softmax layers.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/families/checkpoint_keys.h"
#include "model/families/family.h"
#include "model/families/tensor_reader.h"
#include "model/layers/mixers/gated_delta.h"
#include "model/layers/mixers/gated_linear.h"
#include "model/layers/mixers/gated_softmax.h"
#include "model/layers/mixers/swiglu.h"

namespace lintel {
namespace fla {
namespace {

using nlohmann::json;

enum class Kind { kGatedDeltaNet, kDeltaNet, kGla, kRetNet, kLinearAttention };

struct KindNames {
  Kind kind;
  const char* model_type;
  const char* architecture;
  int num_heads;  // the defaults of keys
  double expand_k;
  double expand_v;
  double hidden_ratio;
};
constexpr KindNames kKinds[] = {
    {Kind::kGatedDeltaNet, "gated_deltanet", "GatedDeltaNetForCausalLM", 6, 0.0, 2.0, 4.0},
    {Kind::kDeltaNet, "delta_net", "DeltaNetForCausalLM", 16, 1.0, 1.0, 4.0},
    {Kind::kGla, "gla", "GLAForCausalLM", 4, 0.5, 1.0, 4.0},
    {Kind::kRetNet, "retnet", "RetNetForCausalLM", 8, 1.0, 2.0, 2.0},
    {Kind::kLinearAttention, "linear_attn", "LinearAttentionForCausalLM", 4, 1.0, 1.0, 4.0}};
constexpr const char* kModelTypes[] = {"gated_deltanet", "delta_net", "gla", "retnet",
                                       "linear_attn"};

constexpr std::size_t kDecayRank = 16;  // of GLA's low-rank pair; no key changes these two
constexpr float kDecayDivisor = 16.0f;
constexpr std::int64_t kMostTaps = 64;
constexpr std::int64_t kMostStateFloats = std::int64_t{1} << 31;  // of all layers

// A softmax layer in place of the family's mixer.
struct SoftmaxLayer {
  GatedSoftmaxShape shape;
  bool has_bias = false;  // of q, k and v
};

struct Shape {
  KindNames names;
  std::size_t vocabulary = 0;
  std::size_t width = 0;     // E
  std::size_t ff_width = 0;  // F
  std::int64_t max_length = 0;
  double eps = 0.0;
  bool is_tied = false;
  std::vector<std::optional<SoftmaxLayer>> softmax;  // [layers]; null: the family's mixer
  bool has_convolution = false;
  GatedDeltaShape delta;    // of the two delta families
  GatedLinearShape linear;  // of the others
  bool is_map_tied = false;
  double least_log_decay = -std::numeric_limits<double>::infinity();

  bool is_delta() const {
    return names.kind == Kind::kGatedDeltaNet || names.kind == Kind::kDeltaNet;
  }
};

std::size_t count_of(CheckpointKeys& keys, const char* key, std::int64_t high,
                     std::int64_t if_absent) {
  return static_cast<std::size_t>(keys.integer(key, 1, high, if_absent));
}

template <typename Value>
Value choice(CheckpointKeys& keys, const char* key, const char* if_absent,
             std::initializer_list<std::pair<const char*, Value>> choices) {
  const json* const found = keys.find(key);
  std::string expected;
  for (const auto& [name, value] : choices) {
    if (found == nullptr ? std::string(name) == if_absent : *found == name) return value;
    expected += (expected.empty() ? "\"" : " or \"") + std::string(name) + "\"";
  }
  keys.fail(key, expected);
}

// The width of a head: floor(whole * the key's number) / heads.
std::size_t head_width(CheckpointKeys& keys, const char* key, std::size_t whole, double if_absent,
                       std::size_t heads) {
  const double factor = keys.positive(key, 64.0, if_absent);
  const auto width = static_cast<std::size_t>(std::floor(static_cast<double>(whole) * factor));
  if (width == 0 || width % heads != 0 || width / heads > kMaxHeadWidth) {
    keys.fail(key, "a factor of " + std::to_string(whole) + " that gives a multiple of " +
                       std::to_string(heads) + " heads, each at most " +
                       std::to_string(kMaxHeadWidth) + " wide");
  }
  return width / heads;
}

std::size_t count_kv_heads(CheckpointKeys& keys, std::size_t heads) {
  const std::size_t kv_heads =
      count_of(keys, "num_kv_heads", kMaxHeads, static_cast<std::int64_t>(heads));
  if (heads % kv_heads != 0) {
    keys.fail("num_kv_heads", "a divisor of num_heads, " + std::to_string(heads));
  }
  return kv_heads;
}

void read_gated_deltanet(CheckpointKeys& keys, std::size_t heads, Shape& shape) {
  GatedDeltaShape& delta = shape.delta;
  delta.key_heads = heads;
  delta.value_heads = count_of(keys, "num_v_heads", kMaxHeads, static_cast<std::int64_t>(heads));
  if (delta.value_heads % heads != 0) {
    keys.fail("num_v_heads", "a multiple of num_heads, " + std::to_string(heads));
  }
  delta.key_width = count_of(keys, "head_dim", kMaxHeadWidth, 256);
  delta.value_width = head_width(keys, "expand_v", delta.key_width, shape.names.expand_v, 1);
  delta.has_gate = keys.boolean("use_gate", true);
}

void read_delta_net(CheckpointKeys& keys, std::size_t heads, Shape& shape) {
  GatedDeltaShape& delta = shape.delta;
  delta.key_heads = delta.value_heads = heads;
  delta.key_width = head_width(keys, "expand_k", shape.width, shape.names.expand_k, heads);
  delta.value_width = head_width(keys, "expand_v", shape.width, shape.names.expand_v, heads);
  delta.key_activation = choice<KeyActivation>(keys, "qk_activation", "silu",
                                               {{"silu", KeyActivation::kSilu},
                                                {"relu", KeyActivation::kRelu},
                                                {"elu", KeyActivation::kEluPlusOne},
                                                {"identity", KeyActivation::kIdentity}});
  delta.key_norm =
      choice<KeyNorm>(keys, "qk_norm", "l2", {{"l2", KeyNorm::kLength}, {"sum", KeyNorm::kSum}});
  delta.has_rate = keys.boolean("use_beta", true);
  delta.has_decay = false;
  delta.has_gate = keys.boolean("use_gate", false);
  keys.only("use_output_norm", true);
}

void read_feature_map(CheckpointKeys& keys, Shape& shape) {
  GatedLinearShape& linear = shape.linear;
  linear.features = choice<HeadFeatures>(keys, "feature_map", "elementwise_product",
                                         {{"elementwise_product", HeadFeatures::kProduct},
                                          {"identity", HeadFeatures::kIdentity},
                                          {"relu", HeadFeatures::kRelu},
                                          {"elu", HeadFeatures::kEluPlusOne},
                                          {"t2r", HeadFeatures::kT2r},
                                          {"hedgehog", HeadFeatures::kHedgehog}});
  shape.is_map_tied = keys.boolean("tie_feature_map_qk", false);
  linear.sums_query_to_one = keys.boolean("norm_q", false);
  linear.sums_key_to_one = keys.boolean("norm_k", false);
  linear.is_normalised = keys.boolean("norm_feature_map", false);
}

void read_gla(CheckpointKeys& keys, Shape& shape) {
  keys.only("use_gk", true);
  keys.only("use_gv", false);
  const json* const least = keys.find("clamp_min");
  if (least == nullptr) return;
  if (!least->is_number() || !(least->get<double>() <= 0.0)) {
    keys.fail("clamp_min", "null or a number, at most 0");
  }
  shape.least_log_decay = least->get<double>();
}

void read_linear(CheckpointKeys& keys, std::size_t heads, Shape& shape) {
  GatedLinearShape& linear = shape.linear;
  linear.heads = heads;
  linear.kv_heads = count_kv_heads(keys, heads);
  linear.key_width = head_width(keys, "expand_k", shape.width, shape.names.expand_k, heads);
  linear.value_width = head_width(keys, "expand_v", shape.width, shape.names.expand_v, heads);
  if (shape.names.kind == Kind::kLinearAttention) return read_feature_map(keys, shape);
  linear.has_gate = keys.boolean("use_output_gate", true);
  if (keys.find("feature_map") != nullptr) keys.fail("feature_map", "null");
  if (shape.names.kind == Kind::kGla) return read_gla(keys, shape);
  linear.rope_theta = 10000.0;
  if (linear.key_width % 2 != 0) {
    keys.fail("expand_k", "keys of an even width, found " + std::to_string(linear.key_width));
  }
  keys.ignore({"use_short_conv", "conv_size"});  // the published block ignores them, too
}

void read_convolution(CheckpointKeys& keys, Shape& shape) {
  if (shape.names.kind == Kind::kRetNet || shape.names.kind == Kind::kLinearAttention) return;
  shape.has_convolution = keys.boolean("use_short_conv", shape.is_delta());
  const std::size_t taps = count_of(keys, "conv_size", kMostTaps, 4);
  shape.linear.taps = shape.has_convolution ? taps : 0;
  shape.delta.taps = shape.has_convolution ? taps : 1;
  // A key in files of 2024. The tensors show whether the kernels were shared.
  keys.ignore({"share_conv_kernel"});
}

void read_softmax_layers(CheckpointKeys& root, const json& entry, const std::string& file,
                         Shape& shape, std::vector<UnknownKey>& unknown) {
  CheckpointKeys keys(entry, file, "attn.");
  SoftmaxLayer layer;
  layer.shape.heads = static_cast<std::size_t>(keys.required("num_heads", 1, kMaxHeads));
  layer.shape.kv_heads = count_kv_heads(keys, layer.shape.heads);
  layer.shape.head_width = shape.width / layer.shape.heads;
  if (shape.width % layer.shape.heads != 0 || layer.shape.head_width % 2 != 0 ||
      layer.shape.head_width > kMaxHeadWidth) {
    keys.fail("num_heads", "a divisor of hidden_size, " + std::to_string(shape.width) +
                               ", with heads of an even width, at most " +
                               std::to_string(kMaxHeadWidth));
  }
  layer.shape.rotated = layer.shape.head_width;
  layer.shape.rope_theta = keys.positive("rope_theta", 1e12, 10000.0);
  layer.has_bias = keys.boolean("qkv_bias", false);
  if (const auto window = keys.integer("window_size", 1, kMaxMaxLength)) {
    layer.shape.window = static_cast<std::size_t>(*window);
  } else {
    shape.max_length = root.integer("max_position_embeddings", 1, kMaxMaxLength, 2048);
  }
  const json* const layers = keys.find("layers");
  const std::string expected = "a list of layers from 0 to " +
                               std::to_string(shape.softmax.size() - 1) + ", each at most once";
  if (layers == nullptr || !layers->is_array()) keys.fail("layers", expected);
  for (const json& number : *layers) {
    const bool is_layer =
        number.is_number_integer() && number >= 0 && number < shape.softmax.size();
    if (!is_layer || shape.softmax[number.get<std::size_t>()].has_value()) {
      keys.fail("layers", expected);
    }
    shape.softmax[number.get<std::size_t>()] = layer;
  }
  keys.same("head_dim", layer.shape.head_width, "hidden_size / num_heads");
  keys.refuse({"qk_norm", "qk_activation", "use_gate"});
  keys.finish(unknown);
}

void check_state(CheckpointKeys& keys, const Shape& shape) {
  const auto heads =
      static_cast<double>(shape.is_delta() ? shape.delta.value_heads : shape.linear.heads);
  const auto floats = static_cast<double>(
      shape.is_delta() ? shape.delta.key_width * shape.delta.value_width
                       : shape.linear.feature_width() * shape.linear.sum_width());
  if (heads * floats * static_cast<double>(shape.softmax.size()) <=
      static_cast<double>(kMostStateFloats)) {
    return;
  }
  keys.fail("num_heads",
            "states of at most " + std::to_string(kMostStateFloats) + " floats in all layers");
}

void check_architecture(CheckpointKeys& keys, const Shape& shape) {
  const json* const found = keys.find("architectures");
  if (found == nullptr) return;
  const auto is_known = [&](const json& name) { return name == shape.names.architecture; };
  if (found->is_array() && std::ranges::all_of(*found, is_known)) return;
  keys.fail("architectures", "[\"" + std::string(shape.names.architecture) + "\"]");
}

// Keys of kernels and of training, and those that another kind of the block reads.
void check_other_keys(CheckpointKeys& keys, const Shape& shape) {
  keys.ignore({"fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy",
               "use_l2warp", "max_position_embeddings"});
  using Keys = std::initializer_list<const char*>;
  const auto refuse_in_others = [&](std::initializer_list<Kind> kinds, Keys names) {
    if (std::ranges::find(kinds, shape.names.kind) == kinds.end()) keys.refuse(names);
  };
  const std::size_t heads = shape.is_delta() ? shape.delta.key_heads : shape.linear.heads;
  const std::size_t width = shape.is_delta() ? shape.delta.key_width : shape.linear.key_width;
  if (shape.is_delta()) keys.same("num_kv_heads", heads, "num_heads");
  if (shape.names.kind != Kind::kGatedDeltaNet) {
    keys.same("num_v_heads", heads, "num_heads");
    keys.same("head_dim", width, "expand_k");
  }
  keys.same("head_size", width, "the width of a key");
  refuse_in_others({Kind::kDeltaNet}, {"qk_activation", "qk_norm"});
  refuse_in_others({Kind::kGatedDeltaNet, Kind::kDeltaNet}, {"allow_neg_eigval", "use_gate"});
  refuse_in_others({Kind::kGla}, {"clamp_min", "use_gv"});
  refuse_in_others({Kind::kGla, Kind::kRetNet, Kind::kLinearAttention}, {"feature_map"});
  refuse_in_others({Kind::kLinearAttention},
                   {"norm_feature_map", "norm_k", "norm_q", "tie_feature_map_qk"});
  refuse_in_others({Kind::kGatedDeltaNet, Kind::kDeltaNet, Kind::kGla, Kind::kRetNet},
                   {"use_short_conv"});
}

Shape read_shape(const Checkpoint& checkpoint, std::vector<UnknownKey>& unknown) {
  CheckpointKeys keys(*checkpoint.config, checkpoint.config_file, "");
  const auto required = [&](const char* key, std::int64_t high) {
    return static_cast<std::size_t>(keys.required(key, 1, high));
  };
  const std::string model_type = keys.find("model_type")->get<std::string>();
  Shape shape{.names = *std::ranges::find_if(
                  kKinds, [&](const KindNames& names) { return model_type == names.model_type; })};
  shape.vocabulary = required("vocab_size", kMaxVocabSize);
  shape.width = required("hidden_size", kMaxModelWidth);
  shape.softmax.resize(required("num_hidden_layers", kMaxLayers));
  shape.eps = keys.positive("norm_eps", kMaxEpsilon, 1e-6);
  shape.is_tied = keys.boolean("tie_word_embeddings", false);
  const double ratio = keys.positive("hidden_ratio", 64.0, shape.names.hidden_ratio);
  const double inner = std::floor(static_cast<double>(shape.width) * ratio * 2.0 / 3.0);
  shape.ff_width = count_of(keys, "intermediate_size", kMaxFeedForwardWidth,
                            256 * static_cast<std::int64_t>(std::ceil(inner / 256.0)));
  const std::size_t heads = count_of(keys, "num_heads", kMaxHeads, shape.names.num_heads);
  if (shape.names.kind == Kind::kGatedDeltaNet) {
    read_gated_deltanet(keys, heads, shape);
  } else if (shape.names.kind == Kind::kDeltaNet) {
    read_delta_net(keys, heads, shape);
  } else {
    read_linear(keys, heads, shape);
  }
  if (shape.is_delta() && keys.boolean("allow_neg_eigval", false)) shape.delta.most_rate = 2.0f;
  read_convolution(keys, shape);
  check_state(keys, shape);
  if (const json* const attention = keys.find("attn")) {
    const std::vector<json> entries =
        attention->is_array() ? attention->get<std::vector<json>>() : std::vector<json>{*attention};
    for (const json& entry : entries) {
      read_softmax_layers(keys, entry, checkpoint.config_file, shape, unknown);
    }
  }
  check_architecture(keys, shape);
  keys.only("hidden_act", {"swish"});
  keys.only("elementwise_affine", true);
  check_other_keys(keys, shape);
  keys.finish(unknown);
  return shape;
}

// Reads the shape without a report of unknown keys, which read_config() has named.
Shape read_shape(const Checkpoint& checkpoint) {
  std::vector<UnknownKey> unknown;
  return read_shape(checkpoint, unknown);
}

ModelConfig read_config(const Checkpoint& checkpoint, std::vector<UnknownKey>& unknown) {
  const Shape shape = read_shape(checkpoint, unknown);
  ModelConfig config;
  config.family = shape.names.model_type;
  config.vocab_size = static_cast<int>(shape.vocabulary);
  config.max_length = shape.max_length;
  config.d_model = static_cast<int>(shape.width);
  config.n_layers = static_cast<int>(shape.softmax.size());
  for (const auto& softmax : shape.softmax) {
    config.mixers.push_back(softmax.has_value() ? "gated_softmax"
                            : shape.is_delta()  ? "gated_delta"
                                                : "gated_linear");
  }
  return config;
}

class Builder {
 public:
  Builder(const Checkpoint& checkpoint, const Dense::Options& options, KvType kv_type)
      : shape_(read_shape(checkpoint)),
        options_(options),
        kv_type_(kv_type),
        exact_(options),
        tensors_(checkpoint.tensors) {
    exact_.weight_type = WeightType::kF32;
  }

  std::unique_ptr<const Decoder> build() {
    auto decoder = std::make_unique<Decoder>();
    decoder->weight_type = options_.weight_type;
    decoder->width = shape_.width;
    tensors_.ignore([](std::string_view name) { return name.ends_with(".rotary.inv_freq"); });
    for (std::size_t i = 0; i < shape_.softmax.size(); ++i) {
      if (shape_.softmax[i].has_value()) decoder->kv_type = kv_type_;
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      decoder->layers.push_back({.token_norm = norm(prefix + "attn_norm.weight"),
                                 .token_mixer = token_mixer(i, prefix + "attn."),
                                 .channel_norm = norm(prefix + "mlp_norm.weight"),
                                 .channel_mixer = swiglu(prefix + "mlp.")});
    }
    decoder->final_norm = norm("model.norm.weight");
    tensors_.read_vocabulary({.embedding = "model.embeddings.weight",
                              .head = "lm_head.weight",
                              .is_tied = shape_.is_tied,
                              .rows = shape_.vocabulary},
                             options_, *decoder);
    tensors_.finish();
    decoder->num_parameters = tensors_.num_parameters();
    return decoder;
  }

 private:
  using Parts = std::vector<TensorReader::Part>;

  Dense served(const Parts& parts, std::size_t cols, WeightRole role = WeightRole::kMixer) {
    return tensors_.dense(parts, cols, options_, role);
  }
  Dense exact(const Parts& parts, std::size_t cols) { return tensors_.dense(parts, cols, exact_); }

  RowNorm norm(const std::string& name) {
    return {.gain = tensors_.vector(name, shape_.width),
            .bias = {},
            .eps = static_cast<float>(shape_.eps)};
  }

  std::unique_ptr<const Mixer> token_mixer(std::size_t layer, const std::string& prefix) {
    if (shape_.softmax[layer].has_value()) return softmax(*shape_.softmax[layer], prefix);
    return shape_.is_delta() ? delta(prefix) : linear(prefix);
  }

  std::unique_ptr<const Mixer> softmax(const SoftmaxLayer& layer, const std::string& prefix) {
    const auto part = [&](const char* name, std::size_t rows) {
      return TensorReader::Part{prefix + name + ".weight", rows,
                                layer.has_bias ? prefix + name + ".bias" : ""};
    };
    const std::size_t queries = layer.shape.queries();
    const std::size_t keys = layer.shape.keys();
    GatedSoftmaxWeights weights;
    weights.in =
        served({part("q_proj", queries), part("k_proj", keys), part("v_proj", keys)}, shape_.width);
    weights.out = served({{prefix + "o_proj.weight", shape_.width}}, queries);
    GatedSoftmaxShape shape = layer.shape;
    shape.kv_type = kv_type_;
    return std::make_unique<GatedSoftmax>(shape, std::move(weights));
  }

  std::unique_ptr<const Mixer> delta(const std::string& prefix) {
    const GatedDeltaShape& shape = shape_.delta;
    GatedDeltaWeights weights;
    weights.in = projections(prefix, shape.keys(), shape.keys(), shape.values(),
                             shape.has_gate ? shape.values() : 0);
    // Rates feed exponentials: never in fewer bits.
    Parts rates;
    if (shape.has_rate) rates.push_back({prefix + "b_proj.weight", shape.value_heads});
    if (shape.has_decay) rates.push_back({prefix + "a_proj.weight", shape.value_heads});
    if (!rates.empty()) weights.rate = exact(rates, shape_.width);
    if (shape_.has_convolution) {
      weights.convolution = Matrix(shape.taps, shape.channels());
      weights.convolution_bias = read_convolutions(
          prefix, {shape.keys(), shape.keys(), shape.values()}, weights.convolution);
    } else {
      weights.convolution = Matrix(1, shape.channels());
      std::ranges::fill(weights.convolution.values(), 1.0f);
    }
    if (shape.has_decay) {
      weights.decay = tensors_.vector(prefix + "A_log", shape.value_heads);
      for (float& value : weights.decay.values()) value = -std::exp(value);
      weights.decay_bias = tensors_.vector(prefix + "dt_bias", shape.value_heads);
      // Stored before March 2025 and never used.
      tensors_.ignore([&](std::string_view name) { return name == prefix + "D"; });
    }
    weights.norm = tensors_.vector(prefix + "o_norm.weight", shape.value_width);
    weights.norm_eps = static_cast<float>(shape_.eps);
    weights.out = served({{prefix + "o_proj.weight", shape_.width}}, shape.values());
    return std::make_unique<GatedDelta>(shape, std::move(weights));
  }

  std::unique_ptr<const Mixer> linear(const std::string& prefix) {
    const GatedLinearShape& shape = shape_.linear;
    const std::size_t queries = shape.heads * shape.key_width;
    const std::size_t keys = shape.kv_heads * shape.key_width;
    const std::size_t values = shape.kv_heads * shape.value_width;
    GatedLinearWeights weights;
    weights.in = projections(prefix, queries, keys, values, shape.has_gate ? shape.outputs() : 0);
    if (shape_.has_convolution) {
      weights.convolution = Matrix(shape.taps, shape.channels());
      weights.convolution_bias =
          read_convolutions(prefix, {queries, keys, values}, weights.convolution);
    }
    if (shape_.names.kind == Kind::kRetNet) {
      weights.head_decay = Matrix(1, shape.heads);
      for (std::size_t h = 0; h < shape.heads; ++h) {
        weights.head_decay.values()[h] =
            static_cast<float>(1.0 - std::exp2(-5.0 - static_cast<double>(h)));
      }
    }
    if (shape_.names.kind == Kind::kGla) {
      weights.decay_rank = exact({{prefix + "gk_proj.0.weight", kDecayRank}}, shape_.width);
      weights.decay =
          exact({{prefix + "gk_proj.1.weight", keys, prefix + "gk_proj.1.bias"}}, kDecayRank);
      weights.decay_divisor = kDecayDivisor;
      weights.least_log_decay = static_cast<float>(shape_.least_log_decay);
    }
    if (shape_.names.kind == Kind::kLinearAttention) {
      weights.query_map = feature_map(prefix, "feature_map_q.", "feature_map_k.");
      weights.key_map = feature_map(prefix, "feature_map_k.", "feature_map_q.");
    }
    weights.norm = tensors_.vector(norm_name(prefix), shape.value_width);
    weights.norm_eps = static_cast<float>(shape_.eps);
    weights.out = served({{prefix + "o_proj.weight", shape_.width}}, shape.outputs());
    return std::make_unique<GatedLinear>(shape, std::move(weights));
  }

  Dense projections(const std::string& prefix, std::size_t queries, std::size_t keys,
                    std::size_t values, std::size_t gates) {
    Parts parts = {{prefix + "q_proj.weight", queries},
                   {prefix + "k_proj.weight", keys},
                   {prefix + "v_proj.weight", values}};
    if (gates > 0) parts.push_back({prefix + "g_proj.weight", gates});
    return served(parts, shape_.width);
  }

  // The name says which kernel norms and gates, not what is computed.
  std::string norm_name(const std::string& prefix) const {
    if (shape_.names.kind == Kind::kLinearAttention) return prefix + "norm.weight";
    const std::string gated = prefix + "g_norm_swish_gate.weight";
    return tensors_.has(gated) ? gated : prefix + "g_norm.weight";
  }

  // The convolutions of q, k and v become one over their channels side by side, to: [K, C]. Returns
  // their biases [1, C], empty where none is stored.
  Matrix read_convolutions(const std::string& prefix, std::initializer_list<std::size_t> widths,
                           Matrix& to) {
    Matrix biases;
    std::size_t first = 0;
    const char* name = "qkv";
    for (const std::size_t width : widths) {
      const std::string of = prefix + *name++ + "_conv1d.";
      const Matrix taps = tensors_.matrix(of + "weight", width, to.rows());  // [width, 1, K]
      for (std::size_t c = 0; c < width; ++c) {
        for (std::size_t k = 0; k < to.rows(); ++k) to.row(k)[first + c] = taps.row(c)[k];
      }
      if (tensors_.has(of + "bias")) {
        if (biases.values().empty()) biases = Matrix(1, to.cols());
        const Matrix bias = tensors_.vector(of + "bias", width);
        std::ranges::copy(bias.values(), biases.values().subspan(first).begin());
      }
      first += width;
    }
    return biases;
  }

  // Tied maps are stored under one of the names, or both.
  GatedLinearWeights::Map feature_map(const std::string& prefix, const std::string& name,
                                      const std::string& other) {
    const std::size_t width = shape_.linear.key_width;
    const auto layer = [&](const std::string& of, bool has_bias) {
      const auto stored = [&](const std::string& what) {
        const std::string mine = prefix + name + of + what;
        const std::string theirs = prefix + other + of + what;
        if (!shape_.is_map_tied || !tensors_.has(theirs)) return mine;
        if (tensors_.has(mine)) tensors_.check_equal(mine, theirs);
        return theirs;
      };
      const std::string bias = stored(".bias");
      const bool reads_bias = has_bias || tensors_.has(bias);
      return exact({{.name = stored(".weight"),
                     .rows = width,
                     .bias = reads_bias ? bias : "",
                     .is_adaptable = false}},
                   width);
    };
    GatedLinearWeights::Map map;
    switch (shape_.linear.features) {
      case HeadFeatures::kProduct:
        map.first = layer("layer1", true);
        map.second = layer("layer2", true);
        break;
      case HeadFeatures::kHedgehog:
        map.first = layer("layer", true);
        break;
      case HeadFeatures::kT2r:
        map.first = layer("layer", false);
        break;
      default:
        break;
    }
    return map;
  }

  // Before February 2025 gate_proj held both, gate above up.
  std::unique_ptr<const Mixer> swiglu(const std::string& prefix) {
    const std::string gate = prefix + "gate_proj.weight";
    const std::string up = prefix + "up_proj.weight";
    const std::size_t width = shape_.ff_width;
    constexpr WeightRole kRole = WeightRole::kChannels;
    Dense gate_up = tensors_.has(up) ? served({{gate, width}, {up, width}}, shape_.width, kRole)
                                     : served({{gate, 2 * width}}, shape_.width, kRole);
    return std::make_unique<Swiglu>(
        std::move(gate_up), served({{prefix + "down_proj.weight", shape_.width}}, width, kRole));
  }

  const Shape shape_;
  const Dense::Options options_;
  const KvType kv_type_;
  Dense::Options exact_;
  TensorReader tensors_;
};

std::unique_ptr<const Decoder> make(const Checkpoint& checkpoint, const Dense::Options& options,
                                    KvType kv_type, std::vector<std::string>& /*notes*/) {
  return Builder(checkpoint, options, kv_type).build();
}

}  // namespace
}  // namespace fla

const ModelFamily family_fla{.model_types = fla::kModelTypes,
                             .architecture = nullptr,
                             .read_config = fla::read_config,
                             .make = fla::make};

}  // namespace lintel
