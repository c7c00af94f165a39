// SPDX-License-Identifier: Apache-2.0
// Adapters that ModelManager loads and unloads, and what it counts for them.
#include <filesystem>
#include <future>
#include <optional>

#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "server/models/model_manager.h"
#include "tests/server/support/models_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Kind = LoadRefusal::Kind;
using Answer = std::optional<LoadRefusal>;
namespace fs = std::filesystem;

struct AdapterFixture : ModelsFixture {
  explicit AdapterFixture(const std::function<void(ModelOptions&)>& change = [](ModelOptions&) {}) {
    change(options);
    store = std::make_unique<SessionManager>(sessions, clock);
    manager = std::make_unique<ModelManager>(options, registry, *store, clock);
  }

  void write_adapter(const std::string& path, std::uint64_t seed = 1) const {
    write_random_adapter(directory.path() / path, tiny_config(TinyModel::kTokens), {.seed = seed});
  }
  Answer load(const std::string& name) {
    std::promise<Answer> answer;
    manager->load(name, std::nullopt,
                  [&](const Answer& refusal, const SharedModel&) { answer.set_value(refusal); });
    return answer.get_future().get();
  }
  Answer load_adapter(const std::string& name) {
    std::promise<Answer> answer;
    manager->load_adapter(registry.find("m"), name,
                          [&](const Answer& refusal, const SharedAdapter& adapter) {
                            CHECK((adapter != nullptr) == !refusal.has_value());
                            answer.set_value(refusal);
                          });
    return answer.get_future().get();
  }
  std::future<Answer> begin_unload(const std::string& name) {
    auto answer = std::make_shared<std::promise<Answer>>();
    manager->unload_adapter(registry.find("m"), name,
                            [answer](const Answer& refusal) { answer->set_value(refusal); });
    return answer->get_future();
  }
  SharedAdapter find(const std::string& name) const {
    return registry.find("m")->adapters->find(name);
  }
  std::size_t used_bytes() const { return manager->memory().used_bytes(); }

  ModelRegistry registry;
  std::unique_ptr<SessionManager> store;
  std::unique_ptr<ModelManager> manager;
};

