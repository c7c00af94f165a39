// SPDX-License-Identifier: Apache-2.0
// The hash of what a machine computes with a model.
#include <set>
#include <string>

#include "model/core/step_thread_pool.h"
#include "model/numerics_fingerprint.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/model/support/whole_models.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::tiny_config;
using testing::TinyModel;

struct Written {
  explicit Written(const ModelConfig& config, std::uint64_t seed = 1) {
    write_random_model(directory.path(), config, seed);
  }
  std::string hex(WeightType type = WeightType::kF32, const std::string& attention = "",
                  std::size_t slice = kNumericsTokens) const {
    Transformer::Options options{.weight_type = type};
    if (!attention.empty()) options.attention = parse_attention_spec(attention);
    return numerics_of(*Transformer::load(directory.path(), options), slice).hex;
  }
  testing::TemporaryDirectory directory;
};

TEST_CASE("numerics are the same in every load and in slices of any size", "[rows]") {
  const TinyModel kind = GENERATE(TinyModel::kImage, TinyModel::kBytes, TinyModel::kTokens);
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const Written model(tiny_config(kind));
  const std::string hex = model.hex(type);
  CHECK(hex.size() == 64);
  CHECK(model.hex(type) == hex);
  for (const std::size_t slice : {1, 16, 63, 64, 1000}) CHECK(model.hex(type, "", slice) == hex);
}

TEST_CASE("numerics are the same on one thread and on several", "[rows]") {
  const Written model(tiny_config(TinyModel::kTokens));
  const auto loaded = Transformer::load(model.directory.path(), {.weight_type = WeightType::kInt8});
  StepThreadPool team;
  const StepHelpers helpers(team, 2);
  CHECK(numerics_of(*loaded, kNumericsTokens, &team).hex == numerics_of(*loaded).hex);
}

TEST_CASE("other weights, weight types and attentions have other numerics") {
  const Written model(tiny_config(TinyModel::kBytes));
  const Written other(tiny_config(TinyModel::kBytes), /*seed=*/2);
  std::set<std::string> all = {model.hex(), other.hex()};
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) all.insert(model.hex(type));
  for (const char* const attention :
       {"softmax", "softmax:scale=0.3", "linear:eps=0.01", "linear:recompute=true"}) {
    all.insert(model.hex(WeightType::kF32, attention));
  }
  CHECK(all.size() == 8);
}

TEST_CASE("a context that is lowered is in no fingerprint and no numerics") {
  const Written model(tiny_config(TinyModel::kTokens));
  const auto whole = Transformer::load(model.directory.path(), {});
  const auto lowered = Transformer::load(model.directory.path(), {.context = 8});
  CHECK(lowered->config().max_tokens() == 8);
  CHECK(lowered->config().max_length == whole->config().max_length);
  CHECK(lowered->fingerprint() == whole->fingerprint());
  CHECK(numerics_of(*lowered).hex == numerics_of(*whole).hex);
}

TEST_CASE("numerics say in words what computes") {
  const Written model(tiny_config(TinyModel::kBytes));
  const auto loaded = Transformer::load(model.directory.path(), {.weight_type = WeightType::kInt8});
  const std::string text = numerics_of(*loaded).text;
  CHECK_THAT(text, Catch::StartsWith("int8 " + loaded->kernels() + ", "));
  CHECK_THAT(text, Catch::Contains(", lintel "));
}

// The machine decides whether our own kernels have other bits with other instructions.
TEST_CASE("the numerics fingerprint of a model is stable on each instruction set") {
  const Written model(tiny_config(TinyModel::kBytes));
  std::set<std::string> all;
  std::size_t sets = 0;
  testing::for_each_instruction_set([&] {
    ++sets;
    const std::string hex = model.hex();
    CHECK(hex.size() == 64);
    CHECK(model.hex() == hex);
    all.insert(hex);
  });
  WARN(sets << " instruction sets, " << all.size() << " different numerics");
}

}  // namespace
}  // namespace lintel
