// SPDX-License-Identifier: Apache-2.0
// Which model a request means, and the error if there is none.
#include "server/api/lookup.h"
#include "tests/server/support/models_fixture.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct ResolveFixture : ModelsFixture {
  ResolveFixture() { options.scheduling.workers = 0; }
  grpc::Status resolved(const std::string& name, std::optional<std::int64_t> version = {}) {
    grpc::Status status;
    found = resolve_model(name, registry, &status, "model_name", version);
    CHECK((found != nullptr) == status.ok());
    return status;
  }

  ModelRegistry registry;
  SharedModel found;
};

TEST_CASE("a name means its highest version, no name the only model") {
  ResolveFixture f;
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

TEST_CASE("an unknown name is refused with at most ten of those that there are") {
  ResolveFixture f;
  CHECK_THAT(f.resolved("nosuch").error_message(),
             Catch::EndsWith("no model is named nosuch: there is none"));
  for (char name = 'a'; name < 'a' + 10; ++name) f.registry.add(f.model(std::string(1, name), 1));
  CHECK_THAT(f.resolved("nosuch").error_message(),
             Catch::EndsWith("there are a, b, c, d, e, f, g, h, i, j"));
  f.registry.add(f.model("k", 1));
  f.registry.add(f.model("l", 1));
  CHECK_THAT(f.resolved("nosuch").error_message(), Catch::EndsWith(" i, j and 2 more"));
}

TEST_CASE("the refusal says whether a model is being loaded, being unloaded or not there") {
  ResolveFixture f;
  f.registry.set_loading("a", 1);
  const grpc::Status loading = f.resolved("a");
  CHECK(loading.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(detail_of<google::rpc::RetryInfo>(loading));
  f.registry.set_failed("a", 1, "it is broken");
  CHECK(f.resolved("a").error_code() == grpc::StatusCode::NOT_FOUND);
  f.registry.add(f.model("a", 1));
  CHECK(f.resolved("a").ok());
  f.registry.retire("a", std::nullopt);
  CHECK_THAT(f.resolved("a").error_message(), Catch::Contains("being unloaded"));
}

}  // namespace
}  // namespace lintel::testing
