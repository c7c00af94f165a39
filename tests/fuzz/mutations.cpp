// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/mutations.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <span>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "server/sessions/snapshot.h"
#include "tests/support/random_model.h"

namespace lintel::fuzz {
namespace {

// SplitMix64: the same corpus from every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_;
};

constexpr std::array kAwkward = {"0",
                                 "-1",
                                 "1.5",
                                 "1e999",
                                 "-0",
                                 "4294967296",
                                 "9223372036854775808",
                                 "[]",
                                 "{}",
                                 "null",
                                 "true",
                                 "\"\"",
                                 "1e-320",
                                 "18446744073709551615",
                                 "\"",
                                 "\\u0",
                                 "NaN",
                                 "[[[[",
                                 "{\"\":",
                                 "18446744073709551616"};

std::string repeat_slice(const std::string& text, Random& random) {
  const std::size_t from = random.below(text.size());
  const std::size_t length = 1 + random.below(std::min<std::size_t>(64, text.size() - from));
  const std::string slice = text.substr(from, length);
  std::string out = text;
  return out.insert(random.below(out.size()), slice);
}

// A number, or a string with its quotes, becomes something awkward.
std::string replace_value(const std::string& text, Random& random) {
  std::size_t from = random.below(text.size());
  const auto starts = [&](char c) {
    return c == '"' || std::isdigit(static_cast<unsigned char>(c));
  };
  while (from < text.size() && !starts(text[from])) ++from;
  if (from == text.size()) return text;
  std::size_t end = from + 1;
  if (text[from] == '"') {
    end = text.find('"', end);
    end = end == text.npos ? text.size() : end + 1;
  } else {
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
  }
  std::string out = text;
  return out.replace(from, end - from, kAwkward[random.below(kAwkward.size())]);
}

std::string edit_once(std::string text, Random& random) {
  if (text.empty()) return "{";
  const std::size_t at = random.below(text.size());
  switch (random.below(7)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      return text;
    case 1:
      return text.erase(at, 1 + random.below(16));
    case 2:
      return text.insert(at, 1, static_cast<char>(random.below(256)));
    case 3:
      return repeat_slice(text, random);
    case 4:
      std::swap(text[at], text[random.below(text.size())]);
      return text;
    default:
      return replace_value(text, random);
  }
}

std::string edit(std::string text, Random& random) {
  const std::size_t edits = 1 + random.below(3);
  for (std::size_t i = 0; i < edits; ++i) text = edit_once(std::move(text), random);
  return text;
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

std::uint64_t length_of(const std::string& file) {
  std::uint64_t length = 0;
  for (int i = 0; i < 8; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
  }
  return length;
}

std::string text_with_length(const std::string& text) { return length_bytes(text.size()) + text; }

std::string number_bytes(std::uint32_t number) { return length_bytes(number).substr(0, 4); }

// A key of a GGUF file; `type` is the format's number for the value's type.
std::string gguf_key(const std::string& name, std::uint32_t type, const std::string& value) {
  return text_with_length(name) + number_bytes(type) + value;
}

std::string gguf_tensor(const std::string& name, std::initializer_list<std::uint64_t> dims,
                        std::uint32_t type, std::uint64_t offset) {
  std::string bytes =
      text_with_length(name) + number_bytes(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t d : dims) bytes += length_bytes(d);
  return bytes + number_bytes(type) + length_bytes(offset);
}

// `rest` are keys and tensors; data begins at a multiple of the alignment after them.
std::string gguf_file(std::uint64_t tensors, std::uint64_t keys, const std::string& rest,
                      std::size_t alignment, std::size_t data_bytes) {
  std::string bytes = "GGUF" + number_bytes(3) + length_bytes(tensors) + length_bytes(keys) + rest;
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  return bytes + std::string(data_bytes, '\1');
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<std::string> config_seeds() {
  using testing::tiny_config;
  using testing::TinyModel;
  ModelConfig mixed = tiny_config(TinyModel::kBytes);
  mixed.attention[0] = attention_of("softmax:scale=0.25");
  mixed.attention[1] = attention_of("lsh:rounds=2,bits=8,chunk_size=32");
  return {to_json(tiny_config(TinyModel::kImage)), to_json(tiny_config(TinyModel::kTokens)),
          to_json(mixed)};
}

std::vector<std::string> safetensors_seeds() {
  const std::string three =
      R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],)"
      R"("data_offsets":[0,24]},"a.bias":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
      R"("b":{"dtype":"F16","shape":[1,2,1],"data_offsets":[28,32]}}  )";
  const std::string one = R"({"pe":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  return {length_bytes(three.size()) + three + std::string(32, '\1'),
          length_bytes(one.size()) + one + std::string(16, '\2')};
}

std::vector<std::string> gguf_seeds() {
  const std::string keys =
      gguf_key("general.architecture", 8, text_with_length("rwkv7")) +
      gguf_key("rwkv7.block_count", 4, number_bytes(2)) +
      gguf_key("rwkv7.epsilon", 6, number_bytes(0x3727c5ac)) + gguf_key("tied", 7, "\1") +
      gguf_key("tokenizer.ggml.tokens", 9,
               number_bytes(8) + length_bytes(3) + text_with_length("<s>") + text_with_length("") +
                   text_with_length("\xff")) +
      gguf_key("heads", 9, number_bytes(10) + length_bytes(2) + length_bytes(0) + length_bytes(4));
  const std::string tensors = gguf_tensor("token_embd.weight", {32, 2}, 8, 0) +
                              gguf_tensor("blk.0.attn_norm.weight", {8}, 0, 96) +
                              gguf_tensor("blk.0.ffn_down.weight", {256}, 12, 128);
  return {gguf_file(3, 6, keys + tensors, 32, 128 + 144),
          gguf_file(1, 1,
                    gguf_key("general.alignment", 4, number_bytes(64)) +
                        gguf_tensor("a", {2, 1, 3, 1}, 1, 64),
                    64, 64 + 12),
          gguf_file(0, 1, gguf_key("split.count", 2, std::string("\0\0", 2)), 1, 0)};
}

