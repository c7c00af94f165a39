// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/admin_service.h"

#include <spdlog/spdlog.h>

#include <stdexcept>

#include "server/api/lintel_v1/model_service.h"
#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/observability/logging.h"
#include "server/rpc/answer.h"

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

AdminService::AdminService(const ServiceContext& context) : context_(context) {
  serve(info_of(Method::kGetLogLevel).name, this, &AdminService::GetLogLevel);
  serve(info_of(Method::kSetLogLevel).name, this, &AdminService::SetLogLevel);
  serve(info_of(Method::kLoadModel).name, this, &AdminService::LoadModel);
  serve(info_of(Method::kUnloadModel).name, this, &AdminService::UnloadModel);
  serve(info_of(Method::kLoadAdapter).name, this, &AdminService::LoadAdapter);
  serve(info_of(Method::kUnloadAdapter).name, this, &AdminService::UnloadAdapter);
}

RpcReactor* AdminService::GetLogLevel(RpcCall* call,
                                      const LazyMessage<v1::GetLogLevelRequest>* request,
                                      v1::LogLevel* response) {
  return answer(context_.gate, *call, Method::kGetLogLevel, *request,
                [&](const Identity&, const auto&) {
                  response->set_level(log_level());
                  return grpc::Status::OK;
                });
}

RpcReactor* AdminService::SetLogLevel(RpcCall* call, const LazyMessage<v1::LogLevel>* request,
                                      v1::LogLevel* response) {
  return answer(
      context_.gate, *call, Method::kSetLogLevel, *request,
      [&](const Identity&, const auto& wire) -> grpc::Status {
        try {
          set_log_level(wire.level());
        } catch (const std::invalid_argument&) {
          return invalid_argument({{"level", "'" + clip(wire.level()) +
                                                 "' is not trace, debug, info, warning, error, "
                                                 "critical or off"}});
        }
        spdlog::info("log level {}", log_level());
        response->set_level(log_level());
        return grpc::Status::OK;
      });
}

RpcReactor* AdminService::LoadModel(RpcCall* call, const LazyMessage<v1::LoadModelRequest>* request,
                                    v1::Model* response) {
  return answer_later(context_.gate, *call, Method::kLoadModel, *request,
                      [&](const auto& wire, const LateReply& reply) {
                        std::optional<std::int64_t> version;
                        const grpc::Status read = read_model(wire, &version);
                        if (!read.ok()) return reply(read);
                        context_.manager.load(
                            wire.name(), version,
                            [reply, response](const auto& refusal, const SharedModel& model) {
                              if (model != nullptr) {
                                reply.set_model(model->name);
                                write_model(*model, *response);
                              }
                              reply(load_status(refusal));
                            });
                      });
}

RpcReactor* AdminService::UnloadModel(RpcCall* call,
                                      const LazyMessage<v1::UnloadModelRequest>* request,
                                      v1::UnloadModelResponse*) {
  return answer_later(context_.gate, *call, Method::kUnloadModel, *request,
                      [&](const auto& wire, const LateReply& reply) {
                        std::optional<std::int64_t> version;
                        const grpc::Status read = read_model(wire, &version);
                        if (!read.ok()) return reply(read);
                        if (const SharedModel model = context_.models.find(wire.name())) {
                          reply.set_model(model->name);
                        }
                        context_.manager.unload(wire.name(), version, [reply](const auto& refusal) {
                          reply(load_status(refusal));
                        });
                      });
}

RpcReactor* AdminService::LoadAdapter(RpcCall* call,
                                      const LazyMessage<v1::LoadAdapterRequest>* request,
                                      v1::Adapter* response) {
  return answer_later(context_.gate, *call, Method::kLoadAdapter, *request,
                      [&](const auto& wire, const LateReply& reply) {
                        grpc::Status status;
                        const SharedModel model = find_model(wire, context_.models, &status);
                        if (model == nullptr) return reply(status);
                        reply.set_model(model->name);
                        context_.manager.load_adapter(
                            model, wire.name(),
                            [reply, response](const auto& refusal, const SharedAdapter& adapter) {
                              if (adapter != nullptr) write_adapter(*adapter, *response);
                              reply(load_status(refusal));
                            });
                      });
}

RpcReactor* AdminService::UnloadAdapter(RpcCall* call,
                                        const LazyMessage<v1::UnloadAdapterRequest>* request,
                                        v1::UnloadAdapterResponse*) {
  return answer_later(context_.gate, *call, Method::kUnloadAdapter, *request,
                      [&](const auto& wire, const LateReply& reply) {
                        grpc::Status status;
                        const SharedModel model = find_model(wire, context_.models, &status);
                        if (model == nullptr) return reply(status);
                        reply.set_model(model->name);
                        context_.manager.unload_adapter(
                            model, wire.name(),
                            [reply](const auto& refusal) { reply(load_status(refusal)); });
                      });
}

}  // namespace lintel
