// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/fake_server.h"

#include <condition_variable>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_sessions.h"

namespace lintel::testing {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 29)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 32);
}

std::vector<std::int32_t> ids_of(const v1::Values& values) {
  if (values.has_tokens()) return {values.tokens().ids().begin(), values.tokens().ids().end()};
  std::vector<std::int32_t> ids;
  for (const char byte : values.has_text() ? values.text() : values.pixels()) {
    ids.push_back(static_cast<unsigned char>(byte));
  }
  return ids;
}

}  // namespace

std::int32_t fake_token(std::uint64_t seed, std::int64_t position, std::int32_t vocab_size) {
  return static_cast<std::int32_t>(mix(seed * 1000003 + static_cast<std::uint64_t>(position) + 1) %
                                   static_cast<std::uint64_t>(vocab_size));
}

float fake_log2_prob(std::uint64_t seed, std::int64_t position) {
  return -static_cast<float>(fake_token(seed, position, 1000003)) / 77777.0f;
}

struct FakeServer::Services {
  explicit Services(FakeServer& fake)
      : generation(fake, *this),
        sessions([this](const auto& context, const auto& model) { note(context, model); },
                 fake.failure, fake.end_early, fake.session),
        models(fake, *this),
        admin(*this),
        health(fake, *this) {}

  void note(const grpc::ServerContext& context, const std::string& model = "") {
    const std::lock_guard lock(mutex);
    last_deadline = context.deadline();
    const auto sent = [&context](const char* header) {
      const auto found = context.client_metadata().find(header);
      if (found == context.client_metadata().end()) return std::string();
      return std::string(found->second.data(), found->second.size());
    };
    seen = {model, sent("authorization"), sent("lintel-affinity")};
  }

  grpc::Status wait_for_cancellation(grpc::ServerContext& context) {
    std::unique_lock lock(mutex);
    hanging = true;
    changed.notify_all();
    while (!context.IsCancelled()) changed.wait_for(lock, std::chrono::milliseconds(2));
    saw_cancellation = true;
    changed.notify_all();
    return grpc::Status::CANCELLED;
  }

  struct Generation : v1::GenerationService::Service {
    Generation(FakeServer& f, Services& s) : fake(f), services(s) {}

    grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                          grpc::ServerWriter<v1::GenerateResponse>* writer) override {
      services.note(*context, request->model());
      bool hangs = fake.hang;
      {
        const std::lock_guard lock(services.mutex);
        services.generate_requests.push_back(*request);
        if (fake.failure) return *fake.failure;
        if (!fake.refusals.empty()) {
          const grpc::Status refusal = fake.refusals.front();
          fake.refusals.pop_front();
          return refusal;
        }
        if (fake.full_for_calls > 0 && fake.full_for_calls-- > 0) return full();
        if (hangs && fake.finish_before_hanging-- > 0) hangs = false;
      }
      const std::uint32_t samples = request->has_num_samples() ? request->num_samples() : 1;
      for (std::uint32_t i = 0; i < samples; ++i) {
        if (fake.end_early && i + 1 == samples) return grpc::Status::OK;
        one_sample(*request, i, hangs, *writer);
        if (hangs) return services.wait_for_cancellation(*context);
      }
      return grpc::Status::OK;
    }

