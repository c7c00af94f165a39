#include "server/grpc/kserve/service.h"

#include <memory>
#include <utility>

#include "server/api/refusals.h"
#include "server/api/resolve_model.h"
#include "server/api/store_work.h"
#include "server/core/mutex.h"
#include "server/grpc/kserve/prepare.h"
#include "server/grpc/kserve/service_models.h"
#include "server/grpc/kserve/stream_call.h"
#include "server/grpc/transport/status.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {
namespace {

// One ModelInfer call. Lives from the method until gRPC has done with it.
class ModelInferCall final : public grpc::ServerUnaryReactor {
 public:
  ModelInferCall(const ServiceContext& context, grpc::CallbackServerContext& rpc)
      : calls_(context.calls), call_(context.gate, rpc, Method::kModelInfer) {}

  const LogFields& log_fields() const { return call_.scope.log_fields(); }

  // Counts the call in, if it may begin; then `run()`, which may say why not.
  template <typename Run>
  grpc::Status begin(const Run& run) {
    return guarded([&]() -> grpc::Status {
      if (!call_.scope.admitted().ok()) return call_.scope.admitted();
      if (grpc::Status entered = call_.quota.enter(); !entered.ok()) return entered;
      active_ = ActiveCall(calls_);
      return active_ ? run() : shutting_down();
    });
  }
  // Once, after begin(), by the method or, after that has returned, by another thread: the
  // call ends with it, and may be gone when this returns.
  void run(const ServiceContext& context, ClientSequences& sequences,
           const grpc::CallbackServerContext& rpc, const inference::ModelInferRequest& wire,
           inference::ModelInferResponse& response) noexcept EXCLUDES(mutex_) {
    PreparedInference infer;
    std::shared_ptr<RowGatherer> rows;
    grpc::Status prepared = guarded([&] {
      grpc::Status ready = prepare_inference(context, sequences, rpc, wire, call_,
                                             /*may_stream=*/false, infer);
      if (!ready.ok()) return ready;
      if (infer.rows.empty()) {
        write_end(infer, response);
        return ready;
      }
      rows = new_row_gatherer(
          sequences, infer, response,
          [this](const grpc::Status& ended, ValueUse used) { finish(ended, used); });
      return ready;
    });
    if (!prepared.ok() || rows == nullptr) return finish(std::move(prepared), {});
    if (!set_rows(rows)) rows->cancel();
    rows->begin(std::move(infer.rows));
  }

  // The response is written, or there is none. Once.
  void finish(grpc::Status status, ValueUse used) {
    status_ = copy_of(status);
    call_.finish(used);
    Finish(std::move(status));
  }

  void OnCancel() override EXCLUDES(mutex_) {
    std::shared_ptr<RowGatherer> rows;
    {
      MutexLock lock(mutex_);
      gone_ = true;
      rows = rows_;
    }
    if (rows != nullptr) rows->cancel();
  }
  void OnDone() override {
    const ActiveCall active = std::move(active_);  // counted out when the reactor is gone
    call_.end(status_);
    delete this;
  }

 private:
  // False where the client is gone.
  bool set_rows(std::shared_ptr<RowGatherer> rows) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    rows_ = std::move(rows);
    return !gone_;
  }

  ActiveCalls& calls_;
  ActiveCall active_;
  StreamCall call_;
  grpc::Status status_;  // written before Finish, read after
  // What OnCancel finds, which may come before run() does.
  Mutex mutex_;
  std::shared_ptr<RowGatherer> rows_ GUARDED_BY(mutex_);
  bool gone_ GUARDED_BY(mutex_) = false;
};

}  // namespace

