// SPDX-License-Identifier: Apache-2.0
// RWKV-7 in three layouts, which the names of the tensors tell apart: transformers' own (rwkv7.),
// that of flash-linear-attention (model.layers.) and that of its author's files (blocks.).
#include "model/layers/mixers/rwkv7.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/families/checkpoint_keys.h"
#include "model/families/family.h"
#include "model/families/gguf_keys.h"
#include "model/families/tensor_reader.h"
#include "model/formats/safetensors.h"

namespace lintel {
namespace rwkv7 {
namespace {

constexpr const char* kModelTypes[] = {"rwkv7"};

// The epsilon of the norm over heads of any width in the author's program and in GGUF files.
// Directories of transformers and FLA have norm_eps times the width.
constexpr double kHeadNormEps = 64e-5;

enum class Layout { kOfficial, kFla, kBlocks, kGguf };

bool has_prefix(const WeightSource& source, std::string_view prefix) {
  for (const TensorInfo& tensor : source.tensors()) {
    if (tensor.name.starts_with(prefix)) return true;
  }
  return false;
}

Layout layout_of(const WeightSource& source) {
  const std::pair<const char*, Layout> layouts[] = {
      {"rwkv7.", Layout::kOfficial}, {"model.layers.", Layout::kFla}, {"blocks.", Layout::kBlocks}};
  if (has_prefix(source, "model.blocks.")) {
    throw ModelError(source.name() +
                     ": tensors below \"model.blocks.\" are of a draft that is not served; convert "
                     "from the .pth file");
  }
  std::vector<std::pair<const char*, Layout>> found;
  for (const auto& layout : layouts) {
    if (has_prefix(source, layout.first)) found.push_back(layout);
  }
  if (found.size() == 1) return found.front().second;
  throw ModelError(source.name() + ": found tensors of " + std::to_string(found.size()) +
                   " layouts of RWKV-7, expected names below one of \"rwkv7.\", \"model.layers.\" "
                   "and \"blocks.\"");
}

// The shape that keys and tensors describe.
struct Shape {
  Layout layout = Layout::kOfficial;
  std::size_t vocabulary = 0;
  std::size_t width = 0;  // E
  std::size_t layers = 0;
  std::size_t head_width = 64;  // D
  std::size_t ff_width = 0;     // F
  double eps = 0.0;
  bool has_norm_bias = true;
  bool has_input_norm = true;
  bool is_tied = false;
  UnitLength unit = UnitLength::kMaximum;
};

// The name of a tensor in a GGUF file.
std::string gguf_name(const std::string& number, const std::string& name) {
  const std::pair<const char*, const char*> renamed[] = {
      {"ln1.", "attn_norm."},        {"ln2.", "attn_norm_2."},
      {"att.ln_x.", "time_mix_ln."}, {"ffn.x_k", "channel_mix_lerp_k.weight"},
      {"ffn.", "channel_mix_"},      {"att.", "time_mix_"}};
  if (name.starts_with("ln0.")) return "token_embd_norm." + name.substr(4);
  // Low-rank factors and vectors have no ".weight" in the author's files.
  const bool is_parameter = name.starts_with("att.") && name.find('.', 4) == std::string::npos;
  for (const auto& [theirs, in_gguf] : renamed) {
    const std::string prefix = theirs;
    if (!name.starts_with(prefix)) continue;
    return "blk." + number + in_gguf + name.substr(prefix.size()) + (is_parameter ? ".weight" : "");
  }
  return "blk." + number + name;
}

// The name in the layout of a tensor that the author's files call `name`, below blocks.{layer}.
std::string name_of(Layout layout, std::size_t layer, const std::string& name) {
  const std::string number = std::to_string(layer) + ".";
  if (layout == Layout::kGguf) return gguf_name(number, name);
  if (layout == Layout::kOfficial) return "rwkv7.blocks." + number + name;
  if (layout == Layout::kBlocks) return "blocks." + number + name;
  const std::string prefix = "model.layers." + number;
  const std::pair<const char*, const char*> renamed[] = {{"ln0.", "pre_norm."},
                                                         {"ln1.", "attn_norm."},
                                                         {"ln2.", "ffn_norm."},
                                                         {"att.ln_x.", "attn.g_norm."},
                                                         {"att.receptance.", "attn.r_proj."},
                                                         {"att.key.", "attn.k_proj."},
                                                         {"att.value.", "attn.v_proj."},
                                                         {"att.output.", "attn.o_proj."}};
  for (const auto& [theirs, ours] : renamed) {
    if (name.starts_with(theirs)) return prefix + ours + name.substr(std::string(theirs).size());
  }
  const bool is_low_rank = name.size() == 6 && name.starts_with("att.") && name[5] <= '2';
  if (is_low_rank) {
    const std::string pair = prefix + "attn." + name[4] + "_lora.lora.";
    return pair + (name[5] == '1' ? "0.weight" : name[5] == '2' ? "2.weight" : "2.bias");
  }
  if (name.starts_with("att.")) return prefix + "attn." + name.substr(4);
  return prefix + name;
}

std::string embedding_name(Layout layout) {
  if (layout == Layout::kGguf) return "token_embd.weight";
  if (layout == Layout::kOfficial) return "rwkv7.emb.weight";
  return layout == Layout::kFla ? "model.embeddings.weight" : "emb.weight";
}
std::string head_name(Layout layout) {
  if (layout == Layout::kGguf) return "output.weight";
  return layout == Layout::kFla ? "lm_head.weight" : "head.weight";
}
std::string final_norm_name(Layout layout) {
  if (layout == Layout::kGguf) return "output_norm.";
  if (layout == Layout::kOfficial) return "rwkv7.ln_out.";
  return layout == Layout::kFla ? "model.norm." : "ln_out.";
}

// The length of a tensor in one of its dimensions; 0 where there is no such tensor.
std::size_t dimension(const WeightSource& source, const std::string& name, std::size_t which) {
  const TensorInfo* const found = source.find(name);
  if (found == nullptr || found->shape.size() != 2) return 0;
  return static_cast<std::size_t>(found->shape[which]);
}

// True if the factors of low-rank pairs are [R, E] and [E, R], as weights of linear layers; in the
// author's files they are the other way round.
bool has_linear_pairs(Layout layout) { return layout == Layout::kFla || layout == Layout::kGguf; }

// R of a pair: `w`, `a`, `v` or `g`.
std::size_t rank_of(const WeightSource& source, Layout layout, std::size_t layer, char pair) {
  const std::string first = name_of(layout, layer, std::string("att.") + pair + "1");
  return dimension(source, first, has_linear_pairs(layout) ? 0 : 1);
}

void check_ranks(const Checkpoint& checkpoint, CheckpointKeys& keys, const Shape& shape) {
  const std::pair<const char*, char> ranks[] = {{"decay_low_rank_dim", 'w'},
                                                {"a_low_rank_dim", 'a'},
                                                {"v_low_rank_dim", 'v'},
                                                {"gate_low_rank_dim", 'g'}};
  for (const auto& [key, pair] : ranks) {
    const std::size_t layer = pair == 'v' ? 1 : 0;
    if (layer >= shape.layers) continue;
    const std::size_t found = rank_of(checkpoint.tensors, shape.layout, layer, pair);
    const auto rank = keys.integer(key, 1, kMaxModelWidth);
    if (!rank.has_value() || static_cast<std::size_t>(*rank) == found) continue;
    keys.fail(key, std::to_string(found) + ", as tensor " +
                       quote(name_of(shape.layout, layer, std::string("att.") + pair + "1")) +
                       " has");
  }
}

void read_fla_keys(CheckpointKeys& keys, Shape& shape) {
  shape.unit = keys.boolean("fuse_norm", true) ? UnitLength::kAddInside : UnitLength::kMaximum;
  shape.has_input_norm = keys.boolean("norm_first", true);
  keys.only("hidden_act", {"sqrelu"});
  keys.only("norm_bias", true);
  keys.positive("hidden_ratio", 64.0, 4.0);  // the tensors have F
  if (keys.find("attn") != nullptr) {
    keys.fail("attn", "null: softmax layers in RWKV-7 are not served");
  }
  if (const nlohmann::json* const widths = keys.find("value_dim")) {
    const std::string expected =
        "null or hidden_size, " + std::to_string(shape.width) + ", for every layer";
    const auto fits = [&](const nlohmann::json& value) { return value == shape.width; };
    if (!(widths->is_array() ? std::ranges::all_of(*widths, fits) : fits(*widths))) {
      keys.fail("value_dim", expected);
    }
  }
  keys.integer("num_heads", 1, kMaxHeads);  // head_dim wins
  keys.ignore({"fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp"});
}

void read_official_keys(CheckpointKeys& keys, Shape& shape) {
  const auto heads = static_cast<std::int64_t>(shape.width / shape.head_width);
  if (keys.integer("num_heads", 1, kMaxHeads, heads) != heads) {
    keys.fail("num_heads", "hidden_size / head_dim, " + std::to_string(heads));
  }
  shape.has_norm_bias = keys.boolean("norm_bias", true);
  keys.only("use_deep_embed", false);
  keys.only("wkv_state_dtype", {"float32", "float16", "bfloat16"});
  keys.only("hidden_act", {"sqrelu"});
  keys.only("norm_first", true);
  // Keys that change the function in the other layout.
  keys.refuse({"attn", "fuse_norm", "value_dim"});
  keys.ignore({"wkv_implementation", "hidden_ratio"});  // the tensors have F
}

Shape read_gguf(const GgufFile& file, std::vector<UnknownKey>& unknown) {
  ArchitectureKeys keys(file, "rwkv7");
  Shape shape;
  shape.layout = Layout::kGguf;
  shape.width = static_cast<std::size_t>(keys.required("embedding_length", 1, kMaxModelWidth));
  shape.layers = static_cast<std::size_t>(keys.required("block_count", 1, kMaxLayers));
  shape.ff_width =
      static_cast<std::size_t>(keys.required("feed_forward_length", 1, kMaxFeedForwardWidth));
  shape.head_width = static_cast<std::size_t>(keys.required("wkv.head_size", 1, kMaxHeadWidth));
  if (shape.width % shape.head_width != 0) {
    keys.fail("wkv.head_size", "a divisor of embedding_length, " + std::to_string(shape.width));
  }
  shape.eps = keys.positive("attention.layer_norm_epsilon", kMaxEpsilon, {});
  shape.vocabulary = vocabulary_of(keys, file);
  shape.is_tied = file.find("output.weight") == nullptr;
  const std::pair<const char*, char> ranks[] = {{"attention.decay_lora_rank", 'w'},
                                                {"attention.iclr_lora_rank", 'a'},
                                                {"attention.value_residual_mix_lora_rank", 'v'},
                                                {"attention.gate_lora_rank", 'g'}};
  for (const auto& [key, pair] : ranks) {
    const std::size_t layer = pair == 'v' ? 1 : 0;
    const auto rank = keys.integer(key, 0, kMaxModelWidth);
    if (layer >= shape.layers || !rank.has_value()) continue;
    const std::size_t found = rank_of(file, shape.layout, layer, pair);
    if (static_cast<std::size_t>(*rank) != found) {
      keys.fail(key, std::to_string(found) + ", as the tensors have");
    }
  }
  if (keys.integer("token_shift_count", 0, 2).value_or(2) != 2) keys.fail("token_shift_count", "2");
  keys.ignore({"context_length", "attention.head_count"});  // the length of training, no limit
  keys.finish(unknown);
  return shape;
}

Shape read_shape(const Checkpoint& checkpoint, std::vector<UnknownKey>& unknown) {
  if (checkpoint.gguf != nullptr) return read_gguf(*checkpoint.gguf, unknown);
  CheckpointKeys keys(*checkpoint.config, checkpoint.config_file, "");
  Shape shape;
  shape.layout = layout_of(checkpoint.tensors);
  const auto required = [&](const char* key, std::int64_t high) {
    return static_cast<std::size_t>(keys.required(key, 1, high));
  };
  shape.vocabulary = required("vocab_size", kMaxVocabSize);
  shape.width = required("hidden_size", kMaxModelWidth);
  shape.layers = required("num_hidden_layers", kMaxLayers);
  shape.head_width = static_cast<std::size_t>(keys.integer("head_dim", 1, kMaxHeadWidth, 64));
  if (shape.width % shape.head_width != 0) {
    keys.fail("head_dim", "a divisor of hidden_size, " + std::to_string(shape.width));
  }
  shape.eps = keys.positive("norm_eps", kMaxEpsilon, 1e-5);
  shape.is_tied = keys.boolean("tie_word_embeddings", false);
  shape.layout == Layout::kFla ? read_fla_keys(keys, shape) : read_official_keys(keys, shape);
  const std::string key = name_of(shape.layout, 0, "ffn.key.weight");
  shape.ff_width = dimension(checkpoint.tensors, key, 0);
  const auto width = keys.integer("intermediate_size", 1, kMaxFeedForwardWidth);
  if (width.has_value() && static_cast<std::size_t>(*width) != shape.ff_width) {
    keys.fail("intermediate_size",
              std::to_string(shape.ff_width) + ", as tensor " + quote(key) + " has");
  }
  check_ranks(checkpoint, keys, shape);
  keys.same("head_size", shape.head_width, "head_dim");
  keys.same("attention_hidden_size", shape.width, "hidden_size");
  keys.same("layer_norm_epsilon", shape.eps, "norm_eps");
  keys.ignore({"max_position_embeddings"});  // the length of training, no limit
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
  config.family = "rwkv7";
  config.vocab_size = static_cast<int>(shape.vocabulary);
  config.d_model = static_cast<int>(shape.width);
  config.n_layers = static_cast<int>(shape.layers);
  config.mixers.assign(shape.layers, "rwkv7");
  return config;
}

class Builder {
 public:
  Builder(const Checkpoint& checkpoint, const Dense::Options& options)
      : shape_(read_shape(checkpoint)),
        options_(options),
        low_rank_(options),
        source_(checkpoint.tensors),
        tensors_(checkpoint.tensors) {
    // Low-rank pairs feed exponentials: bf16 at least, and f32 where a GGUF file has f16, which has
    // more bits.
    const bool is_exact =
        options.weight_type == WeightType::kF32 || options.weight_type == WeightType::kBlocks;
    low_rank_.weight_type = is_exact ? WeightType::kF32 : WeightType::kBf16;
  }

