#include "server/inference_service.h"

#include <utility>

#include "server/infer_run.h"
#include "server/request_checks.h"
#include "server/service_call.h"
#include "server/status.h"

namespace lintel {
namespace {

constexpr const char* kVersion = "1";  // a directory holds one

// One ModelInfer call. Lives from the method until gRPC has done with it.
class InferCall final : public grpc::ServerUnaryReactor {
 public:
  InferCall(ActiveCalls& calls, std::unique_ptr<CallScope> scope)
      : calls_(calls), scope_(std::move(scope)) {}

  // REQUIRES: called before the reactor is given to gRPC.
  void attach(std::shared_ptr<InferRun> run) { run_ = std::move(run); }

  // The response is written. Once.
  void finish(const grpc::Status& status, TokenUse used) {
    {
      MutexLock lock(mutex_);
      status_ = status;
      used_ = used;
    }
    Finish(status);
  }

  void OnCancel() override { run_->cancel(); }
  void OnDone() override {
    ActiveCalls& calls = calls_;
    {
      MutexLock lock(mutex_);
      scope_->end(status_, used_);
    }
    delete this;
    calls.leave();
  }

 private:
  ActiveCalls& calls_;
  const std::unique_ptr<CallScope> scope_;
  std::shared_ptr<InferRun> run_;
  Mutex mutex_;
  grpc::Status status_ GUARDED_BY(mutex_);
  TokenUse used_ GUARDED_BY(mutex_);
};

void add_tensor(inference::ModelMetadataResponse::TensorMetadata& tensor, const char* name,
                const char* datatype) {
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.add_shape(-1);
  tensor.add_shape(-1);
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::ServerLive(grpc::CallbackServerContext* call,
                                                       const inference::ServerLiveRequest*,
                                                       inference::ServerLiveResponse* response) {
  return answer(context_, *call, Method::kServerLive, [&](const Identity&) {
    response->set_live(true);
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(grpc::CallbackServerContext* call,
                                                        const inference::ServerReadyRequest*,
                                                        inference::ServerReadyResponse* response) {
  return answer(context_, *call, Method::kServerReady, [&](const Identity&) {
    response->set_ready(!context_.calls.closed());
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(grpc::CallbackServerContext* call,
                                                       const inference::ModelReadyRequest* request,
                                                       inference::ModelReadyResponse* response) {
  return answer(context_, *call, Method::kModelReady, [&](const Identity&) {
    const bool is_version = request->version().empty() || request->version() == kVersion;
    response->set_ready(is_version && context_.models.find(request->name()) != nullptr &&
                        !context_.calls.closed());
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    grpc::CallbackServerContext* call, const inference::ServerMetadataRequest*,
    inference::ServerMetadataResponse* response) {
  return answer(context_, *call, Method::kServerMetadata, [&](const Identity&) {
    response->set_name("lintel");
    response->set_version(LINTEL_VERSION);
    response->add_extensions("sequence");
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(
    grpc::CallbackServerContext* call, const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  return answer(context_, *call, Method::kModelMetadata, [&](const Identity&) {
    grpc::Status status;
    const ServedModel* const model =
        resolve_model(request->name(), context_.models, &status, "name");
    if (model == nullptr) return status;
    if (!request->version().empty() && request->version() != kVersion) {
      return not_found("model", model->name, "the model has version 1 only");
    }
    response->set_name(model->name);
    response->add_versions(kVersion);
    response->set_platform("lintel");
    add_tensor(*response->add_inputs(), "tokens", "INT32");
    add_tensor(*response->add_outputs(), "tokens", "INT32");
    add_tensor(*response->add_outputs(), "log2_probs", "FP32");
    return status;
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    grpc::CallbackServerContext* call, const inference::RepositoryIndexRequest*,
    inference::RepositoryIndexResponse* response) {
  return answer(context_, *call, Method::kRepositoryIndex, [&](const Identity&) {
    for (const auto& [name, model] : context_.models.all()) {
      auto& index = *response->add_models();
      index.set_name(name);
      index.set_version(kVersion);
      index.set_state("READY");
    }
    return grpc::Status::OK;
  });
}

grpc::Status InferenceService::find_sequence(const Owner& owner, const ServedModel& model,
                                             const InferRequest& request, Sequence& sequence) {
  if (request.sequence_id.empty()) return grpc::Status::OK;
  sequence = {
      owner, model.name, request.sequence_id, "", request.sequence_start, request.sequence_end};
  const auto known = sequences_.find(owner, model.name, request.sequence_id);
  if (!request.sequence_start) {
    if (!known || !context_.store.get(*known, owner)) {
      return not_found("sequence", request.sequence_id,
                       "no such sequence: not started, ended, or evicted when idle");
    }
    sequence.session_id = *known;
    return grpc::Status::OK;
  }
  // A sequence that starts again forgets what it was.
  if (known && context_.store.remove(*known, owner) == SessionStore::Error::kBusy) {
    return session_busy(request.sequence_id);
  }
  const SessionStore::CreateResult created =
      context_.store.create(model.name, model.transformer, /*max_values=*/0, owner);
  if (created.error != SessionStore::Error::kNone) {
    return store_refusal(created.error, created.bytes_needed, created.bytes_free,
                         context_.store.options(), /*session_id=*/"", owner);
  }
  sequence.session_id = created.info.id;
  // Two starts at once: the later one counts.
  const auto before = sequences_.put(owner, model.name, request.sequence_id, created.info.id);
  if (before) context_.store.remove(*before, owner);
  return grpc::Status::OK;
}

void InferenceService::end_sequence(const Sequence& sequence) {
  context_.store.remove(sequence.session_id, sequence.owner);
  sequences_.forget(sequence.owner, sequence.model, sequence.name, sequence.session_id);
}

grpc::Status InferenceService::prepare_rows(const grpc::CallbackServerContext& call,
                                            const InferRequest& request, const Sequence& sequence,
                                            CallScope& scope,
                                            std::vector<PreparedGeneration>& prepared) {
  const std::optional<TimePoint> deadline = call_deadline(call, context_.clock);
  std::int64_t most_tokens = 0;
  for (v1::GenerateRequest row : request.rows) {
    row.set_session_id(sequence.session_id);
    prepared.emplace_back();
    grpc::Status status =
        prepare_generation(context_, scope.caller().name, row, deadline, prepared.back());
    if (!status.ok()) return status;
    most_tokens += prepared.back().most_tokens();
  }
  return scope.charge_tokens(most_tokens);
}

grpc::Status InferenceService::infer(grpc::CallbackServerContext& call,
                                     const inference::ModelInferRequest& wire,
                                     inference::ModelInferResponse& response,
                                     std::unique_ptr<CallScope>& scope,
                                     grpc::ServerUnaryReactor** reactor) {
  grpc::Status status;
  const ServedModel* const model =
      resolve_model(wire.model_name(), context_.models, &status, "model_name");
  if (model == nullptr) return status;
  Violations violations;
  auto request = std::make_shared<const InferRequest>(
      read_infer_request(wire, model->limits.max_samples, violations));
  if (!violations.empty()) return violations.status();

  Sequence sequence;
  status = find_sequence(scope->caller().name, *model, *request, sequence);
  if (!status.ok()) return status;
  std::vector<PreparedGeneration> prepared;
  status = prepare_rows(call, *request, sequence, *scope, prepared);
  if (status.ok() && !context_.calls.enter()) status = shutting_down();
  if (!status.ok()) {
    prepared.clear();  // gives the session back
    if (sequence.is_new) end_sequence(sequence);
    return status;
  }

  response.set_model_name(model->name);
  response.set_model_version(kVersion);
  response.set_id(wire.id());
  auto* const infer_call = new InferCall(context_.calls, std::move(scope));
  *reactor = infer_call;
  const auto run = std::make_shared<InferRun>(
      context_, [this, infer_call, request, sequence, &response](
                    const grpc::Status& ended, std::vector<InferredRow> rows, TokenUse used) {
        if (!sequence.session_id.empty() && sequence.ends) end_sequence(sequence);
        const grpc::Status written = guarded([&] {
          if (ended.ok()) write_infer_response(*request, rows, response);
          return ended;
        });
        infer_call->finish(written, used);
      });
  infer_call->attach(run);
  run->begin(std::move(prepared));
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(grpc::CallbackServerContext* call,
                                                       const inference::ModelInferRequest* request,
                                                       inference::ModelInferResponse* response) {
  auto scope = std::make_unique<CallScope>(context_.gate, *call, Method::kModelInfer);
  const LogFields log_fields = scope->log_fields();
  const LogScope log(log_fields);
  grpc::ServerUnaryReactor* reactor = nullptr;
  grpc::Status status = scope->admitted();
  if (status.ok()) {
    status = guarded([&]() -> grpc::Status {
      if (context_.calls.closed()) return shutting_down();
      if (grpc::Status entered = scope->enter_stream(); !entered.ok()) return entered;
      return infer(*call, *request, *response, scope, &reactor);
    });
  }
  if (reactor != nullptr) return reactor;
  scope->end(status);
  reactor = call->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace lintel
