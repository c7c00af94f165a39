// SPDX-License-Identifier: Apache-2.0
// A model that says a given text after any prompt: what a grammar masks of it shows at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/transformer.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

inline const std::vector<std::string> kScriptedTags = {
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",          "<tool_call>",      "</tool_call>",
    "<think>",       "</think>",     "<|tool_call_start|>", "<|tool_call_end|>"};

// The letters with which byte-level BPE spells bytes.
inline std::string byte_letter(unsigned char byte) {
  const auto is_shown = [](int b) {
    return (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
  };
  int code_point = byte;
  if (!is_shown(byte)) {
    code_point = 256;
    for (int b = 0; b < byte; ++b) code_point += is_shown(b) ? 0 : 1;
  }
  if (code_point < 128) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 63))};
}

// A qwen3_5_text checkpoint of one silent layer, whose next token is a function of the last one:
// after a line feed `pieces` in their order, then the end of the text. Each piece is a token, and
// they differ from one another; tags of chats and calls, and each byte, are tokens of their own.
// context: positions.
inline std::shared_ptr<const Transformer> scripted_model(const std::vector<std::string>& pieces,
                                                         int context = 4096) {
  using Json = nlohmann::ordered_json;
  const TemporaryDirectory directory;
  const auto spelt = [](const std::string& text) {
    std::string letters;
    for (const char byte : text) letters += byte_letter(static_cast<unsigned char>(byte));
    return letters;
  };
  Json vocabulary = Json::object();
  std::map<std::string, int> ids;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[byte_letter(static_cast<unsigned char>(byte))] = byte;
    ids[std::string(1, static_cast<char>(byte))] = byte;
  }
  const auto add = [&](const std::string& text) {
    return ids.emplace(text, static_cast<int>(ids.size())).second;
  };
  const auto is_tag = [](const std::string& text) {
    return std::ranges::find(kScriptedTags, text) != kScriptedTags.end();
  };
  for (const std::string& piece : pieces) {
    if (!is_tag(piece) && add(piece)) vocabulary[spelt(piece)] = ids[piece];
  }
  Json added = Json::array();
  for (const std::string& tag : kScriptedTags) {
    add(tag);
    const bool is_special = tag == "<|endoftext|>" || tag.starts_with("<|im_");
    added.push_back({{"id", ids[tag]},
                     {"content", tag},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", is_special}});
  }
  std::vector<int> chain;
  for (const std::string& piece : pieces) chain.push_back(ids[piece]);
  chain.push_back(ids["<|im_end|>"]);
  const std::size_t rows = (ids.size() + 15) / 16 * 16;
  const std::size_t width = std::max<std::size_t>(64, (chain.size() + 16) / 16 * 16);

  const Json config = {
      {"architectures", {"Qwen3_5ForCausalLM"}},
      {"model_type", "qwen3_5_text"},
      {"dtype", "float32"},
      {"vocab_size", rows},
      {"hidden_size", width},
      {"intermediate_size", 32},
      {"num_hidden_layers", 1},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 1},
      {"head_dim", 16},
      {"linear_num_key_heads", 1},
      {"linear_num_value_heads", 2},
      {"linear_key_head_dim", 16},
      {"linear_value_head_dim", 16},
      {"linear_conv_kernel_dim", 4},
      {"full_attention_interval", 4},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", context},
      {"tie_word_embeddings", false},
      {"eos_token_id", ids["<|im_end|>"]},
      {"rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 10'000'000}, {"partial_rotary_factor", 0.25}}}};

  Json header = Json::object();
  std::string data;
  const auto write = [&](const std::string& name, const std::vector<std::size_t>& shape,
                         const std::vector<float>& values) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  };
  std::mt19937 random(1);
  // Noise for layers that add nothing, as their last products are zero.
  const auto write_noise = [&](const std::string& name, const std::vector<std::size_t>& shape) {
    std::size_t size = 1;
    for (const std::size_t extent : shape) size *= extent;
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(random() % 1000) / 10'000.0f - 0.05f;
    write("model.layers.0." + name, shape, values);
  };
  const auto write_zeros = [&](const std::string& name, const std::vector<std::size_t>& shape) {
    std::size_t size = 1;
    for (const std::size_t extent : shape) size *= extent;
    write(name, shape, std::vector<float>(size));
  };
  const std::string at = "model.layers.0.";
  write_zeros(at + "input_layernorm.weight", {width});
  write_zeros(at + "post_attention_layernorm.weight", {width});
  write_noise("mlp.gate_proj.weight", {32, width});
  write_noise("mlp.up_proj.weight", {32, width});
  write_zeros(at + "mlp.down_proj.weight", {width, 32});
  write_noise("linear_attn.in_proj_qkv.weight", {64, width});
  write_noise("linear_attn.in_proj_z.weight", {32, width});
  write_noise("linear_attn.in_proj_b.weight", {2, width});
  write_noise("linear_attn.in_proj_a.weight", {2, width});
  write_noise("linear_attn.conv1d.weight", {64, 1, 4});
  write_zeros(at + "linear_attn.A_log", {2});
  write_zeros(at + "linear_attn.dt_bias", {2});
  write(at + "linear_attn.norm.weight", {16}, std::vector<float>(16, 1.0f));
  write_zeros(at + "linear_attn.out_proj.weight", {width, 32});
  write_zeros("model.norm.weight", {width});
  std::vector<float> embedding(rows * width), output(rows * width);
  const auto cell = [&](int row, std::size_t column) {
    return static_cast<std::size_t>(row) * width + column;
  };
  embedding[cell('\n', 0)] = 1.0f;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    output[cell(chain[i], i)] = 4.0f;
    if (i + 1 < chain.size()) embedding[cell(chain[i], i + 1)] = 1.0f;
  }
  write("model.embed_tokens.weight", {rows, width}, embedding);
  write("lm_head.weight", {rows, width}, output);

  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t size = text.size();
  std::ofstream(directory.path() / "model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), sizeof(size)) << text << data;
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", level},
                          {"post_processor", nullptr},
                          {"decoder", level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", false},
                            {"vocab", vocabulary},
                            {"merges", Json::array()}}}};
  std::ofstream(directory.path() / "config.json") << config.dump();
  std::ofstream(directory.path() / "tokenizer.json") << tokenizer.dump();
  std::ofstream(directory.path() / "tokenizer_config.json") << R"({"eos_token": "<|im_end|>"})";
  return Transformer::load(directory.path(), {});
}

}  // namespace lintel::testing
