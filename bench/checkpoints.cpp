// SPDX-License-Identifier: Apache-2.0
#include "bench/checkpoints.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>

#include "bench/run_flags.h"
#include "model/core/float_formats.h"

namespace lintel::bench {
namespace {

using Json = nlohmann::ordered_json;
using Size = std::int64_t;

struct QwenShape {
  const char* name;
  Size width, heads, kv_heads, value_heads, feed_forward;
};
constexpr std::array kQwen = {QwenShape{"qwen3.5-0.8b", 1024, 8, 2, 16, 3584},
                              QwenShape{"qwen3.5-2b", 2048, 8, 2, 16, 6144}};
constexpr Size kQwenLayers = 24, kQwenVocabulary = 248'320, kHeadWidth = 256, kLinearWidth = 128;
constexpr Size kKeyHeads = 16;

struct RwkvShape {
  const char* name;
  Size width, layers;
  std::array<Size, 4> ranks;  // of w, a, v and g
};
constexpr std::array kRwkv = {RwkvShape{"rwkv7-0.1b", 768, 12, {64, 64, 32, 128}},
                              RwkvShape{"rwkv7-0.4b", 1024, 24, {64, 64, 32, 128}},
                              RwkvShape{"rwkv7-1.5b", 2048, 24, {96, 96, 64, 256}}};
constexpr Size kRwkvVocabulary = 65'536, kRwkvHeadWidth = 64;

struct Tensor {
  std::string name;
  std::vector<Size> shape;
  bool is_gain = false;  // a factor near one
};

struct Plan {
  Json config;
  std::vector<Tensor> tensors;