bool has_answer(const std::future<Answer>& answer) {
  return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

TEST_CASE("an adapter's memory is counted with the models', until the last that uses it lets go") {
  AdapterFixture f;
  f.write("m");
  f.write_adapter("m/adapters/a");
  REQUIRE_FALSE(f.load("m"));
  SharedAdapter used = f.find("a");
  REQUIRE(used != nullptr);
  const std::size_t with_adapter = f.used_bytes();
  const std::size_t bytes = used->weights->bytes();
  CHECK(bytes > 0);
  std::shared_ptr<const Adapter> in_a_sequence = weights_of(used);
  const std::future<Answer> answer = f.begin_unload("a");
  CHECK(f.find("a") == nullptr);
  used.reset();
  CHECK_FALSE(has_answer(answer));
  CHECK(f.used_bytes() == with_adapter);
  in_a_sequence.reset();
  answer.wait();
  CHECK(f.used_bytes() == with_adapter - bytes);
  CHECK(f.begin_unload("a").get()->kind == Kind::kNotFound);
  REQUIRE_FALSE(f.load_adapter("a"));
  CHECK(f.used_bytes() == with_adapter);
}

TEST_CASE("an adapter is admitted by its files, at the start and at run time alike") {
  const AdapterFixture measured;
  measured.write("m");
  measured.write_adapter("m/adapters/a");
  const fs::path directory = measured.directory.path();
  const ModelSize size = measure_model(ModelFiles(directory / "m"), {});
  const AdapterFiles files(directory / "m/adapters/a", tiny_config(TinyModel::kTokens));
  const std::size_t needed = files.bytes() + files.loading_bytes();
  const std::size_t least = std::max(size.peak_bytes(), size.resident_bytes + needed);
  const auto start = [&](std::size_t memory_bytes) {
    AdapterFixture f([&](ModelOptions& options) {
      options.memory_bytes = memory_bytes;
      options.directories = {{"m", directory / "m"}};
    });
    f.manager->load_at_start();
    CHECK(f.used_bytes() == size.resident_bytes + f.find("a")->weights->bytes());
    CHECK(f.find("a")->weights->bytes() <= files.bytes());
  };
  CHECK_NOTHROW(start(least));
  CHECK_THROWS_WITH(start(size.resident_bytes + needed - 1),
                    Contains("--model-memory") && (Contains("adapter a of model m needs " +
                                                            std::to_string(needed) + " bytes") ||
                                                   Contains("model m needs")));

  AdapterFixture f([&](ModelOptions& options) { options.memory_bytes = size.peak_bytes(); });
  f.write("m");
  REQUIRE_FALSE(f.load("m"));
  const std::size_t before = f.used_bytes();
  // Adapters are loaded until one is refused, and nothing is counted for that one.
  Answer refused;
  int loaded = 0;
  for (; !refused && loaded < 1000; ++loaded) {
    const std::string name = "a" + std::to_string(loaded);
    f.write_adapter("m/adapters/" + name);
    refused = f.load_adapter(name);
  }
  REQUIRE(refused);
  CHECK(refused->kind == Kind::kOutOfModelMemory);
  CHECK(refused->adapter == "a" + std::to_string(loaded - 1));
  CHECK_THAT(refused->text, Contains("needs " + std::to_string(needed) + " bytes"));
  CHECK(f.used_bytes() <= size.peak_bytes());
  for (int i = 0; i < loaded - 1; ++i) CHECK_FALSE(f.begin_unload("a" + std::to_string(i)).get());
  CHECK(f.used_bytes() == before);
}

TEST_CASE("an adapter that is refused at the start is an error that names file and reason") {
  const auto start = [](const std::function<void(AdapterFixture&)>& spoil) {
    AdapterFixture f([](ModelOptions& options) { options.load = {"m"}; });
    f.write("m");
    f.write_adapter("m/adapters/bad");
    spoil(f);
    f.manager->load_at_start();
  };
  CHECK_NOTHROW(start([](AdapterFixture&) {}));
  CHECK_THROWS_WITH(start([](AdapterFixture& f) {
                      fs::remove(f.directory.path() / "m/adapters/bad/adapter_config.json");
                    }),
                    Contains("adapter bad of model m cannot be loaded") &&
                        Contains("m/adapters/bad/adapter_config.json"));
  CHECK_THROWS_WITH(
      start([](AdapterFixture& f) {
        fs::resize_file(f.directory.path() / "m/adapters/bad/adapter_model.safetensors", 100);
      }),
      Contains("adapter bad of model m cannot be loaded") && Contains("adapter_model.safetensors"));
  // An adapter of another model: its shapes do not fit.
  CHECK_THROWS_WITH(
      start([](AdapterFixture& f) {
        fs::remove_all(f.directory.path() / "m/adapters/bad");
        write_random_adapter(f.directory.path() / "m/adapters/bad", tiny_config(TinyModel::kBytes));
      }),
      Contains("adapter bad of model m cannot be loaded") && Contains("value_embedding"));
}

TEST_CASE("an adapter that is there twice is refused, and so is one more than there may be",
          "[threat-76]") {
  const AdapterFixture elsewhere;
  elsewhere.write_adapter("run");
  AdapterFixture f([&](ModelOptions& options) {
    options.load = {"m"};
    options.adapters = {{"m", "a", elsewhere.directory.path() / "run"},
                        {"other", "b", elsewhere.directory.path() / "run"}};
  });
  f.write("m");
  f.manager->load_at_start();
  CHECK(f.find("a") != nullptr);
  CHECK(f.find("b") == nullptr);  // another model's
  CHECK(f.load_adapter("b")->kind == Kind::kNotFound);
  // Unloaded and loaded again, from where --adapter says.
  CHECK_FALSE(f.begin_unload("a").get());
  CHECK_FALSE(f.load_adapter("a"));
  CHECK(f.load_adapter("a")->kind == Kind::kUnusable);
  f.write_adapter("m/adapters/a");
  const Answer twice = f.load("m");
  REQUIRE(twice);
  CHECK_THAT(twice->text, Contains("adapter a of model m") && Contains("--adapter gives it, too"));
  CHECK(f.find("a") != nullptr);  // the load changed nothing
  CHECK_FALSE(f.begin_unload("a").get());
  CHECK_THAT(f.load_adapter("a")->text, Contains("--adapter gives it, too"));

  fs::remove_all(f.directory.path() / "m/adapters/a");
  for (std::size_t i = 0; i < AdapterTable::kMost; ++i) {
    fs::create_directories(f.directory.path() / "m/adapters" / ("x" + std::to_string(i)));
  }
  CHECK_THAT(f.load("m")->text, Contains("adapters, more than 1024"));
}

TEST_CASE("past the drain timeout an adapter's sessions are closed, and its holders keep it") {
  AdapterFixture f(
      [](ModelOptions& options) { options.drain_timeout_ms = std::chrono::milliseconds(1); });
  f.write("m");
  f.write_adapter("m/adapters/a");
  REQUIRE_FALSE(f.load("m"));
  const auto create = [&](SharedAdapter adapter) {
    return f.store->create("m", f.registry.find("m")->transformer, 10, "", std::move(adapter))
        .info.id;
  };
  const std::string with = create(f.find("a"));
  const std::string without = create(nullptr);
  CHECK(f.store->get(with)->adapter == "a");
  CHECK(f.store->get(without)->adapter.empty());
  const SharedAdapter held = f.find("a");
  CHECK_FALSE(f.begin_unload("a").get());
  CHECK(held->ended);
  CHECK_FALSE(f.store->get(with));
  CHECK(f.store->lease(with).refusal.error == SessionError::kUnloaded);
  CHECK(f.store->get(without));
  CHECK(held->weights->max_rank() == 4);
  CHECK_FALSE(f.load_adapter("a"));  // its name is free
  CHECK(f.find("a") != held);
}

TEST_CASE("an adapter's unload keeps no model from going") {
  AdapterFixture f;
  f.write("m");
  f.write_adapter("m/adapters/a");
  REQUIRE_FALSE(f.load("m"));
  SharedAdapter used = f.find("a");
  const std::future<Answer> adapter = f.begin_unload("a");
  std::promise<Answer> model;
  f.manager->unload("m", std::nullopt, [&](const Answer& refusal) { model.set_value(refusal); });
  CHECK_FALSE(model.get_future().get());
  used.reset();
  adapter.wait();
  CHECK(eventually([&] { return f.used_bytes() == 0; }));
}

TEST_CASE("a manager that stops answers callers that wait for an adapter") {
  AdapterFixture f;
  f.write("m");
  f.write_adapter("m/adapters/a");
  REQUIRE_FALSE(f.load("m"));
  const SharedAdapter held = f.find("a");
  std::future<Answer> answer = f.begin_unload("a");
  f.manager->stop();
  REQUIRE(has_answer(answer));
  CHECK_FALSE(answer.get());
  CHECK(f.load_adapter("a")->kind == Kind::kStopping);
}

}  // namespace
}  // namespace lintel::testing
