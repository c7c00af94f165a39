// SPDX-License-Identifier: Apache-2.0
// LoRA adapters of families: their outputs are those of a checkpoint with merged weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "model/formats/safetensors.h"
#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "model/ops/block_formats.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using SharedAdapter = std::shared_ptr<const Adapter>;

std::filesystem::path family(const std::string& name) {
  return std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "families" / name;
}

SharedAdapter random_adapter(const std::filesystem::path& directory, const Transformer& model,
                             const RandomAdapter& options) {
  write_random_adapter(directory, model.modules(), options);
  return Adapter::load(AdapterFiles(directory, model.modules()));
}

// A copy of a checkpoint with W + scaling B A for each module.
void write_merged(const std::filesystem::path& from, const AdapterFiles& adapter,
                  const std::filesystem::path& to) {
  std::filesystem::copy_file(from / "config.json", to / "config.json");
  const ModelFiles files(from);
  const WeightSource& source = files.checkpoint().tensors;
  std::list<std::vector<float>> values;
  std::map<std::string, std::vector<float>*> by_name;
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& tensor : source.tensors()) {
    std::vector<std::byte> bytes(tensor.num_bytes());
    source.read(tensor, 0, bytes);
    std::vector<float>& of = values.emplace_back(static_cast<std::size_t>(tensor.num_elements()));
    dequantize(tensor.type, bytes, of);
    by_name[tensor.name] = &of;
    tensors.push_back({.name = tensor.name, .shape = tensor.shape, .values = of});
  }
  for (const AdaptedModule& adapted : adapter.modules()) {
    const std::vector<float> a = adapter.tensors().read_f32(adapted.a->name);
    const std::vector<float> b = adapter.tensors().read_f32(adapted.b->name);
    std::vector<float>& weight = *by_name.at(adapted.module.name + ".weight");
    for (std::size_t o = 0; o < adapted.module.out; ++o) {
      for (std::size_t i = 0; i < adapted.module.in; ++i) {
        double sum = 0.0;
        for (std::size_t j = 0; j < adapted.rank; ++j) {
          sum += double{b[o * adapted.rank + j]} * a[j * adapted.module.in + i];
        }
        float& w = weight[o * adapted.module.in + i];
        w = static_cast<float>(w + adapted.scaling * sum);
      }
    }
  }
  write_safetensors(to / "model.safetensors", tensors);
}

constexpr std::int32_t kTokens = 24;

std::int32_t token_of(const Transformer& model, std::size_t sequence, std::int32_t t) {
  return static_cast<std::int32_t>((sequence * 7 + static_cast<std::size_t>(t) * 5 + 1) %
                                   static_cast<std::size_t>(model.config().vocab_size));
}

// Every output of a sequence for each adapter, in one batch of slices of `slice` tokens.
std::vector<std::vector<float>> run(const Transformer& model,
                                    const std::vector<SharedAdapter>& adapters,
                                    std::int32_t slice) {
  std::vector<SequenceState> sequences;
  for (const SharedAdapter& adapter : adapters) sequences.push_back(model.new_sequence(adapter));
  std::vector<std::vector<float>> all(adapters.size());
  Workspace workspace = model.new_workspace(adapters.size() * static_cast<std::size_t>(slice));
  for (std::int32_t t = 0; t < kTokens; t += slice) {
    std::vector<BatchRow> rows;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::int32_t i = t; i < t + slice; ++i) {
        // Not of every row: the last layer moves those that are wanted.
        rows.push_back({token_of(model, s, i), &sequences[s], i % 3 != 1});
      }
    }
    const MatrixView<const float> outputs = model.step(rows, workspace);
    std::size_t row = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (!rows[r].wants_output) continue;
      const std::span<const float> output = outputs.row(row++);
      std::vector<float>& of = all[r / static_cast<std::size_t>(slice)];
      of.insert(of.end(), output.begin(), output.end());
    }
  }
  return all;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

bool have_equal_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