  std::unique_ptr<const Decoder> build() {
    auto decoder = std::make_unique<Decoder>();
    decoder->weight_type = options_.weight_type;
    decoder->width = shape_.width;
    if (shape_.has_input_norm) decoder->input_norm = norm(name(0, "ln0."));
    ignore_first_value_of_layer_0();
    for (std::size_t i = 0; i < shape_.layers; ++i) {
      decoder->layers.push_back({.token_norm = norm(name(i, "ln1.")),
                                 .token_mixer = time_mixer(i),
                                 .channel_norm = norm(name(i, "ln2.")),
                                 .channel_mixer = channel_mixer(i)});
    }
    decoder->final_norm = norm(final_norm_name(shape_.layout));
    tensors_.read_vocabulary({.embedding = embedding_name(shape_.layout),
                              .head = head_name(shape_.layout),
                              .is_tied = shape_.is_tied,
                              .rows = shape_.vocabulary},
                             options_, *decoder);
    tensors_.finish();
    decoder->num_parameters = tensors_.num_parameters();
    return decoder;
  }

 private:
  std::string name(std::size_t layer, const std::string& of) const {
    return name_of(shape_.layout, layer, of);
  }

  // Stored by some trainers and never used.
  void ignore_first_value_of_layer_0() {
    for (const char* const unused : {"att.v0", "att.v1", "att.v2"}) {
      tensors_.ignore(
          [tensor = name(0, unused)](std::string_view found) { return found == tensor; });
    }
  }

