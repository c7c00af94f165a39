// SPDX-License-Identifier: Apache-2.0
// The token a client was made with goes with its calls.
#include <grpcpp/grpcpp.h>

#include "client/lib/client.h"
#include "lintel/v1/model.grpc.pb.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Remembers the authorization of every call, one entry a header.
class Doorman final : public v1::ModelService::Service {
 public:
  Doorman() {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  Client client(const std::string& token) const {
    return Client(server_->InProcessChannel({}), std::chrono::seconds(20), token);
  }
  grpc::Status List(grpc::ServerContext* call, const v1::ListModelsRequest*,
                    v1::ListModelsResponse*) override {
    const auto [first, last] = call->client_metadata().equal_range("authorization");
    for (auto header = first; header != last; ++header) {
      seen.emplace_back(header->second.data(), header->second.size());
    }
    return grpc::Status::OK;
  }

  std::vector<std::string> seen;

 private:
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("a client with a token sends it with every call, and one without sends none") {
  Doorman doorman;
  const Client with = doorman.client("a-token");
  with.list_models();
  with.list_models();
  doorman.client("").list_models();
  CHECK(doorman.seen == std::vector<std::string>{"Bearer a-token", "Bearer a-token"});
}

}  // namespace
}  // namespace lintel::testing