std::vector<std::string> adapter_config_seeds() {
  std::string names;
  for (int i = 0; i < 200; ++i) names += ", \"layers." + std::to_string(i) + ".linear1\": 2";
  return {R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "rank_pattern": {"linear2": 4)" +
              names + "}}",
          R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "use_dora": false,
 "target_modules": ["query_projection", "linear1"], "rank_pattern": {}, "modules_to_save": null})",
          R"({"peft_type": "LORA", "r": 4, "lora_alpha": 2.5, "use_rslora": true, "revision": null,
 "rank_pattern": {"linear1": 16, "layers.0.attention.query_projection": 2},
 "alpha_pattern": {"predictor": 32}, "init_lora_weights": "gaussian", "lora_dropout": 0.05})"};
}

std::string mutate_text(const std::string& seed, std::uint64_t number) {
  Random random(number);
  return edit(seed, random);
}

std::string mutate_safetensors(const std::string& seed, std::uint64_t number) {
  Random random(number);
  const std::uint64_t length = length_of(seed);
  const std::string header = seed.substr(8, length);
  const std::string data = seed.substr(8 + length);
  switch (random.below(8)) {
    case 0:  // truncated or extended
      return random.below(2) == 0 ? seed.substr(0, random.below(seed.size()))
                                  : seed + std::string(1 + random.below(40), '\0');
    case 1: {  // another length
      const std::uint64_t lengths[] = {0,
                                       1,
                                       length - 1,
                                       length + 1,
                                       seed.size(),
                                       100000000,
                                       std::uint64_t{1} << 63,
                                       ~std::uint64_t{0}};
      return length_bytes(lengths[random.below(8)]) + header + data;
    }
    case 2:  // anything anywhere
      return edit(seed, random);
    case 3:  // the length no longer fits
      return length_bytes(length) + edit(header, random) + data;
    default: {
      const std::string edited = edit(header, random);
      return length_bytes(edited.size()) + edited + data;
    }
  }
}

std::string mutate_gguf(const std::string& seed, std::uint64_t number) {
  Random random(number);
  switch (random.below(6)) {
    case 0:  // truncated or extended
      return random.below(2) == 0 ? seed.substr(0, random.below(seed.size()))
                                  : seed + std::string(1 + random.below(40), '\0');
    case 1:  // anything anywhere
      return edit(seed, random);
    default: {
      const std::uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       8,
                                       9,
                                       31,
                                       seed.size(),
                                       65'536,
                                       std::uint64_t{1} << 31,
                                       std::uint64_t{1} << 40,
                                       std::uint64_t{1} << 61,
                                       std::uint64_t{1} << 63,
                                       ~std::uint64_t{31},
                                       ~std::uint64_t{0}};
      std::string bytes = seed;
      const std::size_t edits = 1 + random.below(2);
      for (std::size_t i = 0; i < edits; ++i) {
        const std::size_t size = random.below(2) == 0 ? 4 : 8;
        const std::string with = length_bytes(numbers[random.below(std::size(numbers))]);
        bytes.replace(random.below(bytes.size() - size), size, with, 0, size);
      }
      return bytes;
    }
  }
}

std::vector<std::string> snapshot_seeds() {
  SnapshotOf whole;
  whole.image.model = "m";
  whole.image.adapter = "a";
  whole.image.max_tokens = 20;
  whole.image.base = 2;
  whole.image.position = 6;
  whole.image.tokens = {3, 200, 7, 300};
  whole.image.marks = {{2, TokenSource::kPrompt}, {4, TokenSource::kSampled}};
  whole.image.state = std::vector<std::byte>(30, std::byte{5});
  whole.image.state_position = 6;
  whole.model_fingerprint = whole.numerics = std::string(64, 'f');
  whole.attention = "linear";
  whole.weight_type = "f32";
  whole.lintel_version = "0.2.0";
  SnapshotOf without_state = whole;
  without_state.image.state.clear();
  without_state.image.base = without_state.image.state_position = 0;
  without_state.image.tokens = {1, 2, 3, 4, 5, 6};
  SnapshotOf without_history = whole;
  without_history.image.tokens.clear();
  without_history.image.marks.clear();
  return {text_of(write_snapshot(whole)), text_of(write_snapshot(without_state)),
          text_of(write_snapshot(without_history))};
}

std::string mutate_snapshot(const std::string& seed, std::uint64_t number) {
  Random random(number);
  const std::size_t kind = random.below(8);
  if (kind == 0) return edit(seed, random);
  if (kind == 1) return seed.substr(0, random.below(seed.size()));
  SnapshotPreamble preamble = read_snapshot_preamble(std::as_bytes(std::span(seed)));
  std::string header = seed.substr(kSnapshotPreambleBytes, preamble.header_bytes);
  std::string body = seed.substr(kSnapshotPreambleBytes + preamble.header_bytes);
  (kind < 6 ? header : body) = edit(kind < 6 ? header : body, random);
  header.resize(snapshot_padded(header.size()), ' ');
  if (random.below(4) != 0) body.resize(snapshot_padded(body.size()));
  preamble.header_bytes = static_cast<std::uint32_t>(header.size());
  preamble.body_bytes = body.size();
  const std::string rest = header + body;
  preamble.checksum = digest_of(std::as_bytes(std::span(rest)));
  return text_of(preamble.encode()) + rest;
}

}  // namespace lintel::fuzz