    static grpc::Status full() {
      return detailed_status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", "", "",
                             std::chrono::milliseconds(1));
    }

    void one_sample(const v1::GenerateRequest& request, std::uint32_t sample, bool hangs,
                    grpc::ServerWriter<v1::GenerateResponse>& writer) {
      std::vector<std::int32_t> prompt = ids_of(request.prompt());
      if (prompt.empty()) prompt.push_back(fake.model.image().start_token());
      const std::uint64_t seed = request.sampling().seed() + sample;
      std::map<std::int64_t, std::int32_t> given;
      for (const v1::GivenSpan& span : request.given()) {
        std::int64_t position = span.position();
        for (const std::int32_t id : ids_of(span.values())) given[position++] = id;
      }
      auto position = static_cast<std::int64_t>(prompt.size());
      if (request.echo_prompt()) {
        send(writer, request, sample, 0, v1::VALUE_SOURCE_PROMPT, prompt[0], false, seed);
        for (std::int64_t i = 1; i < position; ++i) {
          send(writer, request, sample, i, v1::VALUE_SOURCE_PROMPT,
               prompt[static_cast<std::size_t>(i)], true, seed);
        }
      }
      std::uint32_t given_count = 0;
      int sent = 0;
      const std::uint32_t wanted = request.has_max_new_tokens() ? request.max_new_tokens() : 10;
      for (std::uint32_t i = 0; i < wanted; ++i, ++position) {
        const auto known = given.find(position);
        const bool is_given = known != given.end();
        given_count += is_given;
        std::int32_t token =
            is_given ? known->second
                     : fake_token(seed, position, static_cast<int>(fake.model.vocab_size()));
        if (i == 0 && fake.first_token >= 0) token = fake.first_token;
        if (position < request.from_position()) continue;
        send(writer, request, sample, position,
             is_given ? v1::VALUE_SOURCE_GIVEN : v1::VALUE_SOURCE_SAMPLED, token, true, seed);
        if (hangs && ++sent == fake.values_before_hanging) break;
      }
      if (hangs && !fake.end_before_hanging) return;
      v1::GenerateResponse last;
      v1::SampleFinish& finish = *last.add_finished();
      finish.set_sample(sample);
      finish.set_reason(fake.finish_reason);
      finish.set_prompt_tokens(static_cast<std::uint32_t>(prompt.size()));
      finish.set_generated_tokens(wanted);
      finish.set_given_tokens(given_count);
      finish.set_seed(seed);
      finish.set_position(position);
      finish.set_window(fake.window);
      finish.set_window_restarts(fake.window_restarts);
      finish.mutable_timings()->mutable_generation()->set_nanos(250'000'000);
      writer.Write(last);
    }

    static void send(grpc::ServerWriter<v1::GenerateResponse>& writer,
                     const v1::GenerateRequest& request, std::uint32_t sample,
                     std::int64_t position, v1::ValueSource source, std::int32_t token,
                     bool has_probability, std::uint64_t seed) {
      v1::GenerateResponse response;
      v1::Chunk& chunk = *response.add_chunks();
      chunk.set_sample(sample);
      chunk.set_first_position(position);
      chunk.set_source(source);
      chunk.add_tokens(token);
      if (request.log2_probs() && has_probability) {
        chunk.add_log2_probs(fake_log2_prob(seed, position));
        if (request.top_log2_probs() > 0) {
          v1::TopValues& top = *chunk.add_top();
          top.add_tokens(token);
          top.add_log2_probs(-0.5f);
        }
      }
      writer.Write(response);
    }

    grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                       grpc::ServerWriter<v1::ScoreResponse>* writer) override {
      services.note(*context, request->model());
      {
        const std::lock_guard lock(services.mutex);
        services.score_requests.push_back(*request);
        if (fake.failure) return *fake.failure;
        if (fake.full_for_calls > 0 && fake.full_for_calls-- > 0) return full();
      }
      for (int i = 0; i < request->sequences_size(); ++i) {  // one bad id: nothing is scored
        for (const std::int32_t id : ids_of(request->sequences(i))) {
          if (id >= 0 && id < static_cast<std::int32_t>(fake.model.vocab_size())) continue;
          return detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "bad request",
                                 "sequences[" + std::to_string(i) + "].tokens.ids[0]");
        }
      }
      for (int i = 0; i < request->sequences_size(); ++i) {
        if (fake.end_early && i + 1 == request->sequences_size()) break;
        v1::ScoreResponse score;
        score.set_index(static_cast<std::uint32_t>(i));
        double sum = 0;
        const auto ids = ids_of(request->sequences(i));
        for (std::size_t p = 1; p < ids.size(); ++p) {
          const float log2_prob =
              fake_log2_prob(static_cast<std::uint64_t>(ids[p]), static_cast<std::int64_t>(p));
          score.add_log2_probs(log2_prob);
          sum += log2_prob;
        }
        score.set_bits_per_dim(-sum / static_cast<double>(score.log2_probs_size()));
        writer->Write(score);
      }
      return grpc::Status::OK;
    }

    FakeServer& fake;
    Services& services;
  };

  struct Models : v1::ModelService::Service {
    Models(FakeServer& f, Services& s) : fake(f), services(s) {}
    grpc::Status List(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                      v1::ListModelsResponse* reply) override {
      services.note(*context);
      *reply->add_models() = fake.model;
      for (const v1::Model& other : fake.others) *reply->add_models() = other;
      if (request->all()) {
        for (const v1::Model& other : fake.unloaded) *reply->add_models() = other;
      }
      return fake.failure.value_or(grpc::Status::OK);
    }
    grpc::Status Get(grpc::ServerContext* context, const v1::GetModelRequest* request,
                     v1::Model* reply) override {
      services.note(*context, request->name());
      for (const v1::Model& other : fake.unloaded) {
        if (other.name() != request->name()) continue;
        return detailed_status(grpc::StatusCode::NOT_FOUND, "no model is named " + other.name(), "",
                               other.name(), std::nullopt, "", "model");
      }
      *reply = fake.model;
      if (fake.others.empty()) return grpc::Status::OK;
      for (const v1::Model& other : fake.others) {
        if (other.name() == request->name()) *reply = other;
      }
      if (!request->name().empty()) return grpc::Status::OK;
      return detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "name: several models are loaded",
                             "name", "", std::nullopt, "several models are loaded, name one");
    }
    // A token is a byte.
    grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                          v1::TokenizeResponse* reply) override {
      services.note(*context, request->model());
      if (request->add_special()) reply->add_ids(1000);
      if (request->parse_special()) reply->add_ids(1001);
      for (const char c : request->text()) reply->add_ids(static_cast<unsigned char>(c));
      return fake.failure.value_or(grpc::Status::OK);
    }
    grpc::Status Detokenize(grpc::ServerContext* context, const v1::DetokenizeRequest* request,
                            v1::DetokenizeResponse* reply) override {
      services.note(*context, request->model());
      for (const std::int32_t id : request->ids()) *reply->mutable_text() += static_cast<char>(id);
      return fake.failure.value_or(grpc::Status::OK);
    }
    FakeServer& fake;
    Services& services;
  };

  struct Admin : v1::AdminService::Service {
    explicit Admin(Services& s) : services(s) {}
    grpc::Status LoadModel(grpc::ServerContext* context, const v1::LoadModelRequest*,
                           v1::Model*) override {
      services.note(*context);
      return grpc::Status::OK;
    }
    grpc::Status UnloadModel(grpc::ServerContext* context, const v1::UnloadModelRequest*,
                             v1::UnloadModelResponse*) override {
      services.note(*context);
      return grpc::Status::OK;
    }
    grpc::Status LoadAdapter(grpc::ServerContext* context, const v1::LoadAdapterRequest* request,
                             v1::Adapter* reply) override {
      services.note(*context, request->model());
      reply->set_name(request->name());
      reply->set_rank(8);
      return grpc::Status::OK;
    }
    grpc::Status UnloadAdapter(grpc::ServerContext* context,
                               const v1::UnloadAdapterRequest* request,
                               v1::UnloadAdapterResponse*) override {
      services.note(*context, request->model());
      return grpc::Status::OK;
    }
    grpc::Status GetLogLevel(grpc::ServerContext* context, const v1::GetLogLevelRequest*,
                             v1::LogLevel*) override {
      services.note(*context);
      return grpc::Status::OK;
    }
    Services& services;
  };

  struct HealthService : grpc::health::v1::Health::Service {
    HealthService(FakeServer& f, Services& s) : fake(f), services(s) {}
    grpc::Status Check(grpc::ServerContext* context,
                       const grpc::health::v1::HealthCheckRequest* request,
                       grpc::health::v1::HealthCheckResponse* reply) override {
      services.note(*context);
      if (fake.hang_health) return services.wait_for_cancellation(*context);
      if (request->service() == "unknown") return {grpc::StatusCode::NOT_FOUND, "no such service"};
      reply->set_status(fake.serving ? grpc::health::v1::HealthCheckResponse::SERVING
                                     : grpc::health::v1::HealthCheckResponse::NOT_SERVING);
      return grpc::Status::OK;
    }
    FakeServer& fake;
    Services& services;
  };

  Generation generation;
  FakeSessions sessions;
  Models models;
  Admin admin;
  HealthService health;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<v1::GenerateRequest> generate_requests;
  std::vector<v1::ScoreRequest> score_requests;
  std::chrono::system_clock::time_point last_deadline;
  Seen seen;
  bool hanging = false;
  bool saw_cancellation = false;
};

