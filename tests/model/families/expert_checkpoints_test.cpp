// SPDX-License-Identifier: Apache-2.0
// Checkpoints of Qwen3-Next and of Qwen3.5's mixtures: keys that are refused, layers without
// experts, and both forms of the experts' tensors.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/core/errors.h"
#include "model/fastest_type.h"
#include "model/formats/safetensors.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

fs::path expert_golden(const std::string& name) {
  return fs::path(LINTEL_TEST_DATA) / "golden" / "families" / name;
}

// A copy of a golden directory that tests change.
class ExpertCheckpoint {
 public:
  explicit ExpertCheckpoint(const std::string& name) {
    for (const fs::directory_entry& file : fs::directory_iterator(expert_golden(name))) {
      if (file.path().filename() != "golden.safetensors") {
        fs::copy(file.path(), directory_.path() / file.path().filename());
      }
    }
    std::ifstream in(directory_.path() / "config.json");
    config_ = json::parse(in);
  }

  const fs::path& path() const { return directory_.path(); }
  json& config() { return config_; }
  json& text() { return config_.contains("text_config") ? config_["text_config"] : config_; }
  void write() const { std::ofstream(path() / "config.json") << config_.dump(); }

  std::string error() const {
    write();
    try {
      Transformer::load(path(), {});
    } catch (const ModelError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  testing::TemporaryDirectory directory_;
  json config_;
};

struct RefusedKey {
  std::string name;  // of the golden
  std::string key;   // of the text; with a null value: removed
  json value;
  std::string error;
};

TEST_CASE("experts in checkpoints: keys are refused by name") {
  const RefusedKey which = GENERATE(
      RefusedKey{"qwen3_next", "num_experts_per_tok", 9,
                 "\"num_experts_per_tok\": found 9, expected a whole number from 1 to 8"},
      RefusedKey{"qwen3_next", "num_experts_per_tok", nullptr,
                 "\"num_experts_per_tok\": found nothing, expected at most num_experts, 8"},
      RefusedKey{"qwen3_next", "num_experts", -1, "\"num_experts\": found -1"},
      RefusedKey{"qwen3_next", "norm_topk_prob", 1, "\"norm_topk_prob\": found 1"},
      RefusedKey{"qwen3_next", "decoder_sparse_step", 0, "\"decoder_sparse_step\": found 0"},
      RefusedKey{"qwen3_next", "mlp_only_layers", json::array({4}),
                 "\"mlp_only_layers\": found [4], expected a list of layers, 0 to 3"},
      RefusedKey{"qwen3_next", "mlp_only_layers", 1, "expected a list of layers, 0 to 3"},
      RefusedKey{"qwen3_next", "moe_intermediate_size", 0, "\"moe_intermediate_size\": found 0"},
      RefusedKey{"qwen3_next", "moe_intermediate_size", 13,
                 "experts.0.gate_proj.weight\": found shape [12, 24], expected [13, 24]"},
      RefusedKey{"qwen3_next", "linear_num_key_heads", 4,
                 "in_proj_qkvz.weight\": found shape [96, 24], expected [128, 24]"},
      RefusedKey{"qwen3_next", "n_group", 2, "\"n_group\": found 2, expected no such key"},
      RefusedKey{"qwen3_next", "text_config", json::object({{"vocab_size", 80}}),
                 "expected no such key in a model of type qwen3_next"},
      RefusedKey{"qwen3_5_moe", "num_experts", 0,
                 "\"text_config.num_experts\": found 0, expected a whole number from 1 to 4096"},
      RefusedKey{"qwen3_5_moe", "norm_topk_prob", false, "\"text_config.norm_topk_prob\""},
      RefusedKey{"qwen3_5_moe", "decoder_sparse_step", 2, "\"text_config.decoder_sparse_step\""},
      RefusedKey{"qwen3_5_moe", "mlp_only_layers", json::array({1}),
                 "\"text_config.mlp_only_layers\""},
      RefusedKey{"qwen3_5_moe", "model_type", "qwen3_5_text",
                 "\"text_config.model_type\": found \"qwen3_5_text\""},
      RefusedKey{"qwen3_5_moe", "moe_intermediate_size", 13,
                 "experts.gate_up_proj\": found shape [8, 24, 24], expected [8, 26, 24]"},
      RefusedKey{"qwen3_5_moe", "num_experts", 7,
                 "mlp.gate.weight\": found shape [8, 24], expected [7, 24]"},
      RefusedKey{"qwen3_5", "num_experts", 8, "\"num_experts\": found 8, expected no such key"});
  CAPTURE(which.name, which.key, which.value.dump());
  ExpertCheckpoint checkpoint(which.name);
  if (which.value.is_null()) {
    checkpoint.text().erase(which.key);
  } else {
    checkpoint.text()[which.key] = which.value;
  }
  CHECK_THAT(checkpoint.error(), Contains(which.error));
}

TEST_CASE("experts in checkpoints: keys without an effect are accepted") {
  ExpertCheckpoint next("qwen3_next");
  next.text().erase("intermediate_size");
  next.text()["use_sliding_window"] = false;
  CHECK(next.error() == "accepted");
  ExpertCheckpoint moe("qwen3_5_moe");
  moe.text()["norm_topk_prob"] = true;
  moe.text()["decoder_sparse_step"] = 1;
  moe.text()["mlp_only_layers"] = json::array();
  CHECK(moe.error() == "accepted");
}

TEST_CASE("experts in checkpoints: layers without experts have a dense mlp") {
  struct Case {
    std::string key;
    json value;
    int first_dense;
  };
  const auto which = GENERATE(Case{"mlp_only_layers", json::array({3, 1}), 1},
                              Case{"decoder_sparse_step", 2, 0}, Case{"num_experts", 0, 0});
  ExpertCheckpoint checkpoint("qwen3_next");
  checkpoint.text()[which.key] = which.value;
  CAPTURE(which.key);
  CHECK_THAT(checkpoint.error(), Contains("\"model.layers." + std::to_string(which.first_dense) +
                                          ".mlp.gate_proj.weight\": missing"));
  checkpoint.text().erase("intermediate_size");
  CHECK_THAT(checkpoint.error(), Contains("\"intermediate_size\": found nothing"));
}

struct TensorValues {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using TensorMap = std::map<std::string, TensorValues>;

// Takes all tensors out of the directory, whose files are removed.
TensorMap take_tensors(const fs::path& directory) {
  TensorMap all;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename() != "config.json") files.push_back(entry.path());
  }
  for (const fs::path& path : files) {
    if (path.extension() == ".safetensors") {
      const SafetensorsFile file(path);
      for (const auto& [name, entry] : file.tensors()) {
        all[name] = {entry.shape, file.read_f32(name)};
      }
    }
    fs::remove(path);
  }
  return all;
}

void write_tensors(const fs::path& directory, const TensorMap& all) {
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : all) tensors.push_back({name, tensor.shape, tensor.values});
  write_safetensors(directory / "model.safetensors", tensors);
}

