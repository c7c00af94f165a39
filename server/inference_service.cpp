#include "server/inference_service.h"

#include <atomic>
#include <utility>

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

  // Counts the call in, if it may begin and `prepare(scope)` agrees.
  template <typename Prepare>
  grpc::Status begin(const Prepare& prepare) {
    if (!scope_->admitted().ok()) return scope_->admitted();
    return guarded([&]() -> grpc::Status {
      if (grpc::Status entered = scope_->enter_stream(); !entered.ok()) return entered;
      if (!calls_.enter()) return shutting_down();
      counted_in_ = true;
      return prepare(*scope_);
    });
  }
  // REQUIRES: called before the reactor is given to gRPC.
  void attach(std::shared_ptr<InferRun> run) { run_ = std::move(run); }

  // The response is written, or there is none. Once.
  void finish(const grpc::Status& status, TokenUse used) {
    status_ = status;
    scope_->finish(used);
    Finish(status);
  }

  void OnCancel() override {
    if (run_ != nullptr) run_->cancel();
  }
  void OnDone() override {
    ActiveCalls& calls = calls_;
    const bool counted_in = counted_in_;
    scope_->end(status_);
    delete this;
    if (counted_in) calls.leave();
  }

 private:
  ActiveCalls& calls_;
  const std::unique_ptr<CallScope> scope_;
  bool counted_in_ = false;
  std::shared_ptr<InferRun> run_;
  grpc::Status status_;  // written before Finish, read after
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

grpc::Status InferenceService::prepare(const grpc::CallbackServerContext& call,
                                       const inference::ModelInferRequest& wire, CallScope& scope,
                                       inference::ModelInferResponse& response, OnInferred on_done,
                                       Infer& infer) {
  grpc::Status status;
  const ServedModel* const model =
      resolve_model(wire.model_name(), context_.models, &status, "model_name");
  if (model == nullptr) return status;
  Violations violations;
  auto request = std::make_shared<const InferRequest>(
      read_infer_request(wire, model->limits.max_samples, violations));
  if (!violations.empty()) return violations.status();

  Sequence sequence;
  status = find_sequence(scope.caller().name, *model, *request, sequence);
  if (!status.ok()) return status;
  status = prepare_rows(call, *request, sequence, scope, infer.prepared);
  if (!status.ok()) {
    infer.prepared.clear();  // gives the session back
    if (sequence.is_new) end_sequence(sequence);
    return status;
  }
  response.set_model_name(model->name);
  response.set_model_version(kVersion);
  response.set_id(wire.id());
  infer.run = std::make_shared<InferRun>(
      context_, [this, request, sequence, &response, on_done = std::move(on_done)](
                    const grpc::Status& ended, std::vector<InferredRow> rows, TokenUse used) {
        if (!sequence.session_id.empty() && sequence.ends) end_sequence(sequence);
        const grpc::Status written = guarded([&] {
          if (ended.ok()) write_infer_response(*request, rows, response);
          return ended;
        });
        on_done(written, used);
      });
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(grpc::CallbackServerContext* call,
                                                       const inference::ModelInferRequest* request,
                                                       inference::ModelInferResponse* response) {
  auto scope = std::make_unique<CallScope>(context_.gate, *call, Method::kModelInfer);
  const LogFields log_fields = scope->log_fields();
  const LogScope log(log_fields);
  auto* const reactor = new InferCall(context_.calls, std::move(scope));
  Infer infer;
  const grpc::Status status = reactor->begin([&](CallScope& its_scope) {
    return prepare(
        *call, *request, its_scope, *response,
        [reactor](const grpc::Status& ended, TokenUse used) { reactor->finish(ended, used); },
        infer);
  });
  if (!status.ok()) {
    reactor->finish(status, {});
  } else {
    reactor->attach(infer.run);
    infer.run->begin(std::move(infer.prepared));
  }
  return reactor;
}

// Reads a request, runs it, writes its response, reads the next: one operation at a time, so that
// its members need no lock but for what a cancellation looks at. Between requests a drain does not
// wait for it.
class InferenceService::InferStream final
    : public grpc::ServerBidiReactor<inference::ModelInferRequest,
                                     inference::ModelStreamInferResponse> {
 public:
  InferStream(InferenceService& service, grpc::CallbackServerContext& call,
              std::unique_ptr<CallScope> scope)
      : service_(service), calls_(service.context_.calls), call_(call), scope_(std::move(scope)) {
    calls_.hold();
    grpc::Status status = scope_->admitted();
    if (status.ok() && calls_.closed()) status = shutting_down();
    if (status.ok()) status = scope_->enter_stream();
    if (status.ok()) {
      StartRead(&request_);
    } else {
      finish(status);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return finish(cancelled_ ? cancelled() : grpc::Status::OK);
    if (!calls_.enter()) return finish(shutting_down());
    is_busy_ = true;
    response_.Clear();
    Infer infer;
    const LogScope log(scope_->log_fields());
    const grpc::Status status = guarded([&] {
      return service_.prepare(
          call_, request_, *scope_, *response_.mutable_infer_response(),
          [this](const grpc::Status& ended, TokenUse used) { respond(ended, used); }, infer);
    });
    if (!status.ok()) return respond(status, {});
    const std::shared_ptr<InferRun> run = infer.run;
    {
      MutexLock lock(mutex_);
      run_ = run;
    }
    if (cancelled_) run->cancel();  // came before anybody could know this run
    run->begin(std::move(infer.prepared));
  }
  void OnWriteDone(bool ok) override {
    rest();
    if (!ok) return finish(cancelled());
    StartRead(&request_);
  }
  void OnCancel() override {
    cancelled_ = true;
    std::shared_ptr<InferRun> run;
    {
      MutexLock lock(mutex_);
      run = run_;
    }
    if (run != nullptr) run->cancel();
  }
  void OnDone() override {
    ActiveCalls& calls = calls_;
    scope_->end(status_);
    delete this;
    calls.release();
  }

 private:
  void respond(const grpc::Status& status, TokenUse used) {
    scope_->settle_tokens(used);
    if (!status.ok()) {
      response_.Clear();
      response_.set_error_message(status.error_message());
      response_.mutable_infer_response()->set_id(request_.id());
    }
    StartWrite(&response_);
  }
  void rest() {
    if (std::exchange(is_busy_, false)) calls_.leave();
  }
  void finish(const grpc::Status& status) {
    status_ = status;
    scope_->finish({});
    Finish(status);
  }

  InferenceService& service_;
  ActiveCalls& calls_;
  grpc::CallbackServerContext& call_;
  const std::unique_ptr<CallScope> scope_;
  inference::ModelInferRequest request_;
  inference::ModelStreamInferResponse response_;
  bool is_busy_ = false;  // counted in
  grpc::Status status_;
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::shared_ptr<InferRun> run_ GUARDED_BY(mutex_);  // the last one
};

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
InferenceService::ModelStreamInfer(grpc::CallbackServerContext* call) {
  return new InferStream(
      *this, *call, std::make_unique<CallScope>(context_.gate, *call, Method::kModelStreamInfer));
}

}  // namespace lintel
