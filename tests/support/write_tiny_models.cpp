// SPDX-License-Identifier: Apache-2.0
// write_tiny_models DIR: small models with random weights as DIR/image, DIR/bytes, DIR/text,
// DIR/world, whose tokens have several bytes, DIR/chat, with a template that shows tools, and
// DIR/tokens, with an adapter, thin.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

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
  lintel::testing::write_llama_text_model(directory / "chat");
  std::ifstream golden(std::filesystem::path(LINTEL_TEST_DATA) /
                       "golden/chat/templates/qwen2_5.json");
  std::ofstream(directory / "chat" / "chat_template.jinja")
      << nlohmann::json::parse(golden)["template"].get<std::string>();
  lintel::write_random_adapter(directory / "tokens/adapters/thin",
                               lintel::testing::tiny_config(TinyModel::kTokens), {.rank = 2});
}