TEST_CASE("families: an adapter of every module gives the outputs of merged weights", "[rows]") {
  const std::string name =
      GENERATE("qwen3_5", "qwen3_5-multimodal", "qwen3_5_moe", "rwkv7-official", "rwkv7", "gla",
               "retnet", "delta_net", "gated-deltanet", "gated-deltanet-hybrid", "linear-attn");
  CAPTURE(name);
  const auto model = Transformer::load(family(name), {});
  REQUIRE(!model->modules().empty());
  const testing::TemporaryDirectory directory;
  const bool is_tied = name == "qwen3_5";  // its merged head would be another embedding
  write_random_adapter(directory.path() / "adapter", model->modules(),
                       {.rank = 3, .alpha = 2.0, .adapts = [&](const std::string& module) {
                          return !is_tied || module != "lm_head";
                        }});
  const AdapterFiles files(directory.path() / "adapter", model->modules());
  REQUIRE(files.modules().size() + (is_tied ? 1 : 0) == model->modules().size());
  std::filesystem::create_directory(directory.path() / "merged");
  write_merged(family(name), files, directory.path() / "merged");
  const auto merged = Transformer::load(directory.path() / "merged", {});

  const auto adapted = run(*model, {Adapter::load(files)}, 4).front();
  const auto expected = run(*merged, {nullptr}, 4).front();
  const auto base = run(*model, {nullptr}, 4).front();
  CHECK(largest_difference(adapted, base) > 0.02);
  const double tolerance = name.starts_with("qwen") ? 2e-3 : 2e-4;
  CHECK(largest_difference(adapted, expected) <= tolerance);
}

TEST_CASE("families: rows with adapters have the same bits in any batch", "[rows]") {
  const std::string name =
      GENERATE("qwen3_5", "qwen3_5_moe", "rwkv7-official", "gla", "gated-deltanet-hybrid");
  const WeightType type = GENERATE(from_range(kWeightTypes));
  CAPTURE(name, to_string(type));
  const auto model = Transformer::load(family(name), {.weight_type = type});
  const testing::TemporaryDirectory directory;
  const SharedAdapter first =
      random_adapter(directory.path() / "1", *model, {.rank = 3, .seed = 1});
  const SharedAdapter second =
      random_adapter(directory.path() / "2", *model, {.rank = 9, .seed = 2});
  const std::vector<SharedAdapter> adapters = {first, nullptr, second, first, nullptr};
  const auto together = run(*model, adapters, 6);
  for (std::size_t s = 0; s < adapters.size(); ++s) {
    // The same place, so that the tokens are the same; the others have no adapter.
    std::vector<SharedAdapter> only(adapters.size());
    only[s] = adapters[s];
    CAPTURE(s);
    CHECK(have_equal_bits(run(*model, only, 1)[s], together[s]));
  }
  CHECK(largest_difference(together[0], run(*model, {nullptr}, 6).front()) > 0.02);
}

TEST_CASE("families: an adapter of the text alone fits a directory with vision, and the reverse") {
  const std::string name = GENERATE("qwen3_5", "qwen3_5-multimodal");
  CAPTURE(name);
  const auto model = Transformer::load(family(name), {});
  constexpr std::string_view kText = "model.";
  constexpr std::string_view kWithVision = "model.language_model.";
  std::vector<AdaptableModule> renamed(model->modules().begin(), model->modules().end());
  for (AdaptableModule& module : renamed) {
    if (module.name.starts_with(kWithVision)) {
      module.name = std::string(kText) + module.name.substr(kWithVision.size());
    } else if (module.name.starts_with(kText)) {
      module.name = std::string(kWithVision) + module.name.substr(kText.size());
    }
  }
  REQUIRE(renamed.front().name != model->modules().front().name);
  const testing::TemporaryDirectory directory;
  const SharedAdapter own = random_adapter(directory.path() / "own", *model, {.rank = 3});
  write_random_adapter(directory.path() / "renamed", renamed, {.rank = 3});
  const SharedAdapter other =
      Adapter::load(AdapterFiles(directory.path() / "renamed", model->modules()));
  CHECK(other->modules() == own->modules());
  CHECK(have_equal_bits(run(*model, {other}, 4).front(), run(*model, {own}, 4).front()));

  // One module under both names.
  write_random_adapter(directory.path() / "both",
                       std::vector<AdaptableModule>{model->modules().front(), renamed.front()});
  CHECK_THROWS_WITH(AdapterFiles(directory.path() / "both", model->modules()),
                    Catch::Contains(renamed.front().name) && Catch::Contains("surplus"));
}

TEST_CASE("families: adapters of routed experts and of other models are refused by name") {
  const auto model = Transformer::load(family("qwen3_5_moe"), {});
  const testing::TemporaryDirectory directory;
  const auto refused = [&](std::vector<AdaptableModule> modules) {
    write_random_adapter(directory.path(), modules);
    return AdapterFiles(directory.path(), model->modules());
  };
  CHECK_THROWS_WITH(
      refused({{.name = "model.layers.0.mlp.experts.0.gate_proj", .in = 64, .out = 32}}),
      Catch::Contains("base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_A.weight") &&
          Catch::Contains("surplus"));
  std::vector<AdaptableModule> wide = {model->modules().front()};
  wide.front().in += 1;
  CHECK_THROWS_WITH(refused(wide), Catch::Contains("expected [4, "));
}

}  // namespace lintel
