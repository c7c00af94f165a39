// SPDX-License-Identifier: Apache-2.0
// Adapters of a server whose models come and go, and the calls about them.
#pragma once

#include <string>
#include <vector>

#include "model/lora/adapter.h"
#include "tests/server/support/repository_server.h"

namespace lintel::testing {

struct AdapterServer : RepositoryServer {
  using RepositoryServer::RepositoryServer;

  // Into the directory of a model of the repository, "second" or "second/1". Another seed is
  // another adapter.
  void write_adapter(const std::string& model, const std::string& name, std::uint64_t seed,
                     int rank = 2) const {
    write_random_adapter(directory.path() / model / "adapters" / name,
                         tiny_config(TinyModel::kTokens), {.rank = rank, .seed = seed});
  }

  grpc::Status load_adapter(const std::string& name, const std::string& model = "second",
                            v1::Adapter* adapter = nullptr) const {
    v1::LoadAdapterRequest request;
    request.set_model(model);
    request.set_name(name);
    v1::Adapter ignored;
    grpc::ClientContext context;
    return admin->LoadAdapter(&context, request, adapter == nullptr ? &ignored : adapter);
  }
  grpc::Status unload_adapter(const std::string& name, const std::string& model = "second") const {
    v1::UnloadAdapterRequest request;
    request.set_model(model);
    request.set_name(name);
    v1::UnloadAdapterResponse response;
    grpc::ClientContext context;
    return admin->UnloadAdapter(&context, request, &response);
  }
  grpc::Status create_session(const std::string& adapter, v1::Session* session) const {
    v1::CreateSessionRequest request;
    request.set_model("second");
    request.set_adapter(adapter);
    grpc::ClientContext context;
    return server->sessions->Create(&context, request, session);
  }

  v1::Model model(const std::string& name = "second") const {
    v1::GetModelRequest request;
    request.set_name(name);
    v1::Model model;
    grpc::ClientContext context;
    REQUIRE(server->models->Get(&context, request, &model).ok());
    return model;
  }
  std::vector<std::string> adapters() const {
    std::vector<std::string> names;
    const v1::Model described = model();
    for (const v1::Adapter& adapter : described.adapters()) names.push_back(adapter.name());
    return names;
  }

  static v1::GenerateRequest with_adapter(const std::string& adapter, unsigned count = 6) {
    v1::GenerateRequest request = request_for("second", {1, 2, 3}, count);
    request.set_adapter(adapter);
    request.set_log2_probs(true);
    return request;
  }
  Generated generate_with(const std::string& adapter, unsigned count = 6) const {
    return generate(*server, with_adapter(adapter, count));
  }
  // The results of a request with this adapter: bits that differ from those of others.
  std::vector<float> log2_probs_with(const std::string& adapter) const {
    const Generated out = generate_with(adapter);
    INFO(out.status.error_message());
    REQUIRE(out.status.ok());
    return out.only().log2_probs;
  }
};

}  // namespace lintel::testing
