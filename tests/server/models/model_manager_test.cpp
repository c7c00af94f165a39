// SPDX-License-Identifier: Apache-2.0
// ModelManager without a server around it: loads, unloads, and what a running server cannot be made
// to do at a given moment.
#include "server/models/model_manager.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/server/support/models_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/one_more_thread.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Kind = LoadRefusal::Kind;
namespace fs = std::filesystem;

struct Fixture : ModelsFixture {
  explicit Fixture(const std::function<void(ModelOptions&)>& change = [](ModelOptions&) {}) {
    change(options);
    store = std::make_unique<SessionManager>(sessions, clock);
    manager = std::make_unique<ModelManager>(options, registry, *store, clock);
  }

  using Answer = std::optional<LoadRefusal>;
  Answer load(const std::string& name, std::optional<std::int64_t> version = std::nullopt) {
    std::promise<Answer> answer;
    manager->load(name, version, [&](const Answer& refusal, const SharedModel& model) {
      if (model != nullptr) CHECK(model->name == name);
      CHECK((model != nullptr) == !refusal.has_value());
      answer.set_value(refusal);
    });
    return answer.get_future().get();
  }
  std::future<Answer> begin_unload(const std::string& name) {
    auto answer = std::make_shared<std::promise<Answer>>();
    manager->unload(name, std::nullopt,
                    [answer](const Answer& refusal) { answer->set_value(refusal); });
    return answer->get_future();
  }
  Answer unload(const std::string& name) { return begin_unload(name).get(); }

  ModelRegistry registry;
  std::unique_ptr<SessionManager> store;
  std::unique_ptr<ModelManager> manager;
};

