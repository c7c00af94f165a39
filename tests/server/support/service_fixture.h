// SPDX-License-Identifier: Apache-2.0
// An in-process server with small random models, and what tests say to it over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "lintel/v1/generation.grpc.pb.h"
#include "lintel/v1/model.grpc.pb.h"
#include "lintel/v1/session.grpc.pb.h"
#include "server/app/lintel_server.h"
#include "tests/support/eventually.h"
#include "tests/support/manual_clock.h"
#include "tests/support/random_model.h"

namespace lintel::testing {

// Tiny models: "image", "bytes", "tokens", and "text", which is "bytes" with a trained_length
// of 32. Loaded once a process.
GivenModels tiny_models(const std::vector<std::string>& names);

// Port 0 of the loopback, two workers, no coalescing delay to wait for.
ServerOptions test_options();

class TestServer {
 public:
  explicit TestServer(const std::vector<std::string>& models = {"image", "bytes", "tokens"},
                      const ServerOptions& options = test_options());
  TestServer(const std::vector<std::string>& models, const ServerOptions& options,
             const Clock& clock);
  TestServer(const ServerOptions& options, const Clock& clock, const GivenModels& given);

  LintelServer& server() { return *server_; }
  Scheduler& scheduler(const std::string& model) { return server_->scheduler(model); }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  // Calls from now on go over a new channel with these credentials.
  void connect(std::shared_ptr<grpc::ChannelCredentials> credentials);

  std::unique_ptr<v1::GenerationService::Stub> generation;
  std::unique_ptr<v1::SessionService::Stub> sessions;
  std::unique_ptr<v1::ModelService::Stub> models;

 private:
  SteadyClock steady_clock_;
  std::unique_ptr<LintelServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// One sample, put together from the stream.
struct Sample {
  std::vector<std::int32_t> tokens;
  std::vector<float> log2_probs;
  std::vector<v1::ValueSource> sources;
  std::vector<v1::TopValues> top;
  std::int64_t first_position = -1;
  bool contiguous = true;  // every position is the one after the last
  int finishes = 0;
  bool token_after_finish = false;
  v1::SampleFinish finish;
};

struct Generated {
  std::map<unsigned, Sample> samples;
  std::vector<v1::GenerateResponse> messages;
  grpc::Status status;

  const Sample& only() const { return samples.at(0); }
};

void take_message(const v1::GenerateResponse& message, Generated& out);

// Runs a call to its end.
Generated generate(TestServer& server, const v1::GenerateRequest& request);

struct Scored {
  std::vector<v1::ScoreResponse> responses;
  grpc::Status status;
};
Scored score(TestServer& server, const v1::ScoreRequest& request);

// A request of `max_new_tokens` with seed 7 and these prompt tokens.
v1::GenerateRequest request_for(const std::string& model, const std::vector<int>& prompt,
                                unsigned max_new_tokens);

v1::Session create_session(TestServer& server, const std::string& model);

// The detail of type T in a status's google.rpc details; empty optional when there is none.
template <typename T>
std::optional<T> detail_of(const grpc::Status& status);

// Fields of the BadRequest in a status.
std::vector<std::string> violated_fields(const grpc::Status& status);

// Steps a scheduler without threads until nothing is left to do.
void run_until_idle(Scheduler& scheduler);

}  // namespace lintel::testing
