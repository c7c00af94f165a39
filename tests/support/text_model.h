// SPDX-License-Identifier: Apache-2.0
// Random models whose directories have tokenizers of the goldens: RWKV's World vocabulary, and
// Llama 3's, which begins a text with a token of its own.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "model/model_files.h"
#include "model/tokenizer/tokenizer.h"
#include "model/transformer.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// Writes the model with `file` of this tokenizer.
inline void write_text_model(const std::filesystem::path& directory, const std::string& tokenizer,
                             const std::string& file, int vocab_size) {
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.vocab_size = vocab_size;
  write_random_model(directory, config, /*seed=*/3);
  std::filesystem::copy_file(
      std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "tokenizers" / tokenizer / file,
      directory / file);
}

// `vocab_size` tokens, of which the vocabulary has those up to 288.
inline void write_text_model(const std::filesystem::path& directory, int vocab_size = 300) {
  write_text_model(directory, "world", "rwkv_vocab_v20230424.txt", vocab_size);
}

// Loaded once a process.
inline std::shared_ptr<const Transformer> text_model() {
  static const std::shared_ptr<const Transformer> model = [] {
    const TemporaryDirectory directory;
    write_text_model(directory.path());
    return std::shared_ptr<const Transformer>(Transformer::load(directory.path(), {}));
  }();
  return model;
}

constexpr std::int32_t kLlamaBegin = 1459, kLlamaEnd = 1460;

// Writes a model with Llama 3's tokenizer.
inline void write_llama_text_model(const std::filesystem::path& directory) {
  write_text_model(directory, "llama3", "tokenizer.json", /*vocab_size=*/1464);
  std::ofstream(directory / "tokenizer_config.json") << R"({"eos_token": "<|end_of_text|>"})";
}

inline std::shared_ptr<const Transformer> llama_text_model() {
  static const std::shared_ptr<const Transformer> model = [] {
    const TemporaryDirectory directory;
    write_llama_text_model(directory.path());
    return std::shared_ptr<const Transformer>(Transformer::load(directory.path(), {}));
  }();
  return model;
}

}  // namespace lintel::testing