InferenceService::InferenceService(const ServiceContext& context)
    : context_(context), sequences_(context) {
  serve(info_of(Method::kServerLive).name, this, &InferenceService::ServerLive);
  serve(info_of(Method::kServerReady).name, this, &InferenceService::ServerReady);
  serve(info_of(Method::kModelReady).name, this, &InferenceService::ModelReady);
  serve(info_of(Method::kServerMetadata).name, this, &InferenceService::ServerMetadata);
  serve(info_of(Method::kModelMetadata).name, this, &InferenceService::ModelMetadata);
  serve(info_of(Method::kRepositoryIndex).name, this, &InferenceService::RepositoryIndex);
  serve(info_of(Method::kModelConfig).name, this, &InferenceService::ModelConfig);
  serve(info_of(Method::kModelStatistics).name, this, &InferenceService::ModelStatistics);
  serve(info_of(Method::kRepositoryModelLoad).name, this, &InferenceService::RepositoryModelLoad);
  serve(info_of(Method::kRepositoryModelUnload).name, this,
        &InferenceService::RepositoryModelUnload);
  serve(info_of(Method::kModelInfer).name, this, &InferenceService::ModelInfer);
  serve(info_of(Method::kModelStreamInfer).name, this, &InferenceService::ModelStreamInfer);
}

