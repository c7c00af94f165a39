// SPDX-License-Identifier: Apache-2.0
// A random model whose directory has a tokenizer: RWKV's World vocabulary of the goldens.
#pragma once

#include <filesystem>
#include <memory>

#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// Writes the model: `vocab_size` tokens, of which the vocabulary has those up to 288.
inline void write_text_model(const std::filesystem::path& directory, int vocab_size = 300) {
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.vocab_size = vocab_size;
  write_random_model(directory, config, /*seed=*/3);
  const char* const vocabulary = "rwkv_vocab_v20230424.txt";
  std::filesystem::copy_file(
      std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "tokenizers" / "world" / vocabulary,
      directory / vocabulary);
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

}  // namespace lintel::testing