  RowNorm norm(const std::string& prefix) {
    RowNorm norm{.gain = tensors_.vector(prefix + "weight", shape_.width),
                 .bias = Matrix(1, shape_.width),
                 .eps = static_cast<float>(shape_.eps)};
    if (shape_.has_norm_bias) norm.bias = tensors_.vector(prefix + "bias", shape_.width);
    return norm;
  }

  std::array<Matrix, 6> mixes(std::size_t layer) {
    std::array<Matrix, 6> mix;
    const std::string all = name(layer, "att.x_x");  // FLA before April 2025: all six in one
    if (shape_.layout == Layout::kFla && tensors_.has(all)) {
      const Matrix rows = tensors_.matrix(all, mix.size(), shape_.width);
      for (std::size_t i = 0; i < mix.size(); ++i) {
        mix[i] = Matrix(1, shape_.width);
        std::ranges::copy(rows.row(i), mix[i].row(0).begin());
      }
      return mix;
    }
    if (shape_.layout == Layout::kGguf) {
      const Matrix rows =
          tensors_.vector("blk." + std::to_string(layer) + ".time_mix_lerp_fused.weight",
                          mix.size() * shape_.width);
      for (std::size_t i = 0; i < mix.size(); ++i) {
        mix[i] = Matrix(1, shape_.width);
        std::ranges::copy(rows.values().subspan(i * shape_.width, shape_.width),
                          mix[i].row(0).begin());
      }
      return mix;
    }
    const char* const names[] = {"r", "w", "k", "v", "a", "g"};
    for (std::size_t i = 0; i < mix.size(); ++i) {
      mix[i] = tensors_.vector(name(layer, std::string("att.x_") + names[i]), shape_.width);
    }
    return mix;
  }

