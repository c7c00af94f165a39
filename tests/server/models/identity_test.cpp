// SPDX-License-Identifier: Apache-2.0
// Fingerprint and numerics, which are computed after a model was loaded.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "model/model_files.h"
#include "server/models/model_loader.h"
#include "server/models/model_registry.h"
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
  // As ServedModel's destructor does it.
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
