// SPDX-License-Identifier: Apache-2.0
// Checkpoints with random weights, of the shapes of published models of 0.1 to 2 billion
// parameters.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/dtype.h"

namespace lintel::bench {

std::vector<std::string> checkpoint_shapes();  // their names: "qwen3.5-0.8b"

// The writers throw cli::UsageError for an unknown shape, and std::runtime_error naming the file
// that cannot be written.

// A Hugging Face directory of BF16 weights, in `directory`, which exists.
void write_random_checkpoint(std::string_view shape, const std::filesystem::path& directory);

// The same shape as a GGUF without a tokenizer, as llama.cpp loads it: matrices in blocks of
// `type`, the head and an embedding tied to it in Q6_K unless type is Q8_0, as llama-quantize
// chooses. REQUIRES: type is kQ8_0, kQ4_0 or kQ4_K.
void write_random_gguf(std::string_view shape, DType type, const std::filesystem::path& file);

}  // namespace lintel::bench