  LowRankPair pair(std::size_t layer, char which) {
    const auto of = [&](char number) { return name(layer, std::string("att.") + which + number); };
    const std::size_t rank = rank_of(source_, shape_.layout, layer, which);
    const bool transposed = !has_linear_pairs(shape_.layout);
    LowRankPair pair;
    pair.first = tensors_.dense({{of('1'), rank, "", transposed}}, shape_.width, low_rank_);
    pair.second = tensors_.dense({{of('2'), shape_.width, which == 'g' ? "" : of('0'), transposed}},
                                 rank, low_rank_);
    return pair;
  }

  std::unique_ptr<const Mixer> time_mixer(std::size_t layer) {
    const std::size_t width = shape_.width;
    const auto square = [&](const char* of) {
      return tensors_.dense({{name(layer, std::string("att.") + of + ".weight"), width}}, width,
                            options_);
    };
    const auto vector = [&](const char* of) {
      return tensors_.vector(name(layer, std::string("att.") + of), width);
    };
    Rwkv7Weights weights;
    weights.mix = mixes(layer);
    weights.r = square("receptance");
    weights.k = square("key");
    weights.v = square("value");
    weights.out = square("output");
    weights.decay = pair(layer, 'w');
    weights.rate = pair(layer, 'a');
    weights.gate = pair(layer, 'g');
    if (layer > 0) weights.first_value = pair(layer, 'v');
    weights.k_k = vector("k_k");
    weights.k_a = vector("k_a");
    weights.r_k = vector("r_k");
    const bool is_of_author = shape_.layout == Layout::kBlocks || shape_.layout == Layout::kGguf;
    const double eps =
        is_of_author ? kHeadNormEps : shape_.eps * static_cast<double>(shape_.head_width);
    weights.head_norm = {
        .gain = vector("ln_x.weight"), .bias = vector("ln_x.bias"), .eps = static_cast<float>(eps)};
    return std::make_unique<Rwkv7TimeMixer>(shape_.head_width, layer == 0, shape_.unit,
                                            std::move(weights));
  }

