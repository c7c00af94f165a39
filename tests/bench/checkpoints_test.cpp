// SPDX-License-Identifier: Apache-2.0
// Checkpoints with random weights, as their formats have them.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "bench/checkpoints.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/temporary_directory.h"

namespace lintel::bench {
namespace {

// Outputs after one token.
std::vector<float> outputs_of(const Transformer& model) {
  Workspace workspace = model.new_workspace(1);
  SequenceState sequence = model.new_sequence();
  const BatchRow row{.token = 1, .sequence = &sequence, .wants_output = true};
  const auto outputs = model.step({&row, 1}, workspace).row(0);
  return {outputs.begin(), outputs.end()};
}

}  // namespace

TEST_CASE("a random GGUF has the shape of the checkpoint and loads") {
  const TemporaryDirectory directory;
  write_random_checkpoint("rwkv7-0.1b", directory.path());
  const lintel::ModelFiles checkpoint(directory.path());
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K}) {
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

}  // namespace lintel::bench
