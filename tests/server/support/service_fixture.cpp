// SPDX-License-Identifier: Apache-2.0
#include "tests/server/support/service_fixture.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>

#include "google/rpc/status.pb.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

struct TinyModels {
  TinyModels() {
    const std::pair<const char*, TinyModel> kinds[] = {{"image", TinyModel::kImage},
                                                       {"bytes", TinyModel::kBytes},
                                                       {"text", TinyModel::kText},
                                                       {"tokens", TinyModel::kTokens}};
    for (const auto& [name, kind] : kinds) {
      write_random_model(directory.path() / name, tiny_config(kind), /*seed=*/11);
      loaded[name] = Transformer::load(directory.path() / name, Transformer::Options{});
    }
  }

  TemporaryDirectory directory;
  GivenModels loaded;
};

}  // namespace

GivenModels tiny_models(const std::vector<std::string>& names) {
  static const TinyModels models;
  GivenModels out;
  for (const std::string& name : names) out[name] = models.loaded.at(name);
  return out;
}

ServerOptions test_options() {
  ServerOptions options;
  options.listen.port = 0;
  options.models.scheduling.workers = 2;
  const char* const speculation = std::getenv("LINTEL_TEST_SPECULATION");
  if (speculation != nullptr && std::string(speculation) == "on") {
    options.models.scheduling.speculation = Speculation::kOn;
  }
  options.streaming.chunk_interval_ms = std::chrono::milliseconds(0);
  return options;
}

TestServer::TestServer(const std::vector<std::string>& names, const ServerOptions& options)
    : TestServer(names, options, steady_clock_) {}

TestServer::TestServer(const std::vector<std::string>& names, const ServerOptions& options,
                       const Clock& clock)
    : TestServer(options, clock, tiny_models(names)) {}

TestServer::TestServer(const ServerOptions& options, const Clock& clock, const GivenModels& given)
    : server_(std::make_unique<LintelServer>(options, clock, given)) {
  signal(SIGPIPE, SIG_IGN);  // as the program does
  server_->start();
  connect(grpc::InsecureChannelCredentials());
}

void TestServer::connect(std::shared_ptr<grpc::ChannelCredentials> credentials) {
  channel_ = grpc::CreateChannel(server_->address(), std::move(credentials));
  generation = v1::GenerationService::NewStub(channel_);
  sessions = v1::SessionService::NewStub(channel_);
  models = v1::ModelService::NewStub(channel_);
}

void take_message(const v1::GenerateResponse& message, Generated& out) {
  for (const v1::Chunk& chunk : message.chunks()) {
    Sample& sample = out.samples[chunk.sample()];
    if (sample.finishes > 0) sample.token_after_finish = true;
    if (sample.first_position < 0) sample.first_position = chunk.first_position();
    const auto next = sample.first_position + static_cast<std::int64_t>(sample.tokens.size());
    if (chunk.first_position() != next) sample.contiguous = false;
    sample.tokens.insert(sample.tokens.end(), chunk.tokens().begin(), chunk.tokens().end());
    sample.log2_probs.insert(sample.log2_probs.end(), chunk.log2_probs().begin(),
                             chunk.log2_probs().end());
    sample.sources.insert(sample.sources.end(), static_cast<std::size_t>(chunk.tokens_size()),
                          chunk.source());
    sample.top.insert(sample.top.end(), chunk.top().begin(), chunk.top().end());
  }
  for (const v1::SampleFinish& finish : message.finished()) {
    Sample& sample = out.samples[finish.sample()];
    ++sample.finishes;
    sample.finish = finish;
  }
  out.messages.push_back(message);
}

Generated generate(TestServer& server, const v1::GenerateRequest& request) {
  Generated out;
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) take_message(message, out);
  out.status = reader->Finish();
  return out;
}

Scored score(TestServer& server, const v1::ScoreRequest& request) {
  Scored out;
  grpc::ClientContext context;
  const auto reader = server.generation->Score(&context, request);
  v1::ScoreResponse message;
  while (reader->Read(&message)) out.responses.push_back(message);
  out.status = reader->Finish();
  return out;
}

v1::GenerateRequest request_for(const std::string& model, const std::vector<int>& prompt,
                                unsigned max_new_tokens) {
  v1::GenerateRequest request;
  request.set_model(model);
  for (const int token : prompt) request.mutable_prompt()->mutable_tokens()->add_ids(token);
  request.set_max_new_tokens(max_new_tokens);
  request.mutable_sampling()->set_seed(7);
  return request;
}

v1::Session create_session(TestServer& server, const std::string& model) {
  v1::CreateSessionRequest request;
  request.set_model(model);
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Create(&context, request, &session);
  if (!status.ok()) throw std::runtime_error("Create: " + status.error_message());
  return session;
}

template <typename T>
std::optional<T> detail_of(const grpc::Status& status) {
  google::rpc::Status wire;
  if (!wire.ParseFromString(status.error_details())) return std::nullopt;
  if (wire.code() != status.error_code() || wire.message() != status.error_message()) {
    return std::nullopt;
  }
  for (const auto& any : wire.details()) {
    T detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

template std::optional<google::rpc::BadRequest> detail_of(const grpc::Status&);
template std::optional<google::rpc::ResourceInfo> detail_of(const grpc::Status&);
template std::optional<google::rpc::RetryInfo> detail_of(const grpc::Status&);
template std::optional<google::rpc::PreconditionFailure> detail_of(const grpc::Status&);
template std::optional<google::rpc::QuotaFailure> detail_of(const grpc::Status&);
template std::optional<google::rpc::ErrorInfo> detail_of(const grpc::Status&);

std::vector<std::string> violated_fields(const grpc::Status& status) {
  std::vector<std::string> fields;
  if (const auto bad = detail_of<google::rpc::BadRequest>(status)) {
    for (const auto& violation : bad->field_violations()) fields.push_back(violation.field());
  }
  return fields;
}

void run_until_idle(Scheduler& scheduler) {
  while (!scheduler.idle()) scheduler.run_one_step();
}

}  // namespace lintel::testing