  void add(std::string name, std::vector<Size> shape, bool is_gain = false) {
    tensors.push_back({std::move(name), std::move(shape), is_gain});
  }
};

Plan plan_of(const QwenShape& of) {
  const Size keys = kKeyHeads * kLinearWidth, values = of.value_heads * kLinearWidth;
  Plan plan;
  plan.config = {
      {"architectures", {"Qwen3_5ForCausalLM"}},
      {"model_type", "qwen3_5_text"},
      {"dtype", "bfloat16"},
      {"vocab_size", kQwenVocabulary},
      {"hidden_size", of.width},
      {"intermediate_size", of.feed_forward},
      {"num_hidden_layers", kQwenLayers},
      {"num_attention_heads", of.heads},
      {"num_key_value_heads", of.kv_heads},
      {"head_dim", kHeadWidth},
      {"linear_num_key_heads", kKeyHeads},
      {"linear_num_value_heads", of.value_heads},
      {"linear_key_head_dim", kLinearWidth},
      {"linear_value_head_dim", kLinearWidth},
      {"linear_conv_kernel_dim", 4},
      {"full_attention_interval", 4},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", 262'144},
      {"tie_word_embeddings", true},
      {"eos_token_id", 248'044},
      {"rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 10'000'000}, {"partial_rotary_factor", 0.25}}}};
  plan.add("model.embed_tokens.weight", {kQwenVocabulary, of.width});
  for (Size i = 0; i < kQwenLayers; ++i) {
    std::string at = "model.layers." + std::to_string(i) + ".";
    plan.add(at + "input_layernorm.weight", {of.width});
    plan.add(at + "post_attention_layernorm.weight", {of.width});
    plan.add(at + "mlp.gate_proj.weight", {of.feed_forward, of.width});
    plan.add(at + "mlp.up_proj.weight", {of.feed_forward, of.width});
    plan.add(at + "mlp.down_proj.weight", {of.width, of.feed_forward});
    if ((i + 1) % 4 == 0) {
      at += "self_attn.";
      plan.add(at + "q_proj.weight", {2 * of.heads * kHeadWidth, of.width});
      plan.add(at + "k_proj.weight", {of.kv_heads * kHeadWidth, of.width});
      plan.add(at + "v_proj.weight", {of.kv_heads * kHeadWidth, of.width});
      plan.add(at + "o_proj.weight", {of.width, of.heads * kHeadWidth});
      plan.add(at + "q_norm.weight", {kHeadWidth});
      plan.add(at + "k_norm.weight", {kHeadWidth});
      continue;
    }
    at += "linear_attn.";
    plan.add(at + "in_proj_qkv.weight", {2 * keys + values, of.width});
    plan.add(at + "in_proj_z.weight", {values, of.width});
    plan.add(at + "in_proj_b.weight", {of.value_heads, of.width});
    plan.add(at + "in_proj_a.weight", {of.value_heads, of.width});
    plan.add(at + "conv1d.weight", {2 * keys + values, 1, 4});
    plan.add(at + "A_log", {of.value_heads});
    plan.add(at + "dt_bias", {of.value_heads});
    plan.add(at + "norm.weight", {kLinearWidth}, true);
    plan.add(at + "out_proj.weight", {of.width, values});
  }
  plan.add("model.norm.weight", {of.width});
  return plan;
}

Plan plan_of(const RwkvShape& of) {
  const Size width = of.width;
  Plan plan;
  plan.config = {{"architectures", {"Rwkv7ForCausalLM"}},
                 {"model_type", "rwkv7"},
                 {"dtype", "bfloat16"},
                 {"vocab_size", kRwkvVocabulary},
                 {"hidden_size", width},
                 {"num_hidden_layers", of.layers},
                 {"head_dim", kRwkvHeadWidth},
                 {"num_heads", width / kRwkvHeadWidth},
                 {"norm_eps", 1e-5},
                 {"eos_token_id", 0},
                 {"tie_word_embeddings", false}};
  const auto norm = [&](const std::string& name) {
    plan.add(name + ".weight", {width}, true);
    plan.add(name + ".bias", {width});
  };
  plan.add("rwkv7.emb.weight", {kRwkvVocabulary, width});
  for (Size i = 0; i < of.layers; ++i) {
    const std::string at = "rwkv7.blocks." + std::to_string(i) + ".";
    if (i == 0) norm(at + "ln0");
    norm(at + "ln1");
    norm(at + "ln2");
    for (const char mix : std::string_view("rwkvag")) {
      plan.add(at + "att.x_" + mix, {1, 1, width});
    }
    for (std::size_t n = 0; n < of.ranks.size(); ++n) {
      const char factor = "wavg"[n];
      if (factor == 'v' && i == 0) continue;
      const std::string name = at + "att." + factor;
      if (factor != 'g') plan.add(name + "0", {1, 1, width});
      plan.add(name + "1", {width, of.ranks[n]});
      plan.add(name + "2", {of.ranks[n], width});
    }
    plan.add(at + "att.k_k", {1, 1, width}, true);
    plan.add(at + "att.k_a", {1, 1, width});
    plan.add(at + "att.r_k", {width / kRwkvHeadWidth, kRwkvHeadWidth});
    for (const char* const name : {"receptance", "key", "value", "output"}) {
      plan.add(at + "att." + name + ".weight", {width, width});
    }
    norm(at + "att.ln_x");
    plan.add(at + "ffn.x_k", {1, 1, width});
    plan.add(at + "ffn.key.weight", {4 * width, width});
    plan.add(at + "ffn.value.weight", {width, 4 * width});
  }
  norm("rwkv7.ln_out");
  plan.add("head.weight", {kRwkvVocabulary, width});
  return plan;
}

// Between 1/64 and 1/32 in size, of either sign.
std::vector<std::uint16_t> random_values(std::size_t count) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) {
    value = static_cast<std::uint16_t>((random() & 0x807F) | 0x3C80);
  }
  return values;
}

std::ofstream open_to_write(const std::filesystem::path& file) {
  std::ofstream out(file, std::ios::binary);
  if (!out) throw std::runtime_error(file.string() + ": cannot be written");
  return out;
}

// ---- GGUF.

// A tensor of a GGUF: [columns, rows], its values about `mean`.
struct GgufTensor {
  std::string name;
  std::vector<Size> shape;
  DType type = DType::kF32;
  float mean = 0, deviation = 0.02f;
};

using GgufValue = std::variant<std::string, std::uint32_t, float, std::vector<std::int32_t>>;

struct GgufPlan {
  std::string architecture;
  std::vector<std::pair<std::string, GgufValue>> metadata;  // names without the architecture
  std::vector<GgufTensor> tensors;

  void add(const std::string& key, Size value) {
    metadata.emplace_back(key, static_cast<std::uint32_t>(value));
  }
  void vector(std::string name, Size size, float mean = 0, float deviation = 0.02f) {
    tensors.push_back({std::move(name), {size}, DType::kF32, mean, deviation});
  }
  void norm(const std::string& name, Size size, bool with_bias) {
    vector(name + ".weight", size, 1);
    if (with_bias) vector(name + ".bias", size);
  }
  void matrix(std::string name, Size columns, Size rows, DType type, float deviation = 0.02f) {
    tensors.push_back({std::move(name), {columns, rows}, type, 0, deviation});
  }
};

DType head_type(DType type) { return type == DType::kQ8_0 ? type : DType::kQ6_K; }

GgufPlan gguf_plan_of(const QwenShape& of, DType type) {
  const Size keys = kKeyHeads * kLinearWidth, values = of.value_heads * kLinearWidth;
  GgufPlan plan{.architecture = "qwen35"};
  plan.add("vocab_size", kQwenVocabulary);
  plan.add("context_length", 32'768);
  plan.add("embedding_length", of.width);
  plan.add("block_count", kQwenLayers);
  plan.add("feed_forward_length", of.feed_forward);
  plan.add("attention.head_count", of.heads);
  plan.add("attention.head_count_kv", of.kv_heads);
  plan.add("attention.key_length", kHeadWidth);
  plan.add("attention.value_length", kHeadWidth);
  plan.metadata.emplace_back("attention.layer_norm_rms_epsilon", 1e-6f);
  plan.add("rope.dimension_count", kHeadWidth / 4);
  plan.metadata.emplace_back("rope.dimension_sections", std::vector<std::int32_t>{11, 11, 10, 0});
  plan.metadata.emplace_back("rope.freq_base", 1e7f);
  plan.add("ssm.conv_kernel", 4);
  plan.add("ssm.inner_size", values);
  plan.add("ssm.state_size", kLinearWidth);
  plan.add("ssm.time_step_rank", of.value_heads);
  plan.add("ssm.group_count", kKeyHeads);
  plan.add("full_attention_interval", 4);
  plan.matrix("token_embd.weight", of.width, kQwenVocabulary, head_type(type));
  plan.norm("output_norm", of.width, /*with_bias=*/false);
  for (Size i = 0; i < kQwenLayers; ++i) {
    const std::string at = "blk." + std::to_string(i) + ".";
    plan.norm(at + "attn_norm", of.width, /*with_bias=*/false);
    plan.norm(at + "post_attention_norm", of.width, /*with_bias=*/false);
    plan.matrix(at + "ffn_gate.weight", of.width, of.feed_forward, type);
    plan.matrix(at + "ffn_up.weight", of.width, of.feed_forward, type);
    plan.matrix(at + "ffn_down.weight", of.feed_forward, of.width, type);
    if ((i + 1) % 4 == 0) {
      plan.matrix(at + "attn_q.weight", of.width, 2 * of.heads * kHeadWidth, type);
      plan.matrix(at + "attn_k.weight", of.width, of.kv_heads * kHeadWidth, type);
      plan.matrix(at + "attn_v.weight", of.width, of.kv_heads * kHeadWidth, type);
      plan.matrix(at + "attn_output.weight", of.heads * kHeadWidth, of.width, type);
      plan.norm(at + "attn_q_norm", kHeadWidth, /*with_bias=*/false);
      plan.norm(at + "attn_k_norm", kHeadWidth, /*with_bias=*/false);
      continue;
    }
    plan.matrix(at + "attn_qkv.weight", of.width, 2 * keys + values, type);
    plan.matrix(at + "attn_gate.weight", of.width, values, type);
    plan.matrix(at + "ssm_conv1d.weight", 4, 2 * keys + values, DType::kF32, 0.3f);
    plan.vector(at + "ssm_dt.bias", of.value_heads, -2, 0.5f);
    plan.vector(at + "ssm_a", of.value_heads, -0.5f, 0.05f);
    plan.matrix(at + "ssm_beta.weight", of.width, of.value_heads, type);
    plan.matrix(at + "ssm_alpha.weight", of.width, of.value_heads, type);
    plan.norm(at + "ssm_norm", kLinearWidth, /*with_bias=*/false);
    plan.matrix(at + "ssm_out.weight", values, of.width, type);
  }
  return plan;
}

GgufPlan gguf_plan_of(const RwkvShape& of, DType type) {
  const Size width = of.width;
  const auto [decay, rate, residual, gate] = of.ranks;
  GgufPlan plan{.architecture = "rwkv7"};
  plan.add("vocab_size", kRwkvVocabulary);
  plan.add("context_length", 32'768);
  plan.add("embedding_length", width);
  plan.add("block_count", of.layers);
  plan.add("feed_forward_length", 4 * width);
  plan.add("attention.head_count", 0);
  plan.metadata.emplace_back("attention.layer_norm_epsilon", 1e-5f);
  plan.add("wkv.head_size", kRwkvHeadWidth);
  plan.add("attention.decay_lora_rank", decay);
  plan.add("attention.iclr_lora_rank", rate);
  plan.add("attention.value_residual_mix_lora_rank", residual);
  plan.add("attention.gate_lora_rank", gate);
  plan.add("token_shift_count", 2);
  plan.matrix("token_embd.weight", width, kRwkvVocabulary, type, 1);
  plan.matrix("output.weight", width, kRwkvVocabulary, head_type(type));
  plan.norm("output_norm", width, /*with_bias=*/true);
  plan.norm("token_embd_norm", width, /*with_bias=*/true);
  for (Size i = 0; i < of.layers; ++i) {
    const std::string at = "blk." + std::to_string(i) + ".", mix = at + "time_mix_";
    for (const char* const name : {"attn_norm", "attn_norm_2", "time_mix_ln"}) {
      plan.norm(at + name, width, /*with_bias=*/true);
    }
    const auto low_rank = [&](const std::string& name, Size rank, DType of_type) {
      plan.matrix(mix + name + "1.weight", width, rank, of_type);
      plan.matrix(mix + name + "2.weight", rank, width, of_type);
    };
    plan.vector(mix + "w0.weight", width, -2, 0.5f);
    low_rank("w", decay, DType::kF32);
    plan.vector(mix + "a0.weight", width);
    low_rank("a", rate, DType::kF16);
    plan.vector(mix + "v0.weight", width);
    low_rank("v", i == 0 ? rate : residual, DType::kF16);
    low_rank("g", gate, DType::kF16);
    plan.tensors.push_back({mix + "lerp_fused.weight", {width, 1, 1, 6}, DType::kF32, 0.5f, 0.1f});
    plan.vector(mix + "k_k.weight", width, 0.85f);
    plan.vector(mix + "k_a.weight", width);
    plan.vector(mix + "r_k.weight", width);
    for (const char* const name : {"key", "value", "receptance", "output"}) {
      plan.matrix(mix + name + ".weight", width, width, type);
    }
    plan.tensors.push_back(
        {at + "channel_mix_lerp_k.weight", {width, 1, 1}, DType::kF32, 0.5f, 0.1f});
    plan.matrix(at + "channel_mix_key.weight", width, 4 * width, type);
    plan.matrix(at + "channel_mix_value.weight", 4 * width, width, type);
  }
  return plan;
}

// Numbers of the format for types of tensors.
std::uint32_t gguf_number(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    default:
      return 14;  // Q6_K
  }
}

// Blocks of random levels whose values have about the mean and the deviation asked for.
std::string random_blocks(DType type, float mean, float deviation) {
  std::mt19937 random(1);
  const std::size_t size = bytes_per_block(type), count = (std::size_t{1} << 22) / size;
  std::string blocks(count * size, '\0');
  if (type == DType::kF32 || type == DType::kF16) {
    std::normal_distribution<float> normal(mean, deviation);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = normal(random);
      const std::uint16_t half = f32_to_f16(value);
      std::memcpy(&blocks[i * size], type == DType::kF32 ? static_cast<const void*>(&value) : &half,
                  size);
    }
    return blocks;
  }
  for (char& byte : blocks) byte = static_cast<char>(random());
  for (std::size_t i = 0; i < count; ++i) {
    char* const block = &blocks[i * size];
    const auto put_scale = [&](std::size_t at, float scale) {
      const std::uint16_t half = f32_to_f16(scale);
      std::memcpy(block + at, &half, sizeof half);
    };
    // Levels are uniform: of n of them the deviation is n / sqrt(12).
    if (type == DType::kQ8_0) {
      put_scale(0, deviation / 73.9f);
    } else if (type == DType::kQ4_0) {
      put_scale(0, deviation / 4.61f);
    } else if (type == DType::kQ4_K) {
      // All scales and minima of the groups are 32, in 6 bits each.
      const float scale = deviation / 4.61f / 32;
      put_scale(0, scale);
      put_scale(2, 7.5f * scale);
      std::fill_n(block + 4, 8, static_cast<char>(128 | 32));
      std::fill_n(block + 12, 4, '\0');
    } else {
      std::fill_n(block + 192, 16, '\x40');
      put_scale(208, deviation / 18.5f / 64);
    }
  }
  return blocks;
}

class GgufWriter {
 public:
  explicit GgufWriter(const std::filesystem::path& file) : file_(file), out_(open_to_write(file)) {}

  void write(const GgufPlan& plan, std::string_view shape) {
    out_ << "GGUF";
    put(std::uint32_t{3});
    put(std::uint64_t{plan.tensors.size()});
    put(std::uint64_t{plan.metadata.size() + 3});
    put_entry("general.architecture", plan.architecture);
    put_entry("general.name", std::string(shape));
    put_entry("tokenizer.ggml.model", std::string("none"));
    for (const auto& [key, value] : plan.metadata) put_entry(plan.architecture + "." + key, value);
    std::uint64_t offset = 0;
    for (const GgufTensor& tensor : plan.tensors) {
      put(tensor.name);
      put(static_cast<std::uint32_t>(tensor.shape.size()));
      for (const Size size : tensor.shape) put(static_cast<std::uint64_t>(size));
      put(gguf_number(tensor.type));
      put(offset);
      offset += aligned(bytes_of(tensor));
    }
    pad();
    for (const GgufTensor& tensor : plan.tensors) {
      const std::string& blocks = blocks_of(tensor);
      std::size_t at = 0;  // in the blocks, which are repeated
      for (std::size_t left = bytes_of(tensor); left > 0;) {
        const std::size_t piece = std::min({left, blocks.size() - at, kPieceBytes});
        out_.write(blocks.data() + at, static_cast<std::streamsize>(piece));
        left -= piece;
        at = (at + piece) % blocks.size();
      }
      pad();
    }
    if (!out_.flush()) throw std::runtime_error(file_.string() + ": cannot be written");
  }

 private:
  static constexpr std::size_t kAlignment = 32;
  // The page cache makes large pages of a file that is written in larger pieces. Mapped, they were
  // read up to five times as slowly on a virtual machine.
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

  static std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static std::size_t bytes_of(const GgufTensor& tensor) {
    Size count = 1;
    for (const Size size : tensor.shape) count *= size;
    return static_cast<std::size_t>(count) / values_per_block(tensor.type) *
           bytes_per_block(tensor.type);
  }

  template <typename T>
  requires std::is_arithmetic_v<T>
  void put(T value) { out_.write(reinterpret_cast<const char*>(&value), sizeof value); }
  void put(const std::string& text) {
    put(std::uint64_t{text.size()});
    out_ << text;
  }
  void put_entry(const std::string& key, const GgufValue& value) {
    constexpr std::uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kString = 8, kArray = 9;
    put(key);
    if (const auto* const text = std::get_if<std::string>(&value)) {
      put(kString);
      put(*text);
    } else if (const auto* const number = std::get_if<std::uint32_t>(&value)) {
      put(kUint32);
      put(*number);
    } else if (const auto* const real = std::get_if<float>(&value)) {
      put(kFloat32);
      put(*real);
    } else {
      const auto& list = std::get<std::vector<std::int32_t>>(value);
      put(kArray);
      put(kInt32);
      put(std::uint64_t{list.size()});
      for (const std::int32_t each : list) put(each);
    }
  }
  void pad() {
    const auto at = static_cast<std::size_t>(out_.tellp());
    for (std::size_t i = at; i < aligned(at); ++i) out_.put('\0');
  }

  const std::string& blocks_of(const GgufTensor& tensor) {
    std::string& blocks = blocks_[{tensor.type, tensor.mean, tensor.deviation}];
    if (blocks.empty()) blocks = random_blocks(tensor.type, tensor.mean, tensor.deviation);
    return blocks;
  }

  const std::filesystem::path file_;
  std::ofstream out_;
  std::map<std::tuple<DType, float, float>, std::string> blocks_;
};

// plan(shape) of the shape of this name.
template <typename MakePlan>
auto plan_named(std::string_view name, const MakePlan& plan) {
  for (const QwenShape& of : kQwen) {
    if (name == of.name) return plan(of);
  }
  for (const RwkvShape& of : kRwkv) {
    if (name == of.name) return plan(of);
  }
  refuse("--shape", name, "the name of a published shape, e.g. qwen3.5-0.8b");
}

}  // namespace

std::vector<std::string> checkpoint_shapes() {
  std::vector<std::string> names;
  for (const QwenShape& of : kQwen) names.emplace_back(of.name);
  for (const RwkvShape& of : kRwkv) names.emplace_back(of.name);
  return names;
}

void write_random_checkpoint(std::string_view shape, const std::filesystem::path& directory) {
  const Plan plan = plan_named(shape, [](const auto& of) { return plan_of(of); });
  open_to_write(directory / "config.json") << plan.config.dump(2) << "\n";
  Json header;
  Size end = 0;
  const auto count_of = [](const Tensor& tensor) {
    Size count = 1;
    for (const Size size : tensor.shape) count *= size;
    return count;
  };
  for (const Tensor& tensor : plan.tensors) {
    const Size bytes = 2 * count_of(tensor);
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::filesystem::path file = directory / "model.safetensors";
  std::ofstream out = open_to_write(file);
  const std::uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  // A number of values that no width divides: rows differ.
  const std::vector<std::uint16_t> values = random_values((std::size_t{1} << 22) + 7);
  const std::vector<std::uint16_t> ones(std::size_t{1} << 12, 0x3F80);
  std::size_t at = 0;
  for (const Tensor& tensor : plan.tensors) {
    const std::vector<std::uint16_t>& from = tensor.is_gain ? ones : values;
    if (tensor.is_gain) at = 0;
    for (auto left = static_cast<std::size_t>(count_of(tensor)); left > 0;) {
      const std::size_t count = std::min(left, from.size() - at);
      out.write(reinterpret_cast<const char*>(from.data() + at),
                static_cast<std::streamsize>(2 * count));
      left -= count;
      at = (at + count) % from.size();
    }
    if (tensor.is_gain) at = 0;
  }
  if (!out.flush()) throw std::runtime_error(file.string() + ": cannot be written");
}

void write_random_gguf(std::string_view shape, DType type, const std::filesystem::path& file) {
  const auto plan = plan_named(shape, [&](const auto& of) { return gguf_plan_of(of, type); });
  GgufWriter(file).write(plan, shape);
}

}  // namespace lintel::bench