// [N, 2 FM, E] and [N, E, FM] become tensors of each expert.
void separate_experts(TensorMap& all, const std::string& prefix) {
  const auto cut = [&](const std::string& from, const std::vector<std::string>& to) {
    const TensorValues whole = all.extract(prefix + from).mapped();
    const std::int64_t rows = whole.shape[1] / static_cast<std::int64_t>(to.size());
    auto next = whole.values.begin();
    for (std::int64_t e = 0; e < whole.shape[0]; ++e) {
      for (const std::string& name : to) {
        const auto end = next + rows * whole.shape[2];
        all[prefix + std::to_string(e) + "." + name + ".weight"] = {{rows, whole.shape[2]},
                                                                    {next, end}};
        next = end;
      }
    }
  };
  cut("gate_up_proj", {"gate_proj", "up_proj"});
  cut("down_proj", {"down_proj"});
}

// The other way.
void join_experts(TensorMap& all, const std::string& prefix, std::int64_t experts) {
  const auto join = [&](const std::vector<std::string>& from, const std::string& to) {
    TensorValues whole;
    for (std::int64_t e = 0; e < experts; ++e) {
      for (const std::string& name : from) {
        const TensorValues part =
            all.extract(prefix + std::to_string(e) + "." + name + ".weight").mapped();
        whole.shape = {experts, part.shape[0] * static_cast<std::int64_t>(from.size()),
                       part.shape[1]};
        whole.values.insert(whole.values.end(), part.values.begin(), part.values.end());
      }
    }
    all[prefix + to] = whole;
  };
  join({"gate_proj", "up_proj"}, "gate_up_proj");
  join({"down_proj"}, "down_proj");
}

std::vector<float> checkpoint_outputs(const Transformer& model) {
  Workspace workspace = model.new_workspace(16);
  SequenceState sequence = model.new_sequence();
  std::vector<BatchRow> rows;
  for (std::int32_t t = 0; t < 16; ++t) rows.push_back({(t * 7 + 3) % 80, &sequence, true});
  const MatrixView<const float> outputs = model.step(rows, workspace);
  std::vector<float> values;
  for (std::size_t r = 0; r < outputs.rows(); ++r) {
    values.insert(values.end(), outputs.row(r).begin(), outputs.row(r).end());
  }
  return values;
}

TEST_CASE("experts in checkpoints: tensors of each expert and of all have the same bits") {
  const std::string name = GENERATE("qwen3_next", "qwen3_5_moe");
  CAPTURE(name);
  ExpertCheckpoint checkpoint(name);
  const std::vector<float> expected = checkpoint_outputs(*Transformer::load(checkpoint.path(), {}));
  TensorMap all = take_tensors(checkpoint.path());
  const bool is_joined = name == "qwen3_5_moe";
  const std::string model = is_joined ? "model.language_model." : "model.";
  for (int layer = 0; layer < 4; ++layer) {
    const std::string prefix = model + "layers." + std::to_string(layer) + ".mlp.experts.";
    if (is_joined) {
      separate_experts(all, prefix);
    } else {
      join_experts(all, prefix, 8);
    }
  }
  write_tensors(checkpoint.path(), all);
  const std::vector<float> found = checkpoint_outputs(*Transformer::load(checkpoint.path(), {}));
  REQUIRE(found.size() == expected.size());
  CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
  // One form alone.
  all[model + "layers.1.mlp.experts." + (is_joined ? "gate_up_proj" : "0.up_proj.weight")] = {
      {1}, {0.0f}};
  write_tensors(checkpoint.path(), all);
  CHECK_THAT(checkpoint.error(), Contains("surplus"));
}

TEST_CASE("experts in checkpoints: the size known before a load bounds that of the weights") {
  const std::string name = GENERATE("qwen3_next", "qwen3_5_moe");
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  CAPTURE(name, to_string(type));
  const Transformer::Options options{.weight_type = type};
  const ModelFiles files(expert_golden(name));
  const std::size_t bound = measure_model(files, options).resident_bytes;
  const std::size_t found = Transformer::load(files, options)->weight_bytes();
  CAPTURE(bound, found);
  CHECK(found <= bound);
}

}  // namespace
}  // namespace lintel
