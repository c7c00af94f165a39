// Which model a name stands for, and the state it is in.
#include "server/models/model_registry.h"

#include <catch2/catch.hpp>

#include "server/models/model_loader.h"
#include "server/requests/resolve_model.h"
#include "server/stream/outcome_status.h"
#include "tests/server/support/service_fixture.h"

namespace lintel::testing {
namespace {

struct Fixture {
  std::shared_ptr<ServedModel> model(const std::string& name, std::int64_t version) {
    NamedTransformer named = tiny_models({"tokens"}).front();
    named.name = name;
    named.version = version;
    ServerOptions options = test_options();
    options.models.scheduling.workers = 0;
    return serve_model(options.models, std::move(named), clock);
  }
  grpc::Status resolved(const std::string& name, std::optional<std::int64_t> version = {}) {
    grpc::Status status;
    found = resolve_model(name, registry, &status, "model_name", version);
    CHECK((found != nullptr) == status.ok());
    return status;
  }

  SteadyClock clock;
  ModelRegistry registry;
  SharedModel found;
};

TEST_CASE("a name stands for its highest version, no name for the only one there is") {
  Fixture f;
  CHECK(f.resolved("").error_code() == grpc::StatusCode::NOT_FOUND);
  f.registry.add(f.model("b", 2));
  f.registry.add(f.model("b", 10));
  f.registry.add(f.model("b", 9));
  CHECK(f.resolved("b").ok());
  CHECK(f.found->version == 10);
  CHECK(f.resolved("").ok());
  CHECK(f.found->version == 10);
  CHECK(f.resolved("b", 2).ok());
  CHECK(f.found->version == 2);
  CHECK(f.resolved("", 2).ok());
  const grpc::Status missing = f.resolved("b", 3);
  CHECK(missing.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK_THAT(missing.error_message(), Catch::Contains("model_version"));
  f.registry.add(f.model("bb", 1));  // begins as the other does
  CHECK(f.resolved("b").ok());
  CHECK(f.found->version == 10);
  const grpc::Status nameless = f.resolved("");
  CHECK(violated_fields(nameless) == std::vector<std::string>{"model_name"});
  CHECK_THAT(nameless.error_message(), Catch::Contains("b, bb"));
}

TEST_CASE("a model is loading, ready, unloading, unavailable, and requests are told so") {
  Fixture f;
  const auto state = [&] { return f.registry.index().at(0).state; };
  f.registry.set_loading("a", 1);
  CHECK(state() == ModelState::kLoading);
  const grpc::Status loading = f.resolved("a");
  CHECK(loading.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(detail_of<google::rpc::RetryInfo>(loading));
  f.registry.set_failed("a", 1, "it is broken");
  CHECK(state() == ModelState::kUnavailable);
  CHECK(f.registry.index().at(0).reason == "it is broken");
  CHECK(f.resolved("a").error_code() == grpc::StatusCode::NOT_FOUND);

  f.registry.set_loading("a", 1);
  f.registry.add(f.model("a", 1));
  CHECK(state() == ModelState::kReady);
  f.registry.set_loading("a", 1);  // anew
  CHECK(state() == ModelState::kReady);
  f.registry.set_failed("a", 1, "it is broken");
  CHECK(state() == ModelState::kReady);
  CHECK(f.registry.index().at(0).reason == "it is broken");  // what was there serves on
  for (const SharedModel& old : f.registry.add(f.model("a", 1))) f.registry.forget(old.get());
  CHECK(f.registry.index().at(0).reason.empty());

  SharedModel used = f.registry.find("a");
  const auto retired = f.registry.retire("a", std::nullopt).at(0).get();
  CHECK(retired == used.get());
  CHECK(used->retired.load());
  CHECK(stopped_status(*used).error_message().find("model a was unloaded") != std::string::npos);
  CHECK(state() == ModelState::kUnloading);
  CHECK_THAT(f.resolved("a").error_message(), Catch::Contains("being unloaded"));
  CHECK_FALSE(f.registry.is_unused(retired));
  used.reset();
  CHECK(f.registry.is_unused(retired));
  f.registry.forget(retired);
  CHECK(state() == ModelState::kUnavailable);
  CHECK(f.registry.all().empty());
}

TEST_CASE("a version replaces its like, or all others") {
  Fixture f;
  CHECK(f.registry.add(f.model("a", 1)).empty());
  CHECK(f.registry.add(f.model("a", 2)).empty());
  CHECK(f.registry.add(f.model("a", 2)).size() == 1);
  CHECK(f.registry.add(f.model("b", 3), /*replace_all=*/true).empty());  // of its name
  CHECK(f.registry.add(f.model("a", 3), /*replace_all=*/true).size() == 2);
  CHECK(f.registry.ready().size() == 2);
  CHECK(f.registry.all().size() == 5);
}

}  // namespace
}  // namespace lintel::testing