  std::unique_ptr<const Mixer> channel_mixer(std::size_t layer) {
    Matrix mix = tensors_.vector(name(layer, "ffn.x_k"), shape_.width);
    Dense key = tensors_.dense({{name(layer, "ffn.key.weight"), shape_.ff_width}}, shape_.width,
                               options_, WeightRole::kChannels);
    Dense value = tensors_.dense({{name(layer, "ffn.value.weight"), shape_.width}}, shape_.ff_width,
                                 options_, WeightRole::kChannels);
    return std::make_unique<Rwkv7ChannelMixer>(std::move(mix), std::move(key), std::move(value));
  }

  const Shape shape_;
  const Dense::Options options_;
  Dense::Options low_rank_;
  const WeightSource& source_;
  TensorReader tensors_;
};

std::unique_ptr<const Decoder> make(const Checkpoint& checkpoint, const Dense::Options& options,
                                    KvType /*kv_type*/, std::vector<std::string>& /*notes*/) {
  return Builder(checkpoint, options).build();
}

}  // namespace
}  // namespace rwkv7

const ModelFamily family_rwkv7{.model_types = rwkv7::kModelTypes,
                               .architecture = "rwkv7",
                               .read_config = rwkv7::read_config,
                               .make = rwkv7::make};

}  // namespace lintel
