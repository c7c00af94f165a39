// SPDX-License-Identifier: Apache-2.0
// --weight-type auto: the fastest type that loses little.
#include "model/fastest_type.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "model/model_files.h"
#include "server/models/model_manager.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// Of 262,144 weights in its matrices.
ModelConfig wide_config() {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.d_model = 128;
  config.n_heads = 4;
  config.d_head = 32;
  config.d_ff = 256;
  return config;
}

// The larger the weights, the more of an output hangs on what eight bits cannot tell apart.
constexpr float kTame = 0.03f;
constexpr float kWild = 0.6f;

void write_wide_model(const std::filesystem::path& directory, float scale) {
  write_random_model(directory, wide_config(), /*seed=*/3, scale);
}

LoadedModel load(const std::filesystem::path& directory, std::optional<WeightType> type) {
  const ModelFiles files(directory);
  return load_as_planned(files, plan_to_load(files, type, {}));
}

TEST_CASE("auto serves the fastest type that loses at most 0.002 bits a token, and says so") {
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kTame);
  const LoadedModel loaded = load(directory.path(), {});
  if (faster_types().empty()) {
    CHECK(loaded.transformer->weight_type() == WeightType::kF32);
    CHECK(loaded.reason.empty());
    return;
  }
  CHECK(loaded.transformer->weight_type() == faster_types().front());
  CHECK_THAT(loaded.reason, Catch::Contains("bits a token against f32, of at most 0.002"));
  // The same again, under any load of the machine.
  CHECK(load(directory.path(), {}).reason == loaded.reason);
}

TEST_CASE("auto does not serve a type that loses more") {
  if (faster_types().empty()) return;
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kWild);
  const auto exact = Transformer::load(directory.path(), {});
  const auto narrow = Transformer::load(directory.path(), {.weight_type = WeightType::kInt8});
  REQUIRE(kl_divergence_bits(*exact, *narrow) > kMostBitsLost);
  const LoadedModel loaded = load(directory.path(), {});
  CHECK(loaded.transformer->weight_type() != WeightType::kInt8);
  CHECK_THAT(loaded.reason, Catch::Contains("int8 would lose") || Catch::StartsWith("bf16 loses"));
}

TEST_CASE("auto serves small models in f32, and a type that was given is taken") {
  const TemporaryDirectory small;
  write_random_model(small.path(), tiny_config(TinyModel::kBytes), /*seed=*/1);
  CHECK(load(small.path(), {}).transformer->weight_type() == WeightType::kF32);
  CHECK(load(small.path(), {}).reason.empty());
  const TemporaryDirectory wide;
  write_wide_model(wide.path(), kWild);
  const LoadedModel given = load(wide.path(), WeightType::kInt8);
  CHECK(given.transformer->weight_type() == WeightType::kInt8);
  CHECK(given.reason.empty());
  // Recomputing is for comparison with what others published, in f32.
  const ModelFiles files(wide.path());
  AttentionSpec spec = parse_attention_spec("softmax:recompute=true");
  CHECK_FALSE(plan_to_load(files, {}, spec).compares);
}

TEST_CASE("comparing types takes no more memory than the model in f32, admitted before a read") {
  if (faster_types().empty()) return;
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kTame);
  const ModelFiles files(directory.path());
  const LoadPlan compared = plan_to_load(files, {}, {});
  const LoadPlan alone = plan_to_load(files, WeightType::kF32, {});
  REQUIRE(compared.compares);
  CHECK(compared.size.resident_bytes == alone.size.resident_bytes);
  CHECK(compared.size.peak_bytes() >= alone.size.peak_bytes());
  CHECK(compared.size.peak_bytes() <= alone.size.peak_bytes() + alone.size.loading_bytes);

  ModelOptions options;
  options.directories = {{"m", directory.path()}};
  options.memory_bytes = compared.size.peak_bytes() - 1;
  const SteadyClock clock;
  ModelRegistry registry;
  SessionManager store({.session_memory_bytes = 1u << 30}, clock);
  CHECK_THROWS_WITH(ModelManager(options, registry, store, clock).load_at_start(),
                    Catch::Contains("while it is loaded"));
  options.memory_bytes = compared.size.peak_bytes();
  ModelManager(options, registry, store, clock).load_at_start();
}

TEST_CASE("the log says which type a model is served in, and why") {
  if (faster_types().empty()) return;
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kTame);
  ModelOptions options;
  options.directories = {{"m", directory.path()}};
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  {
    const SteadyClock clock;
    ModelRegistry registry;
    SessionManager store({.session_memory_bytes = 1u << 30}, clock);
    ModelManager(options, registry, store, clock).load_at_start();
    const SharedModel model = registry.find("m");
    REQUIRE(model != nullptr);
    CHECK(log.str().find("model m: served in " +
                         std::string(to_string(model->transformer->weight_type())) + ": " +
                         model->weight_type_reason) != std::string::npos);
    // What multiplies is said, too.
    CHECK(log.str().find(model->transformer->kernels()) != std::string::npos);
  }
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace lintel::testing
