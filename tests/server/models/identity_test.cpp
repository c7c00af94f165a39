// SPDX-License-Identifier: Apache-2.0
// Fingerprint and numerics, which are computed after a model was loaded.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "model/model_files.h"
#include "server/models/model_loader.h"
#include "server/models/model_registry.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// A model whose fingerprint was promised.
class Promised {
 public:
  Promised() {
    write_random_model(directory_.path(), tiny_config(TinyModel::kImage), /*seed=*/1);
    files = std::make_unique<ModelFiles>(directory_.path());
    transformer = Transformer::load(*files, {.fingerprint = promise.get_future().share()});
  }
  NumericsFingerprint identified(const std::stop_token& stop = {}) {
    return identify("tiny", *files, std::move(promise), *transformer, stop);
  }
  std::filesystem::path weights() const { return directory_.path() / "model.safetensors"; }
  std::unique_ptr<Transformer> load_again() const {
    return Transformer::load(directory_.path(), {});
  }

 private:
  const TemporaryDirectory directory_;

 public:
  std::promise<std::string> promise;
  std::unique_ptr<ModelFiles> files;
  std::unique_ptr<Transformer> transformer;
};

TEST_CASE("a promised fingerprint is that of a model that computes its own") {
  Promised model;
  const auto same = model.load_again();
  CHECK(same->knows_fingerprint());
  CHECK_FALSE(model.transformer->knows_fingerprint());
  const NumericsFingerprint numerics = model.identified();
  CHECK(model.transformer->knows_fingerprint());
  CHECK(model.transformer->fingerprint() == same->fingerprint());
  CHECK(numerics.hex == numerics_of(*same).hex);
  CHECK(numerics.text == numerics_of(*same).text);
}

TEST_CASE("a caller that asks for a fingerprint waits until it is known") {
  Promised model;
  std::string seen;
  std::thread asks([&] { seen = model.transformer->fingerprint(); });
  model.identified();
  asks.join();
  CHECK(seen == model.load_again()->fingerprint());
}

TEST_CASE("files that change before they are hashed give a fingerprint that no other model has") {
  Promised model, other;
  const std::string before = model.load_again()->fingerprint();
  for (Promised* const changed : {&model, &other}) {
    std::ofstream(changed->weights(), std::ios::app) << "more";
    const NumericsFingerprint numerics = changed->identified();
    CHECK(changed->transformer->fingerprint().size() == 64);
    CHECK(changed->transformer->fingerprint() != before);
    CHECK(numerics.hex == numerics_of(*changed->transformer).hex);
  }
  CHECK(model.transformer->fingerprint() != other.transformer->fingerprint());
}

TEST_CASE("a model that is unloaded does not wait for its fingerprint") {
  Promised model;
  std::stop_source unloads;
  unloads.request_stop();
  CHECK(model.identified(unloads.get_token()).hex.empty());
  CHECK(model.transformer->fingerprint().empty());
  // Stops as ServedModel's destructor does.
  std::stop_token stop;
  {
    ServedModel served;
    stop = served.unloads.get_token();
    CHECK_FALSE(stop.stop_requested());
  }
  CHECK(stop.stop_requested());
}

TEST_CASE("numerics of a served model are empty until they are given or promised") {
  ServedModel served;
  CHECK(served.numerics().hex.empty());
  served.set_numerics({.hex = "0123", .text = "here"});
  CHECK(served.numerics().hex == "0123");
  CHECK(served.numerics().text == "here");
}

TEST_CASE("a measurement that a request disturbed is repeated") {
  Core core(tiny_model(TinyModel::kTokens));
  int measurements = 0;
  int disturbed = 0;
  const auto measured = [&](int how_many, const std::stop_token& stop = {}) {
    measurements = 0;
    disturbed = how_many;
    const auto measure = [&](const std::function<bool()>& ends) {
      CHECK_FALSE(ends());
      const bool is_disturbed = ++measurements <= disturbed;
      if (is_disturbed) core.generate(tokens_request(3, 2));
      CHECK(ends() == is_disturbed);
      return StepCost{.row = static_cast<float>(measurements)};
    };
    const auto cost = measure_when_idle(core.scheduler, measure, std::chrono::minutes(1), stop);
    return cost ? cost->row : 0.0f;
  };
  CHECK(measured(0) == 1.0f);
  CHECK(measured(4) == 5.0f);
  std::stop_source unloads;
  unloads.request_stop();
  CHECK(measured(0, unloads.get_token()) == 0.0f);
  CHECK(measurements == 0);
  core.scheduler.begin_drain();
  CHECK(measured(0) == 0.0f);
  CHECK(measurements == 0);
}

TEST_CASE("a measurement waits until no request runs or waits for its reader") {
  Core core(tiny_model(TinyModel::kTokens));
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 1;
  const auto call = core.submit(tokens_request(3, 10), "", sink);
  core.run();
  const auto measure = [&](const std::function<bool()>&) { return StepCost{.row = 0.5f}; };
  CHECK_FALSE(measure_when_idle(core.scheduler, measure, std::chrono::milliseconds(30), {}));
  auto waits = std::async(std::launch::async, [&] {
    return measure_when_idle(core.scheduler, measure, std::chrono::minutes(1), {});
  });
  core.scheduler.cancel(call.handle);
  core.run();
  const auto cost = waits.get();
  REQUIRE(cost);
  CHECK(cost->row == 0.5f);
}

TEST_CASE("a large model is checked and measured after it is loaded") {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.d_ff = 4096;
  write_random_model(directory.path(), config, 1);
  const SteadyClock clock;
  ModelOptions options;
  options.scheduling.workers = 2;
  const ModelLoader loader(options, std::make_shared<ModelMemory>(0), clock, nullptr,
                           /*large_parameters=*/1);
  static std::ostringstream log;  // outlives the sink where a check fails
  spdlog::default_logger()->sinks().push_back(
      std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  const std::shared_ptr<ServedModel> model = loader.load({"m", 1, directory.path()});
  REQUIRE(model->transformer->num_parameters() > 200'000);
  REQUIRE(model->cost_later.valid());
  model->cost_later.wait();
  CHECK(model->knows_numerics());
  CHECK(model->all_warnings().empty());
  CHECK_THAT(log.str(), Catch::Contains("(self-check)") && Catch::Contains("a step takes"));
  // Unloaded while it is checked and measured.
  loader.load({"m", 1, directory.path()}).reset();
  spdlog::default_logger()->sinks().pop_back();
}

TEST_CASE("warnings of the self-check are added once it has ended, and not waited for") {
  using Warnings = std::vector<std::string>;
  ServedModel served;
  served.warnings = {"of loading"};
  CHECK(served.all_warnings() == Warnings{"of loading"});
  std::promise<Warnings> checks;
  served.later_warnings = checks.get_future().share();
  CHECK(served.all_warnings() == Warnings{"of loading"});
  checks.set_value({"of a check"});
  CHECK(served.all_warnings() == Warnings{"of loading", "of a check"});
}

}  // namespace
}  // namespace lintel::testing
