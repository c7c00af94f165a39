// SPDX-License-Identifier: Apache-2.0
// --weight-type auto: the fastest type that loses little.
#include "model/fastest_type.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "model/model_files.h"
#include "model/tokenizer/tokenizer.h"
#include "server/models/model_loader.h"
#include "server/models/model_manager.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// A model with 262,144 weights in its matrices.
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

LoadedModel load(const std::filesystem::path& directory, std::optional<WeightType> type,
                 const TypeChoice& choice = {}) {
  const ModelFiles files(directory);
  return load_as_planned(files, plan_to_load(files, type, {}, KvType::kF32, choice));
}

constexpr const char* kText =
    "The state of a sequence is as large after a million tokens as after one, so a conversation "
    "continues where it ended. A cache of keys and values grows with every token, and each token "
    "takes longer than the one before it.";

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
  CHECK(plan_to_load(files, {}, spec).candidates.empty());
}

TEST_CASE("auto compares on a text if one is given, and checkpoints also in 4 bits") {
  if (faster_types().empty()) return;
  const std::filesystem::path model = LINTEL_TEST_DATA "/../weights/text-rwkv7-small";
  const auto exact = Transformer::load(model, {});
  const std::vector<std::int32_t> tokens = exact->tokenizer()->encode(kText);
  double before = 1.0;
  for (const WeightType type :
       {WeightType::kInt4All, WeightType::kInt4, WeightType::kInt4Ffn, WeightType::kInt8}) {
    // The limit lies between this type's loss and that of the type before it.
    const double lost =
        kl_divergence_bits(*exact, *Transformer::load(model, {.weight_type = type}), tokens);
    CAPTURE(to_string(type), lost);
    CHECK(lost > 0.0);
    CHECK(lost < before);
    const LoadedModel loaded =
        load(model, {}, {.text = kText, .most_bits_lost = (lost + before) / 2});
    CHECK(loaded.transformer->weight_type() ==
          Transformer::load(model, {.weight_type = type})->weight_type());
    CHECK_THAT(loaded.reason, Catch::StartsWith(to_string(type)) &&
                                  Catch::Contains("on " + std::to_string(tokens.size()) +
                                                  " tokens of text, of at most"));
    before = lost;
  }
  const LoadedModel none = load(model, {}, {.text = kText, .most_bits_lost = 0.0});
  CHECK(none.transformer->weight_type() == WeightType::kF32);
  CHECK_THAT(none.reason, Catch::StartsWith("int4-all would lose"));
  // Without a text there are no types in 4 bits.
  CHECK_THAT(load(model, {}, {.text = {}, .most_bits_lost = 1.0}).reason,
             Catch::StartsWith(to_string(faster_types().front())));
}

TEST_CASE("a text to compare types on is cut to 512 tokens, and refused below 64") {
  if (faster_types().empty()) return;
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kTame);
  const ModelFiles files(directory.path());
  const auto plan = [&](const std::string& text) {
    return plan_to_load(files, {}, {}, KvType::kF32, {.text = text});
  };
  const auto longest = static_cast<std::size_t>(files.config().max_length);
  const std::size_t most = longest > 0 ? std::min(longest, kMostTextTokens) : kMostTextTokens;
  const std::size_t fewest = std::min(kFewestTextTokens, most);
  CHECK_THROWS_WITH(plan(std::string(fewest - 1, 'a')), Catch::Contains("at least"));
  CHECK(plan(std::string(fewest, 'a')).text.size() == fewest);
  CHECK(plan(std::string(2 * most, 'a')).text.size() == most);
  CHECK(plan("").text.empty());
  // A type that was given needs none.
  CHECK(plan_to_load(files, WeightType::kInt8, {}, KvType::kF32, {.text = "short"}).text.empty());
}

TEST_CASE("a text to compare types on that cannot be read is refused by its flag") {
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kTame);
  const ModelFiles files(directory.path());
  ModelOptions options;
  options.weight_type_text = directory.path() / "none.txt";
  CHECK_THROWS_WITH(plan_as_asked(files, options),
                    Catch::Contains("--weight-type-text") && Catch::Contains("none.txt"));
}

TEST_CASE("comparing types takes no more memory than the model in f32, admitted before a read") {
  if (faster_types().empty()) return;
  const TemporaryDirectory directory;
  write_wide_model(directory.path(), kTame);
  const ModelFiles files(directory.path());
  const LoadPlan compared = plan_to_load(files, {}, {});
  const LoadPlan alone = plan_to_load(files, WeightType::kF32, {});
  REQUIRE_FALSE(compared.candidates.empty());
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
    // The kernels are named, too.
    CHECK(log.str().find(model->transformer->kernels()) != std::string::npos);
  }
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace lintel::testing
