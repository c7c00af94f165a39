// SPDX-License-Identifier: Apache-2.0
// ModelService lists the models and their statistics.
#include "model/numerics_fingerprint.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

grpc::Status get_model(TestServer& server, const std::string& name, v1::Model* model) {
  v1::GetModelRequest request;
  request.set_name(name);
  grpc::ClientContext context;
  return server.models->Get(&context, request, model);
}

TEST_CASE("models are listed by name") {
  TestServer server({"tokens", "image", "bytes"});
  v1::ListModelsResponse response;
  grpc::ClientContext context;
  REQUIRE(server.models->List(&context, v1::ListModelsRequest(), &response).ok());
  REQUIRE(response.models_size() == 3);
  CHECK(response.models(0).name() == "bytes");
  CHECK(response.models(1).name() == "image");
  CHECK(response.models(2).name() == "tokens");
}

TEST_CASE("a model has its shape, size, limits and fingerprint") {
  ServerOptions options = test_options();
  options.models.limits.max_prompt_tokens = 1234;
  options.models.limits.max_samples = 1000;
  options.models.scheduling.max_batch_rows = 16;
  options.models.scheduling.prefill_rows_per_step = 16;
  TestServer server({"image"}, options);
  const Transformer& transformer = *tiny_models({"image"}).at("image");
  v1::Model model;
  REQUIRE(get_model(server, "", &model).ok());
  CHECK(model.name() == "image");
  CHECK(model.config_json() == transformer.config_json());
  CHECK(model.modality() == "image");
  CHECK(model.image().height() == 6);
  CHECK(model.image().width() == 5);
  CHECK(model.image().channels() == 1);
  CHECK(model.image().start_token() == 0);
  CHECK(model.head() == "mixture_of_logistics");
  CHECK(model.attention() == "linear");
  CHECK(model.vocab_size() == 256);
  CHECK(model.max_length() == 29);
  CHECK(model.parameters() == transformer.num_parameters());
  CHECK(model.weight_type() == "f32");
  CHECK(model.kernels() == transformer.kernels());
  CHECK_FALSE(model.kernels().empty());
  CHECK(model.weight_bytes() > 0);
  CHECK(model.state_bytes() == static_cast<std::int64_t>(transformer.state_bytes(29)));
  CHECK(model.constant_state());
  CHECK(model.fingerprint() == transformer.fingerprint());
  CHECK(model.fingerprint().size() == 64);
  CHECK(model.numerics() == numerics_of(transformer).hex);
  CHECK(model.numerics().size() == 64);
  CHECK(model.numerics_text() == numerics_of(transformer).text);
  CHECK(model.workers() == 2);
  CHECK(model.max_batch_rows() == 16);
  CHECK(model.prompt_rows() == 16);
  CHECK(model.state_bytes_per_value() == 0);
  CHECK(model.limits().max_prompt_tokens() == 1234);
  CHECK(model.limits().max_samples() == 16);
  CHECK(model.limits().max_stop_string_bytes() == 256);
  CHECK(model.limits().max_score_tokens() == 1'000'000);
}

TEST_CASE("statistics report tokens, sessions, memory and time") {
  ServerOptions options = test_options();
  options.sessions.session_memory_bytes = std::size_t{1} << 30;
  TestServer server({"tokens", "image"}, options);
  const auto statistics = [&] {
    v1::StatisticsResponse response;
    grpc::ClientContext context;
    REQUIRE(server.models->Statistics(&context, v1::StatisticsRequest(), &response).ok());
    return response;
  };
  const v1::StatisticsResponse before = statistics();
  REQUIRE(before.models_size() == 2);
  CHECK(before.models(0).name() == "image");
  CHECK(before.models(1).name() == "tokens");
  CHECK(before.models(1).generated_tokens() == 0);
  CHECK(before.models(1).requests() == 0);
  CHECK(before.models(1).workers() == 2);
  CHECK(before.idle_sessions() + before.busy_sessions() == 0);
  CHECK(before.session_bytes() == 0);
  CHECK(before.session_memory() ==
        static_cast<std::int64_t>(options.sessions.session_memory_bytes));
  CHECK(before.model_memory() == 0);
  CHECK_FALSE(before.version().empty());

  v1::GenerateRequest request = request_for("tokens", {1, 2, 3}, 5);
  request.set_session_id(create_session(server, "tokens").id());
  REQUIRE(generate(server, request).status.ok());

  const v1::StatisticsResponse after = statistics();
  CHECK(after.models(1).prompt_tokens() == 3);
  CHECK(after.models(1).generated_tokens() == 5);
  CHECK(after.models(1).requests() == 1);
  CHECK(after.models(0).generated_tokens() == 0);
  CHECK(after.idle_sessions() == 1);
  CHECK(after.session_bytes() > 0);
}

TEST_CASE("a model has the room that sessions of it have in memory") {
  ServerOptions options = test_options();
  options.sessions.session_memory_bytes = std::size_t{1} << 20;
  TestServer server({"tokens", "image"}, options);
  const auto model = [&](const std::string& name) {
    v1::Model found;
    REQUIRE(get_model(server, name, &found).ok());
    return found;
  };
  const v1::Model tokens = model("tokens");  // without an end, in a constant state
  CHECK(tokens.room_session_tokens() == 0);
  CHECK(tokens.room_tokens() == 0);
  // The server creates as many sessions as it names, and not one more.
  for (std::int64_t i = 0; i < tokens.room_sessions(); ++i) create_session(server, "tokens");
  v1::Session session;
  v1::CreateSessionRequest request;
  request.set_model("tokens");
  grpc::ClientContext context;
  CHECK(server.sessions->Create(&context, request, &session).error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
  const v1::Model image = model("image");
  CHECK(image.room_sessions() > 0);
  CHECK(image.room_session_tokens() == image.max_length() + 1);
  CHECK(image.room_tokens() == image.room_session_tokens());
}

TEST_CASE("the plan of the memory decides what sessions have, and a model's room") {
  ServerOptions options = test_options();
  options.memory_limit_bytes = std::size_t{512} << 20;
  TestServer server({"tokens"}, options);
  v1::StatisticsResponse statistics;
  grpc::ClientContext context;
  REQUIRE(server.models->Statistics(&context, v1::StatisticsRequest(), &statistics).ok());
  CHECK(statistics.session_memory() >= 64 << 20);
  CHECK(statistics.session_memory() < 300 << 20);
  v1::Model model;
  REQUIRE(get_model(server, "tokens", &model).ok());
  CHECK(model.room_sessions() > 0);
  CHECK(model.room_sessions() < statistics.session_memory() / 1024);
}

TEST_CASE("a model that is not loaded is not found") {
  TestServer server;
  v1::Model model;
  const grpc::Status status = get_model(server, "nosuch", &model);
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(detail_of<google::rpc::ResourceInfo>(status)->resource_name() == "nosuch");
  CHECK(violated_fields(get_model(server, "", &model)) == std::vector<std::string>{"name"});
}

}  // namespace
}  // namespace lintel::testing