bool is_answered(const std::future<Fixture::Answer>& answer) {
  return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

TEST_CASE("a model of the repository is loaded, found and unloaded") {
  Fixture f;
  f.write("second/1");
  f.write("second/2", 6);
  CHECK_FALSE(f.load("second"));
  CHECK(f.registry.find("second")->version == 2);
  CHECK_FALSE(f.load("second", 1));
  CHECK(f.registry.find("second")->version == 2);
  CHECK(f.registry.ready().size() == 2);
  CHECK_FALSE(f.unload("second"));
  CHECK(f.registry.all().empty());
  CHECK(f.manager->memory().used_bytes() == 0);
  CHECK(f.unload("second")->kind == Kind::kNotFound);
}

TEST_CASE("a load says how far it is") {
  ModelsFixture f;
  f.write("a");
  std::vector<std::string> said;
  const ModelLoader loader(f.options, std::make_shared<ModelMemory>(0), f.clock);
  loader.load({"a", 1, f.directory.path() / "a"},
              [&](const std::string& progress) { said.push_back(progress); });
  REQUIRE_FALSE(said.empty());
  CHECK(said.back() == "100 % of 0.0 MB read");
  for (const std::string& text : said) CHECK_THAT(text, Catch::EndsWith(" % of 0.0 MB read"));
}

TEST_CASE("a load's refusal has a kind, names the model and hides the repository") {
  Fixture f;
  f.write("broken");
  fs::resize_file(f.directory.path() / "broken/model.safetensors", 700);
  f.write("good/2");
  const auto check = [&](const Fixture::Answer& refusal, Kind kind, const std::string& text) {
    REQUIRE(refusal);
    CHECK(refusal->kind == kind);
    CHECK_THAT(refusal->text, Contains(text) && !Contains(f.directory.path().string()));
  };
  check(f.load("broken"), Kind::kUnusable, "model broken cannot be loaded: broken/model.safeten");
  check(f.load("nosuch"), Kind::kNotFound, "has no model nosuch");
  check(f.load("org/nosuch:Q8_0"), Kind::kNotFound,
        "has no model org/nosuch:Q8_0; `lintel pull org/nosuch:Q8_0`");
  check(f.load("good", 3), Kind::kNotFound, "no version 3 of model good");
  CHECK(f.registry.index().at(0).reason == f.load("broken")->text);
  CHECK(f.manager->memory().used_bytes() == 0);
  f.manager->stop();
  check(f.load("good"), Kind::kStopping, "");
}

TEST_CASE("the memory that models may take is theirs at the start and at run time alike") {
  const ModelsFixture measured;
  measured.write("a");
  const ModelSize size = measure_model(ModelFiles(measured.directory.path() / "a"), {});
  Fixture f([&](ModelOptions& options) {
    options.memory_bytes = size.resident_bytes + size.peak_bytes() - 1;
    options.load = {"a", "b"};
  });
  for (const char* name : {"a", "b"}) f.write(name);
  std::string at_start;
  try {
    f.manager->load_at_start();
  } catch (const ModelError& error) {
    at_start = error.what();
  }
  CHECK(f.registry.find("a") != nullptr);
  CHECK(f.registry.find("b") == nullptr);
  CHECK(f.manager->memory().used_bytes() == size.resident_bytes);
  const Fixture::Answer at_run_time = f.load("b");
  REQUIRE(at_run_time);
  CHECK(at_run_time->kind == Kind::kOutOfModelMemory);
  CHECK_THAT(at_run_time->text, Contains("model b needs " + std::to_string(size.peak_bytes())) &&
                                    Contains(std::to_string(size.peak_bytes() - 1) + " of "));
  CHECK(at_start == "--model-memory: " + at_run_time->text);
  CHECK_FALSE(f.unload("a"));
  CHECK_FALSE(f.load("b"));
}

TEST_CASE("a server starts with its directories and with what it is to load of the repository") {
  const ModelsFixture elsewhere;
  elsewhere.write("model");
  Fixture f([&](ModelOptions& options) {
    options.directories = {{"given", elsewhere.directory.path() / "model"}};
    options.load = {"*"};
  });
  f.write("a/1");
  f.write("a/2");
  f.manager->load_at_start();
  std::vector<std::string> ready;
  for (const SharedModel& model : f.registry.ready()) {
    ready.push_back(model->name + " " + std::to_string(model->version));
  }
  CHECK(ready == std::vector<std::string>{"a 2", "given 1"});

  Fixture twice([&](ModelOptions& options) {
    options.directories = {{"a", elsewhere.directory.path() / "model"}};
    options.load = {"*"};
  });
  twice.write("a");
  CHECK_THROWS_WITH(twice.manager->load_at_start(), Contains("model a") && Contains("--model"));
  Fixture missing([](ModelOptions& options) { options.load = {"nosuch"}; });
  CHECK_THROWS_WITH(missing.manager->load_at_start(), Contains("--load-model nosuch"));
}

TEST_CASE("readiness is reported for every ready model, and when it changes") {
  Fixture f;
  f.write("a");
  f.write("b");
  REQUIRE_FALSE(f.load("a"));
  std::mutex mutex;
  std::vector<std::pair<std::string, bool>> reported;
  f.manager->tell_readiness([&](const std::string& name, bool ready) {
    const std::lock_guard lock(mutex);
    reported.emplace_back(name, ready);
  });
  REQUIRE_FALSE(f.load("b"));
  REQUIRE_FALSE(f.unload("a"));
  const std::lock_guard lock(mutex);
  CHECK(reported ==
        std::vector<std::pair<std::string, bool>>{{"a", true}, {"b", true}, {"a", false}});
}

TEST_CASE("an unload is answered when the last call ends, and its memory is released then") {
  Fixture f;
  f.write("a");
  REQUIRE_FALSE(f.load("a"));
  const std::size_t bytes = f.manager->memory().used_bytes();
  CHECK(bytes > 0);
  SharedModel call = f.registry.find("a");
  SharedModel other_call = f.registry.find("a");
  const std::future<Fixture::Answer> answer = f.begin_unload("a");
  CHECK(f.registry.state("a") == ModelState::kUnloading);
  call.reset();
  CHECK_FALSE(is_answered(answer));
  CHECK(f.manager->memory().used_bytes() == bytes);
  other_call.reset();
  answer.wait();
  CHECK(f.registry.state("a") == ModelState::kUnavailable);
  CHECK(f.manager->memory().used_bytes() == 0);
}

TEST_CASE("past the drain timeout a model's scheduler stops, and what still holds it keeps it") {
  Fixture f([](ModelOptions& options) { options.drain_timeout_ms = std::chrono::milliseconds(1); });
  f.write("a");
  REQUIRE_FALSE(f.load("a"));
  const SharedModel held = f.registry.find("a");
  CHECK_FALSE(f.unload("a"));
  CHECK(f.registry.all().empty());
  CHECK(held->scheduler->draining());
  CHECK(held->name == "a");
}

TEST_CASE("a reloaded model takes the place of the old one, which drains") {
  Fixture f;
  f.write("a", 5);
  REQUIRE_FALSE(f.load("a"));
  SharedModel old = f.registry.find("a");
  f.write("a", 6);
  REQUIRE_FALSE(f.load("a"));
  CHECK(f.registry.find("a")->transformer->fingerprint() != old->transformer->fingerprint());
  CHECK(old->retired.load());
  CHECK(f.registry.all().size() == 2);
  old.reset();
  CHECK(eventually([&] { return f.registry.all().size() == 1; }));
}

TEST_CASE("calls, loads and unloads from several threads leave nothing behind") {
  Fixture f;
  f.write("a");
  REQUIRE_FALSE(f.load("a"));
  std::atomic<bool> stop{false};
  std::atomic<int> others{0};
  std::vector<std::thread> calls;
  for (int i = 0; i < 3; ++i) {
    calls.emplace_back([&] {
      while (!stop) {
        if (const SharedModel model = f.registry.find("a")) others += model->version != 1;
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    CHECK_FALSE(f.unload("a"));
    CHECK_FALSE(f.load("a"));
    CHECK_FALSE(f.load("a"));  // and in place of itself
  }
  stop = true;
  for (std::thread& call : calls) call.join();
  CHECK(others == 0);
  CHECK_FALSE(f.unload("a"));
  CHECK(eventually([&] { return f.manager->memory().used_bytes() == 0; }));
}

TEST_CASE("an unload that comes after the manager has stopped is answered") {
  Fixture f;
  f.registry.add(f.model("late", 1), /*replace_all=*/true);
  f.manager->stop();
  std::optional<Fixture::Answer> answer;
  f.manager->unload("late", std::nullopt,
                    [&](const Fixture::Answer& refusal) { answer = refusal; });
  REQUIRE(answer.has_value());
  CHECK_FALSE(answer->has_value());
}

TEST_CASE("a manager that stops ends draining models, and answers waiting callers") {
  Fixture f;
  f.write("a");
  REQUIRE_FALSE(f.load("a"));
  const SharedModel held = f.registry.find("a");
  std::future<Fixture::Answer> answer = f.begin_unload("a");
  f.manager->stop();
  CHECK(is_answered(answer));
  CHECK_FALSE(answer.get());
}

TEST_CASE("a manager whose second thread the system refuses is not made", "[limits]") {
  Fixture f;
  ModelRegistry registry;
  const auto make = [&] { ModelManager(f.options, registry, *f.store, f.clock); };
  {
    const OneMoreThread one;
    CHECK_THROWS_AS(make(), std::system_error);
  }
  CHECK_NOTHROW(make());
}

}  // namespace
}  // namespace lintel::testing