grpc::ServerUnaryReactor* InferenceService::ServerLive(
    grpc::CallbackServerContext* call, const Received<inference::ServerLiveRequest>* request,
    inference::ServerLiveResponse* response) {
  return answer(context_.gate, *call, Method::kServerLive, *request,
                [&](const Identity&, const auto&) {
                  response->set_live(context_.health.is_alive());
                  return grpc::Status::OK;
                });
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(
    grpc::CallbackServerContext* call, const Received<inference::ServerReadyRequest>* request,
    inference::ServerReadyResponse* response) {
  return answer(context_.gate, *call, Method::kServerReady, *request,
                [&](const Identity&, const auto&) {
                  response->set_ready(context_.health.is_ready());
                  return grpc::Status::OK;
                });
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(
    grpc::CallbackServerContext* call, const Received<inference::ModelReadyRequest>* request,
    inference::ModelReadyResponse* response) {
  return answer(context_.gate, *call, Method::kModelReady, *request,
                [&](CallScope& scope, const auto& wire) {
                  grpc::Status ignored;
                  const SharedModel model =
                      resolve_version(wire.name(), wire.version(), "", context_.models, &ignored);
                  if (model != nullptr) scope.set_model(model->name);
                  response->set_ready(model != nullptr && context_.health.is_ready());
                  return grpc::Status::OK;
                });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    grpc::CallbackServerContext* call, const Received<inference::ServerMetadataRequest>* request,
    inference::ServerMetadataResponse* response) {
  return answer(context_.gate, *call, Method::kServerMetadata, *request,
                [&](const Identity&, const auto&) {
                  response->set_name("lintel");
                  response->set_version(LINTEL_VERSION);
                  for (const char* extension :
                       {"sequence", "statistics", "model_repository", "model_configuration"}) {
                    response->add_extensions(extension);
                  }
                  return grpc::Status::OK;
                });
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(
    grpc::CallbackServerContext* call, const Received<inference::ModelMetadataRequest>* request,
    inference::ModelMetadataResponse* response) {
  return answer(context_.gate, *call, Method::kModelMetadata, *request,
                [&](CallScope& scope, const auto& wire) {
                  grpc::Status status;
                  const SharedModel model =
                      resolve_version(wire.name(), wire.version(), "", context_.models, &status);
                  if (model == nullptr) return status;
                  scope.set_model(model->name);
                  response->set_name(model->name);
                  for (const SharedModel& ready : context_.models.ready()) {
                    if (ready->name == model->name)
                      response->add_versions(std::to_string(ready->version));
                  }
                  response->set_platform("lintel");
                  write_metadata(*model, *response);
                  return status;
                });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    grpc::CallbackServerContext* call, const Received<inference::RepositoryIndexRequest>* request,
    inference::RepositoryIndexResponse* response) {
  return answer(context_.gate, *call, Method::kRepositoryIndex, *request,
                [&](const Identity&, const auto& wire) {
                  for (const ModelRegistry::Entry& entry : context_.manager.index()) {
                    if (wire.ready() && entry.state != ModelState::kReady) continue;
                    auto& index = *response->add_models();
                    index.set_name(entry.name);
                    index.set_version(std::to_string(entry.version));
                    index.set_state(to_string(entry.state));
                    index.set_reason(entry.reason);
                  }
                  return grpc::Status::OK;
                });
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(
    grpc::CallbackServerContext* call, const Received<inference::ModelConfigRequest>* request,
    inference::ModelConfigResponse* response) {
  return answer(context_.gate, *call, Method::kModelConfig, *request,
                [&](CallScope& scope, const auto& wire) {
                  grpc::Status status;
                  const SharedModel model =
                      resolve_version(wire.name(), wire.version(), "", context_.models, &status);
                  if (model == nullptr) return status;
                  scope.set_model(model->name);
                  write_config(*model, *response->mutable_config());
                  return status;
                });
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(
    grpc::CallbackServerContext* call, const Received<inference::ModelStatisticsRequest>* request,
    inference::ModelStatisticsResponse* response) {
  return answer(context_.gate, *call, Method::kModelStatistics, *request,
                [&](CallScope& scope, const auto& wire) {
                  std::optional<std::int64_t> version;
                  grpc::Status status = read_model_version(wire.version(), "version", &version);
                  // A name, and a version of it, have to be there.
                  if (status.ok() && (!wire.name().empty() || version)) {
                    const SharedModel model =
                        resolve_version(wire.name(), wire.version(), "", context_.models, &status);
                    if (model != nullptr) scope.set_model(model->name);
                  }
                  if (!status.ok()) return status;
                  for (const SharedModel& model : context_.models.ready()) {
                    if (!wire.name().empty() && model->name != wire.name()) continue;
                    if (version && model->version != *version) continue;
                    write_statistics(*model, *response->add_model_stats());
                  }
                  return status;
                });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelLoad(
    grpc::CallbackServerContext* call,
    const Received<inference::RepositoryModelLoadRequest>* request,
    inference::RepositoryModelLoadResponse*) {
  return answer_later(
      context_.gate, *call, Method::kRepositoryModelLoad, *request,
      [&](const auto& wire, const LateReply& reply) {
        const grpc::Status checked = check_repository_request(
            wire.repository_name(), wire.parameters(), wire.model_name(), /*unloads=*/false);
        if (!checked.ok()) return reply(checked);
        context_.manager.load(wire.model_name(), /*version=*/std::nullopt,
                              [reply](const auto& refusal, const SharedModel& model) {
                                if (model != nullptr) reply.set_model(model->name);
                                reply(load_status(refusal));
                              });
      });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelUnload(
    grpc::CallbackServerContext* call,
    const Received<inference::RepositoryModelUnloadRequest>* request,
    inference::RepositoryModelUnloadResponse*) {
  return answer_later(
      context_.gate, *call, Method::kRepositoryModelUnload, *request,
      [&](const auto& wire, const LateReply& reply) {
        const grpc::Status checked = check_repository_request(
            wire.repository_name(), wire.parameters(), wire.model_name(), /*unloads=*/true);
        if (!checked.ok()) return reply(checked);
        if (const SharedModel model = context_.models.find(wire.model_name())) {
          reply.set_model(model->name);
        }
        context_.manager.unload(wire.model_name(), /*version=*/std::nullopt,
                                [reply](const auto& refusal) { reply(load_status(refusal)); });
      });
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(
    grpc::CallbackServerContext* call, const Received<inference::ModelInferRequest>* request,
    inference::ModelInferResponse* response) {
  auto* const reactor = new ModelInferCall(context_, *call);
  const LogFields log_fields = reactor->log_fields();
  const LogScope log(log_fields);
  grpc::Status started = reactor->begin([&] {
    const auto wire = std::make_shared<inference::ModelInferRequest>();
    grpc::Status read = request->read(bounds_of(context_.gate, Method::kModelInfer), *wire);
    if (!read.ok()) return read;
    const auto run = [this, reactor, call, response, wire] {
      reactor->run(context_, sequences_, *call, *wire, *response);
    };
    if (context_.durable != nullptr && names_sequence(*wire)) {
      // gRPC runs nothing of the reactor before it has it from the method, its end neither.
      return run_by_store(context_, log_fields, run);
    }
    run();
    return read;
  });
  if (!started.ok()) reactor->finish(std::move(started), {});
  return reactor;
}

grpc::ServerBidiReactor<Received<inference::ModelInferRequest>,
                        inference::ModelStreamInferResponse>*
InferenceService::ModelStreamInfer(grpc::CallbackServerContext* call) {
  return new ModelStreamInferCall(context_, sequences_, *call);
}

}  // namespace lintel