FakeServer::FakeServer() : services_(std::make_unique<Services>(*this)) {
  model.set_name("tiny");
  model.set_modality("image");
  model.mutable_image()->set_height(6);
  model.mutable_image()->set_width(5);
  model.mutable_image()->set_channels(1);
  model.mutable_image()->set_start_token(0);
  model.set_vocab_size(256);
  model.set_max_length(29);
  model.set_config_json("{\n  \"format_version\": 1\n}");
  model.mutable_limits()->set_max_samples(3);
  restart();
}

FakeServer::~FakeServer() { stop(); }

void FakeServer::stop() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

void FakeServer::restart() {
  stop();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&services_->generation);
  builder.RegisterService(&services_->sessions);
  builder.RegisterService(&services_->models);
  builder.RegisterService(&services_->admin);
  builder.RegisterService(&services_->health);
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

Client FakeServer::client(std::chrono::milliseconds deadline) const {
  return Client({.address = address_, .deadline = deadline});
}

std::vector<v1::GenerateRequest> FakeServer::generate_requests() const {
  const std::lock_guard lock(services_->mutex);
  return services_->generate_requests;
}

std::vector<v1::ScoreRequest> FakeServer::score_requests() const {
  const std::lock_guard lock(services_->mutex);
  return services_->score_requests;
}

std::vector<std::string> FakeServer::copy_requests() const {
  return services_->sessions.requests();
}

int FakeServer::session_gets() const { return services_->sessions.gets(); }

std::chrono::system_clock::time_point FakeServer::last_deadline() const {
  const std::lock_guard lock(services_->mutex);
  return services_->last_deadline;
}

FakeServer::Seen FakeServer::last_seen() const {
  const std::lock_guard lock(services_->mutex);
  return services_->seen;
}

void FakeServer::wait_until_hanging() {
  std::unique_lock lock(services_->mutex);
  services_->changed.wait(lock, [this] { return services_->hanging; });
}

void FakeServer::wait_until_cancelled() {
  std::unique_lock lock(services_->mutex);
  services_->changed.wait(lock, [this] { return services_->saw_cancellation; });
}

}  // namespace lintel::testing
