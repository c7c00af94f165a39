// SPDX-License-Identifier: Apache-2.0
// Metrics of models and adapters that come and go.
#include "lintel/v1/admin.grpc.pb.h"
#include "model/lora/adapter.h"
#include "tests/server/support/metrics_page.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

TEST_CASE("the counters of a model continue when it is reloaded, and stay when it is unloaded") {
  const TemporaryDirectory repository;
  write_random_model(repository.path() / "second", tiny_config(TinyModel::kTokens), 5);
  ServerOptions options = with_metrics();
  options.models.repository = repository.path();
  options.models.memory_bytes = std::size_t{1} << 30;
  TestServer server({"tokens"}, options);
  const auto admin = v1::AdminService::NewStub(server.channel());
  const auto load = [&] {
    v1::LoadModelRequest request;
    request.set_name("second");
    v1::Model model;
    grpc::ClientContext context;
    REQUIRE(admin->LoadModel(&context, request, &model).ok());
  };
  const std::string generated = R"(lintel_tokens_total{model="second",kind="generated"})";
  const std::string memory = "lintel_model_memory_bytes";
  const auto count_of_info = [&] {
    int count = 0;
    for (const auto& [name, value] : values(server.server())) {
      count += name.rfind(R"(lintel_model_info{model="second")", 0) == 0;
    }
    return count;
  };
  CHECK(values(server.server()).at(memory) == 0);  // models from tests are not measured
  CHECK(values(server.server()).at("lintel_model_memory_limit_bytes") == 1 << 30);
  load();
  const double used = values(server.server()).at(memory);
  CHECK(used > 0);
  CHECK(count_of_info() == 1);
  REQUIRE(generate(server, request_for("second", {1, 2, 3}, 7)).status.ok());
  CHECK(values(server.server()).at(generated) == 7);
  load();
  CHECK(count_of_info() == 1);
  REQUIRE(generate(server, request_for("second", {1, 2, 3}, 5)).status.ok());
  CHECK(values(server.server()).at(generated) == 12);
  CHECK(comes_to(server, memory, used));  // once the old one is gone
  v1::UnloadModelRequest request;
  request.set_name("second");
  v1::UnloadModelResponse response;
  grpc::ClientContext context;
  REQUIRE(admin->UnloadModel(&context, request, &response).ok());
  const auto ended = [](const std::string& method) {
    return "lintel_requests_total{method=\"lintel.v1.AdminService/" + method +
           R"(",code="OK",model="second"})";
  };
  CHECK(comes_to(server, ended("LoadModel"), 2));
  CHECK(comes_to(server, ended("UnloadModel"), 1));
  auto now = values(server.server());
  CHECK(now.at(generated) == 12);
  CHECK(now.at(R"(lintel_workers{model="second"})") == 0);
  CHECK(now.at(R"(lintel_model_weight_bytes{model="second"})") == 0);
  CHECK(now.at(memory) == 0);
  CHECK(count_of_info() == 0);
}

TEST_CASE("adapters have their memory, by the names an operator gave them") {
  const TemporaryDirectory repository;
  write_random_model(repository.path() / "second", tiny_config(TinyModel::kTokens), 5);
  write_random_adapter(repository.path() / "second/adapters/thin", tiny_config(TinyModel::kTokens));
  ServerOptions options = with_metrics();
  options.models.repository = repository.path();
  options.models.load = {"second"};
  TestServer server({"tokens"}, options);
  const std::string bytes =
      R"(lintel_adapter_bytes{model="second",model_version="1",adapter="thin"})";
  const double weights = values(server.server()).at(bytes);
  CHECK(weights > 0);
  const double memory = values(server.server()).at("lintel_model_memory_bytes");
  CHECK(memory > weights);
  int infos = 0;
  for (const auto& [name, value] : values(server.server())) {
    infos += name.rfind(R"(lintel_adapter_info{model="second",model_version="1",adapter="thin")",
                        0) == 0;
  }
  CHECK(infos == 1);
  v1::GenerateRequest request = request_for("second", {1}, 1);
  request.set_adapter("nosuch");  // a request's text is no label
  CHECK_FALSE(generate(server, request).status.ok());
  CHECK(get(server.server(), "/metrics").body.find("nosuch") == std::string::npos);

  v1::UnloadAdapterRequest unload;
  unload.set_model("second");
  unload.set_name("thin");
  v1::UnloadAdapterResponse response;
  grpc::ClientContext context;
  const auto admin = v1::AdminService::NewStub(server.channel());
  REQUIRE(admin->UnloadAdapter(&context, unload, &response).ok());
  CHECK_FALSE(values(server.server()).contains(bytes));
  CHECK(values(server.server()).at("lintel_model_memory_bytes") == memory - weights);
}

}  // namespace lintel::testing
