// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/admin_service.h"

#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

#include "server/api/lintel_v1/model_service.h"
#include "server/api/lookup.h"
#include "server/observability/logging.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// The model and version that a request to load or unload names.
template <typename Request>
grpc::Status read_model(const Request& wire, std::optional<std::int64_t>* version) {
  const grpc::Status named = check_model_name(wire.name(), "name");
  return named.ok() ? read_model_version(wire.version(), "version", version) : named;
}

// The model whose adapter a request names. On failure null and `status`.
template <typename Request>
SharedModel find_model(const Request& wire, const ModelRegistry& models, grpc::Status* status) {
  *status = check_name(wire.name(), "an adapter", "name");
  std::optional<std::int64_t> version;
  if (status->ok()) {
    *status = read_model_version(wire.model_version(), "model_version", &version);
  }
  return status->ok() ? resolve_model(wire.model(), models, status, "model", version) : nullptr;
}

}  // namespace

AdminService::AdminService(const ServiceContext& context) : HandlerService(context) {
  serve(Method::kGetLogLevel, &AdminService::get_log_level);
  serve(Method::kSetLogLevel, &AdminService::set_log_level);
  serve(Method::kLoadModel, &AdminService::load_model);
  serve(Method::kUnloadModel, &AdminService::unload_model);
  serve(Method::kLoadAdapter, &AdminService::load_adapter);
  serve(Method::kUnloadAdapter, &AdminService::unload_adapter);
}

grpc::Status AdminService::get_log_level(CallScope&, const v1::GetLogLevelRequest&,
                                         v1::LogLevel& response) {
  response.set_level(log_level());
  return grpc::Status::OK;
}

grpc::Status AdminService::set_log_level(CallScope&, const v1::LogLevel& wire,
                                         v1::LogLevel& response) {
  try {
    lintel::set_log_level(wire.level());
  } catch (const std::invalid_argument&) {
    return invalid_argument({{"level", "'" + clip(wire.level()) +
                                           "' is not trace, debug, info, warning, error, "
                                           "critical or off"}});
  }
  spdlog::info("log level {}", log_level());
  response.set_level(log_level());
  return grpc::Status::OK;
}

Task<grpc::Status> AdminService::load_model(Call call, v1::LoadModelRequest wire,
                                            v1::Model& response) {
  std::optional<std::int64_t> version;
  grpc::Status status = read_model(wire, &version);
  if (!status.ok()) co_return status;
  SharedModel model;
  const auto load = [&](auto done) { context_.manager.load(wire.name(), version, done); };
  status = co_await loaded(load, model);
  if (model == nullptr) co_return status;
  call.scope.set_model(model->name);
  write_model(*model, context_.sessions, response);
  co_return status;
}

Task<grpc::Status> AdminService::unload_model(Call call, v1::UnloadModelRequest wire,
                                              v1::UnloadModelResponse&) {
  std::optional<std::int64_t> version;
  grpc::Status status = read_model(wire, &version);
  if (!status.ok()) co_return status;
  if (const SharedModel model = context_.models.find(wire.name())) {
    call.scope.set_model(model->name);
  }
  const auto unload = [&](auto done) { context_.manager.unload(wire.name(), version, done); };
  co_return co_await unloaded(unload);
}

Task<grpc::Status> AdminService::load_adapter(Call call, v1::LoadAdapterRequest wire,
                                              v1::Adapter& response) {
  grpc::Status status;
  SharedModel model = find_model(wire, context_.models, &status);
  if (model == nullptr) co_return status;
  call.scope.set_model(model->name);
  SharedAdapter adapter;
  const auto load = [&](auto done) {
    context_.manager.load_adapter(std::exchange(model, nullptr), wire.name(), done);
  };
  status = co_await loaded(load, adapter);
  if (adapter != nullptr) write_adapter(*adapter, response);
  co_return status;
}

Task<grpc::Status> AdminService::unload_adapter(Call call, v1::UnloadAdapterRequest wire,
                                                v1::UnloadAdapterResponse&) {
  grpc::Status status;
  SharedModel model = find_model(wire, context_.models, &status);
  if (model == nullptr) co_return status;
  call.scope.set_model(model->name);
  const auto unload = [&](auto done) {
    context_.manager.unload_adapter(std::exchange(model, nullptr), wire.name(), done);
  };
  co_return co_await unloaded(unload);
}

}  // namespace lintel
