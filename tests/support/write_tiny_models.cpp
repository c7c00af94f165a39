// SPDX-License-Identifier: Apache-2.0
// write_tiny_models DIR: small models with random weights as DIR/image, DIR/bytes, DIR/text,
// DIR/world, whose tokens have several bytes, and DIR/tokens, with an adapter, thin.
#include <filesystem>
#include <iostream>

#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "tests/support/random_model.h"
#include "tests/support/text_model.h"

int main(int argc, char** argv) {
  using lintel::testing::TinyModel;
  if (argc != 2 || argv[1][0] == '-') {  // no folder named --help
    std::cerr << "Usage: write_tiny_models DIR\n";
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  for (const auto& [name, kind] : {std::pair{"image", TinyModel::kImage},
                                   {"bytes", TinyModel::kBytes},
                                   {"text", TinyModel::kText},
                                   {"tokens", TinyModel::kTokens}}) {
    lintel::write_random_model(directory / name, lintel::testing::tiny_config(kind), /*seed=*/7);
  }
  lintel::testing::write_text_model(directory / "world");
  lintel::write_random_adapter(directory / "tokens/adapters/thin",
                               lintel::testing::tiny_config(TinyModel::kTokens), {.rank = 2});
}
