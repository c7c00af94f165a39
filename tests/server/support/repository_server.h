// SPDX-License-Identifier: Apache-2.0
// A server whose models come and go while it runs.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lintel/v1/admin.grpc.pb.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// A server with the model "tokens", and a repository from which others are loaded.
struct RepositoryServer {
  explicit RepositoryServer(const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {
  }) {
    ServerOptions options = test_options();
    options.models.repository = directory.path();
    options.models.drain_timeout_ms = std::chrono::minutes(10);
    change(options);
    server = std::make_unique<TestServer>(std::vector<std::string>{"tokens"}, options);
    admin = v1::AdminService::NewStub(server->channel());
  }

  // Writes the model into the repository. Another seed is another model.
  void write(const std::string& path, TinyModel kind = TinyModel::kTokens,
             std::uint64_t seed = 5) const {
    std::filesystem::create_directories((directory.path() / path).parent_path());
    write_random_model(directory.path() / path, tiny_config(kind), seed);
  }
  void spoil(const std::string& file, std::size_t size) const {
    std::filesystem::resize_file(directory.path() / file, size);
  }

  grpc::Status load(const std::string& name, const std::string& version = "",
                    v1::Model* model = nullptr) const {
    v1::LoadModelRequest request;
    request.set_name(name);
    request.set_version(version);
    v1::Model ignored;
    grpc::ClientContext context;
    return admin->LoadModel(&context, request, model == nullptr ? &ignored : model);
  }
  grpc::Status unload(const std::string& name, const std::string& version = "") const {
    v1::UnloadModelRequest request;
    request.set_name(name);
    request.set_version(version);
    v1::UnloadModelResponse response;
    grpc::ClientContext context;
    return admin->UnloadModel(&context, request, &response);
  }

  // "NAME VERSION STATE" of each, in order.
  std::vector<std::string> listed(bool all) const {
    v1::ListModelsRequest request;
    request.set_all(all);
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    REQUIRE(server->models->List(&context, request, &response).ok());
    std::vector<std::string> out;
    for (const v1::Model& model : response.models()) {
      out.push_back(model.name() + " " + model.version() + " " +
                    v1::ModelState_Name(model.state()).substr(sizeof("MODEL_STATE_") - 1));
    }
    return out;
  }
  std::string reason(const std::string& name) const {
    v1::ListModelsRequest request;
    request.set_all(true);
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    REQUIRE(server->models->List(&context, request, &response).ok());
    for (const v1::Model& model : response.models()) {
      if (model.name() == name) return model.reason();
    }
    return "no such entry";
  }
  std::string health(const std::string& name) const {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service("model/" + name);
    grpc::health::v1::HealthCheckResponse response;
    grpc::ClientContext context;
    const auto stub = grpc::health::v1::Health::NewStub(server->channel());
    const grpc::Status status = stub->Check(&context, request, &response);
    if (!status.ok()) return "unknown";
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING ? "serving"
                                                                               : "not serving";
  }
  std::vector<int> tokens(const std::string& model, unsigned count = 6) const {
    const Generated out = generate(*server, request_for(model, {1, 2, 3}, count));
    INFO(out.status.error_message());
    REQUIRE(out.status.ok());
    return {out.only().tokens.begin(), out.only().tokens.end()};
  }

  const TemporaryDirectory directory;
  std::unique_ptr<TestServer> server;
  std::unique_ptr<v1::AdminService::Stub> admin;
};

// A stream that runs until a test ends it; made when its first message has come.
struct RunningStream {
  RunningStream(TestServer& server, v1::GenerateRequest request) {
    request.set_max_new_tokens(1'000'000);
    reader = server.generation->Generate(&context, request);
    v1::GenerateResponse message;
    REQUIRE(reader->Read(&message));
  }
  grpc::Status end() {
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      for (const auto& finish : message.finished()) last = finish;
    }
    return reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  v1::SampleFinish last;
};

}  // namespace lintel::testing
