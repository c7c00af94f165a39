// SPDX-License-Identifier: Apache-2.0
// Checkpoints with random weights, as their formats have them.
#include "bench/checkpoints.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "bench/llama_peer.h"
#include "client/cli/console.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::bench {
namespace {

using testing::TemporaryDirectory;

// Outputs after one token.
std::vector<float> outputs_of(const Transformer& model) {
  Workspace workspace = model.new_workspace(1);
  SequenceState sequence = model.new_sequence();
  const BatchRow row{.token = 1, .sequence = &sequence, .wants_output = true};
  const auto outputs = model.step({&row, 1}, workspace).row(0);
  return {outputs.begin(), outputs.end()};
}

}  // namespace

TEST_CASE("a random checkpoint loads, and a random GGUF has its shape and loads") {
  const TemporaryDirectory directory;
  write_random_checkpoint("rwkv7-0.1b", directory.path());
  const lintel::ModelFiles checkpoint(directory.path());
  // 85 million weights in 4.5 bits, the head's 50 million in 8, and the embedding's rows in bf16.
  CHECK(static_cast<double>(
            Transformer::load(checkpoint, {.weight_type = WeightType::kInt4})->weight_bytes()) ==
        Approx(212e6).epsilon(0.05));
  const std::vector<DType> types = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K};
  for (std::size_t i = 0; i < types.size(); ++i) {
    // One of them, drawn, but at night.
    if (!testing::runs_every_case() && i != testing::case_seed() % types.size()) continue;
    const DType type = types[i];
    CAPTURE(to_string(type));
    const std::filesystem::path file = directory.path() / "model.gguf";
    write_random_gguf("rwkv7-0.1b", type, file);
    const lintel::ModelFiles files(file);
    CHECK(files.config().vocab_size == checkpoint.config().vocab_size);
    CHECK(files.weights().find("blk.11.channel_mix_key.weight")->type == type);
    CHECK(files.weights().find("output.weight")->type ==
          (type == DType::kQ8_0 ? type : DType::kQ6_K));
    const auto model = Transformer::load(files, {.weight_type = WeightType::kBlocks});
    double squares = 0;
    for (const float output : outputs_of(*model)) squares += output * output;
    CHECK(std::isfinite(squares));
    CHECK(squares > 0);
  }
}

TEST_CASE("llama.cpp of another version, or none, is refused by name") {
  const TemporaryDirectory root;
  const std::string refused = root.path().string() + ": no llama.cpp v0.5.0";
  CHECK_THROWS_WITH(LlamaPeer(root.path(), "model.gguf"), Catch::Matchers::Contains(refused));
  const auto libraries = root.path() / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64";
  std::filesystem::create_directories(libraries);
  std::ofstream(libraries / "_nlcBuildMetadata.json") << R"({"release": "v0.4.0"})";
  CHECK_THROWS_WITH(LlamaPeer(root.path(), "model.gguf"), Catch::Matchers::Contains(refused));
  // A build of the right version without libraries: the process says so and ends.
  std::ofstream(libraries / "_nlcBuildMetadata.json") << R"({"release": "v0.5.0"})";
  CHECK_THROWS_AS(LlamaPeer(root.path(), "model.gguf"), cli::Failure);
}

}  // namespace lintel::bench
