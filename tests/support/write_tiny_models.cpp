// write_tiny_models DIR: small models with random weights as DIR/image, DIR/bytes and DIR/tokens.
#include <filesystem>
#include <iostream>

#include "model/files/random_weights.h"
#include "tests/support/random_model.h"

int main(int argc, char** argv) {
  using lintel::testing::TinyModel;
  if (argc != 2) {
    std::cerr << "Usage: write_tiny_models DIR\n";
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  for (const auto& [name, kind] : {std::pair{"image", TinyModel::kImage},
                                   {"bytes", TinyModel::kBytes},
                                   {"tokens", TinyModel::kTokens}}) {
    lintel::write_random_model(directory / name, lintel::testing::tiny_config(kind), /*seed=*/7);
  }
}
