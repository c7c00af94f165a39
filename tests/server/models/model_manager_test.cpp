// ModelManager by itself: what a running server cannot be made to do at a given moment.
#include "server/models/model_manager.h"

#include <catch2/catch.hpp>
#include <optional>
#include <system_error>

#include "tests/server/support/service_fixture.h"
#include "tests/support/one_more_thread.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

TEST_CASE("an unload that comes after the manager has stopped is answered") {
  const ModelOptions options = test_options().models;
  const SteadyClock clock;
  ModelRegistry registry;
  SessionStore store({.session_memory_bytes = 1u << 20}, clock);
  ModelManager manager(options, registry, store, std::make_shared<ModelBudget>(0), clock);
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 3);
  NamedTransformer model = load_model(options, store.options(), "late", 1, directory.path());
  registry.add(serve_model(options, std::move(model), clock), /*replace_all=*/true);
  manager.stop();
  std::optional<grpc::Status> answer;
  manager.unload("late", std::nullopt, [&](const grpc::Status& status) { answer = status; });
  REQUIRE(answer.has_value());
  CHECK(answer->ok());
}

TEST_CASE("a manager whose second thread the system refuses is not made") {
  const SteadyClock clock;
  ModelRegistry registry;
  SessionStore store({.session_memory_bytes = 1u << 20}, clock);
  const auto make = [&] {
    ModelManager(test_options().models, registry, store, std::make_shared<ModelBudget>(0), clock);
  };
  {
    const OneMoreThread one;
    CHECK_THROWS_AS(make(), std::system_error);
  }
  CHECK_NOTHROW(make());
}

}  // namespace lintel::testing
