#include "client/lib/client.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "client/lib/address.h"
#include "client/lib/client_call.h"
#include "client/lib/resolve.h"

namespace lintel {

namespace {

// Of a client with several servers: one that is gone without a word is noticed, for there is
// another.
grpc::ChannelArguments impatient() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);  // for a connection, too
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 15'000);       // servers take one in 10 s
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace

Client::Client(const Options& options) : Client(options.deadline, options.token) {
  retry_ = options.retry;
  encrypted_ = options.tls.enabled();
  const std::vector<std::string> addresses = full_addresses(options.address);
  const std::string proxy = options.proxy.empty() ? "" : proxy_address(options.proxy);
  const auto server_at = [tls = options.tls, sends_token = !options.token.empty(), proxy](
                             const std::string& address, grpc::ChannelArguments arguments) {
    return std::make_shared<Stubs>(
        make_channel(address, tls, sends_token, proxy, std::move(arguments)), address);
  };
  std::vector<std::shared_ptr<Stubs>> servers;
  for (const std::string& address : addresses) {
    address_ += (address_.empty() ? "" : ", ") + address;
    servers.push_back(
        server_at(address, addresses.size() > 1 ? impatient() : grpc::ChannelArguments()));
  }
  const auto spread = [server_at, proxy](const Stubs& name, const std::string& peer) {
    std::vector<std::shared_ptr<Stubs>> all;
    if (!proxy.empty()) return all;  // which looks for the name itself
    std::vector<std::string> found = addresses_of(name.address);
    if (found.size() < 2) return all;
    const auto is_peer = [&peer](const std::string& address) {
      return peer.substr(peer.find(':') + 1) == address;
    };
    std::stable_partition(found.begin(), found.end(), std::not_fn(is_peer));
    for (const std::string& address : found) {
      grpc::ChannelArguments arguments = impatient();
      arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY,
                          name.address);  // its certificate has the name
      all.push_back(server_at(address, std::move(arguments)));
    }
    return all;
  };
  known_ = std::make_unique<Known>(std::move(servers), spread);
}

Client::Client(std::shared_ptr<grpc::ChannelInterface> channel, std::chrono::milliseconds deadline,
               std::string token)
    : Client(deadline, std::move(token)) {
  known_ = std::make_unique<Known>(
      std::vector<std::shared_ptr<Stubs>>{std::make_shared<Stubs>(channel, "")}, nullptr);
}

Client::Client(std::chrono::milliseconds deadline, std::string token)
    : deadline_(deadline), token_(std::move(token)) {
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
  const auto open = [&](Stubs& server, auto* context) {
    return server.generation.Score(context, request);
  };
  std::uint32_t next = 0;
  call.stream<v1::ScoreResponse>(
      open,
      [&](const v1::ScoreResponse& response) {
        if (response.index() != next++) {
          throw CallError(grpc::StatusCode::INTERNAL, "the server's scores are out of order");
        }
        on_score(response);
      },
      Again::kSafe);
  if (next != static_cast<std::uint32_t>(request.sequences_size())) {
    throw CallError(grpc::StatusCode::INTERNAL,
                    "the stream ended before every sequence was scored");
  }
}

std::vector<v1::Model> Client::list_models(const v1::ListModelsRequest& request,
                                           Cancellation* cancellation) const {
  v1::ListModelsResponse response;
  Call call(*this, cancellation);
  call.unary(
      [&](Stubs& server, auto* context) { return server.models.List(context, request, &response); },
      Again::kSafe);
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
  call.unary(
      [&](Stubs& server, auto* context) { return server.models.Get(context, request, &model); },
      Again::kSafe);
  return model;
}

v1::Model Client::load_model(const std::string& name, const std::string& version,
                             Cancellation* cancellation) const {
  v1::LoadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::Model model;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.LoadModel(context, request, &model);
  });
  return model;
}

void Client::unload_model(const std::string& name, const std::string& version,
                          Cancellation* cancellation) const {
  v1::UnloadModelRequest request;
  request.set_name(name);
  request.set_version(version);
  v1::UnloadModelResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.UnloadModel(context, request, &response);
  });
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
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.LoadAdapter(context, request, &adapter);
  });
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
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.UnloadAdapter(context, request, &response);
  });
}

std::string Client::log_level(Cancellation* cancellation) const {
  v1::LogLevel level;
  Call call(*this, cancellation);
  call.unary(
      [&](Stubs& server, auto* context) { return server.admin.GetLogLevel(context, {}, &level); },
      Again::kSafe);
  return level.level();
}

std::string Client::set_log_level(const std::string& level, Cancellation* cancellation) const {
  v1::LogLevel wanted, set;
  wanted.set_level(level);
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.admin.SetLogLevel(context, wanted, &set);
  });
  return set.level();
}

bool Client::serving(const std::string& service, Cancellation* cancellation) const {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server,
                 auto* context) { return server.health.Check(context, request, &response); },
             Again::kSafe);
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
