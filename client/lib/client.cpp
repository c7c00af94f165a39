#include "client/lib/client.h"

#include <stdexcept>
#include <utility>

#include "client/lib/address.h"
#include "client/lib/client_call.h"

namespace lintel {

Client::Client(const Options& options)
    : Client(make_channel(full_address(options.address), options.tls,
                          /*sends_token=*/!options.token.empty(),
                          options.proxy.empty() ? "" : proxy_address(options.proxy)),
             options.deadline, options.token) {
  retry_ = options.retry;
  address_ = full_address(options.address);
  encrypted_ = options.tls.enabled();
}

Client::Client(std::shared_ptr<grpc::ChannelInterface> channel, std::chrono::milliseconds deadline,
               std::string token)
    : stubs_(std::make_unique<Stubs>(channel)), deadline_(deadline), token_(std::move(token)) {
  if (deadline_.count() <= 0) throw std::invalid_argument("the deadline must be positive");
  for (const char c : token_) {  // gRPC ends the process for what a header cannot hold
    if (c <= ' ' || c > '~') throw std::invalid_argument("the token holds a space or is not ASCII");
  }
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

void Client::score(const v1::ScoreRequest& request, const OnScore& on_score,
                   Cancellation* cancellation) const {
  Call call(*this, cancellation);
  const auto open = [&](auto* context) { return stubs_->generation.Score(context, request); };
  std::uint32_t next = 0;
  call.stream<v1::ScoreResponse>(open, [&](const v1::ScoreResponse& response) {
    if (response.index() != next++) {
      throw CallError(grpc::StatusCode::INTERNAL, "the server's scores are out of order");
    }
    on_score(response);
  });
  if (next != static_cast<std::uint32_t>(request.sequences_size())) {
    throw CallError(grpc::StatusCode::INTERNAL,
                    "the stream ended before every sequence was scored");
  }
}

std::vector<v1::Model> Client::list_models(const v1::ListModelsRequest& request,
                                           Cancellation* cancellation) const {
  v1::ListModelsResponse response;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->models.List(context, request, &response); });
  return {std::make_move_iterator(response.mutable_models()->begin()),
          std::make_move_iterator(response.mutable_models()->end())};
}

std::vector<v1::Model> Client::list_models(Cancellation* cancellation) const {
  return list_models(v1::ListModelsRequest(), cancellation);
}

std::vector<v1::Model> Client::list_all_models(Cancellation* cancellation) const {
  v1::ListModelsRequest request;
  request.set_all(true);
  return list_models(request, cancellation);
}

v1::Model Client::get_model(const std::string& name, Cancellation* cancellation) const {
  v1::GetModelRequest request;
  request.set_name(name);
  v1::Model model;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->models.Get(context, request, &model); });
  return model;
}

v1::Model Client::load_model(const std::string& name, const std::string& version,
                             Cancellation* cancellation) const {
  v1::LoadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::Model model;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.LoadModel(context, request, &model); });
  return model;
}

void Client::unload_model(const std::string& name, const std::string& version,
                          Cancellation* cancellation) const {
  v1::UnloadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::UnloadModelResponse response;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.UnloadModel(context, request, &response); });
}

v1::Adapter Client::load_adapter(const std::string& name, const std::string& model,
                                 const std::string& model_version,
                                 Cancellation* cancellation) const {
  v1::LoadAdapterRequest request;
  request.set_name(name);
  request.set_model(model);
  request.set_model_version(model_version);
  v1::Adapter adapter;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.LoadAdapter(context, request, &adapter); });
  return adapter;
}

void Client::unload_adapter(const std::string& name, const std::string& model,
                            const std::string& model_version, Cancellation* cancellation) const {
  v1::UnloadAdapterRequest request;
  request.set_name(name);
  request.set_model(model);
  request.set_model_version(model_version);
  v1::UnloadAdapterResponse response;
  Call call(*this, cancellation);
  call.unary(
      [&](auto* context) { return stubs_->admin.UnloadAdapter(context, request, &response); });
}

std::string Client::log_level(Cancellation* cancellation) const {
  v1::LogLevel level;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.GetLogLevel(context, {}, &level); });
  return level.level();
}

std::string Client::set_log_level(const std::string& level, Cancellation* cancellation) const {
  v1::LogLevel wanted, set;
  wanted.set_level(level);
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->admin.SetLogLevel(context, wanted, &set); });
  return set.level();
}

bool Client::serving(const std::string& service, Cancellation* cancellation) const {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  Call call(*this, cancellation);
  call.unary([&](auto* context) { return stubs_->health.Check(context, request, &response); });
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

v1::Values token_values(std::span<const std::int32_t> ids) {
  v1::Values values;
  values.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return values;
}

v1::Values text_values(std::string_view bytes) {
  v1::Values values;
  values.set_text(std::string(bytes));
  return values;
}

v1::Values pixel_values(std::span<const std::uint8_t> pixels) {
  v1::Values values;
  values.set_pixels(pixels.data(), pixels.size());
  return values;
}

}  // namespace lintel
