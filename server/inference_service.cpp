#include "server/inference_service.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "server/request_checks.h"
#include "server/resolve_model.h"
#include "server/service_call.h"
#include "server/status.h"

namespace lintel {
namespace {

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
    grpc::Status ignored;
    const SharedModel model =
        resolve_version(request->name(), request->version(), "", context_.models, &ignored);
    response->set_ready(model != nullptr && !context_.calls.closed());
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(
    grpc::CallbackServerContext* call, const inference::ServerMetadataRequest*,
    inference::ServerMetadataResponse* response) {
  return answer(context_, *call, Method::kServerMetadata, [&](const Identity&) {
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
    grpc::CallbackServerContext* call, const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  return answer(context_, *call, Method::kModelMetadata, [&](const Identity&) {
    grpc::Status status;
    const SharedModel model =
        resolve_version(request->name(), request->version(), "", context_.models, &status);
    if (model == nullptr) return status;
    response->set_name(model->name);
    for (const SharedModel& ready : context_.models.ready()) {
      if (ready->name == model->name) response->add_versions(std::to_string(ready->version));
    }
    response->set_platform("lintel");
    add_tensor(*response->add_inputs(), "tokens", "INT32");
    add_tensor(*response->add_outputs(), "tokens", "INT32");
    add_tensor(*response->add_outputs(), "log2_probs", "FP32");
    return status;
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(
    grpc::CallbackServerContext* call, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  return answer(context_, *call, Method::kRepositoryIndex, [&](const Identity&) {
    for (const ModelRegistry::Entry& entry : context_.manager.index()) {
      if (request->ready() && entry.state != ModelState::kReady) continue;
      auto& index = *response->add_models();
      index.set_name(entry.name);
      index.set_version(std::to_string(entry.version));
      index.set_state(to_string(entry.state));
      index.set_reason(entry.reason);
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
      const bool unloaded =
          known && context_.store.absence(*known, owner) == SessionStore::Error::kUnloaded;
      return not_found("sequence", request.sequence_id,
                       unloaded ? "no such sequence: it ended when its model was unloaded or "
                                  "another version took its place"
                                : "no such sequence: not started, ended, or evicted when idle");
    }
    sequence.session_id = *known;
    return grpc::Status::OK;
  }
  Violations violations;
  check_session_length(request.max_tokens, "parameters[max_tokens]", model.transformer->config(),
                       violations);
  if (!violations.empty()) return violations.status();
  // A sequence that starts again forgets what it was.
  if (known && context_.store.remove(*known, owner) == SessionStore::Error::kBusy) {
    return session_busy(request.sequence_id);
  }
  const SessionStore::CreateResult created =
      context_.store.create(model.name, model.transformer, request.max_tokens, owner);
  if (created.error == SessionStore::Error::kNeedsMaxTokens) {
    return invalid_argument(
        {{"parameters[max_tokens]", "is needed: the state of this model grows with the sequence"}});
  }
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

void InferenceService::end_if_last(const Sequence& sequence) {
  if (!sequence.session_id.empty() && sequence.ends) end_sequence(sequence);
}

grpc::Status InferenceService::prepare_rows(const grpc::CallbackServerContext& call,
                                            const SharedModel& model, const InferRequest& request,
                                            const Sequence& sequence, CallScope& scope,
                                            std::vector<PreparedGeneration>& prepared) {
  const std::optional<TimePoint> deadline = call_deadline(call, context_.clock);
  std::int64_t most_tokens = 0;
  std::int64_t longest = 0;
  for (v1::GenerateRequest row : request.rows) {
    row.set_session_id(sequence.session_id);
    prepared.emplace_back();
    grpc::Status status =
        prepare_generation(context_, scope.caller().name, row, deadline, prepared.back(), model);
    if (!status.ok()) return status;
    most_tokens += prepared.back().most_tokens();
    longest = std::max(longest, prepared.back().checked.request.max_new_tokens);
  }
  if (!request.streams) {
    const std::size_t bytes = most_response_bytes(request, longest);
    if (bytes > kMaxMessageBytes) {
      return invalid_argument(
          {{"parameters[max_new_tokens]",
            std::to_string(request.rows.size()) + " rows may need " + std::to_string(bytes) +
                " bytes, more than the " + std::to_string(kMaxMessageBytes) + " of one response"}});
    }
  }
  return scope.charge_tokens(most_tokens);
}

grpc::Status InferenceService::prepare(const grpc::CallbackServerContext& call,
                                       const inference::ModelInferRequest& wire, CallScope& scope,
                                       bool may_stream, Infer& infer) {
  grpc::Status status;
  const SharedModel model =
      resolve_version(wire.model_name(), wire.model_version(), "model_", context_.models, &status);
  if (model == nullptr) return status;
  Violations violations;
  infer.request = std::make_shared<const InferRequest>(
      read_infer_request(wire, model->limits.max_samples, violations));
  if (infer.request->streams && !may_stream) {
    violations.add("parameters[stream]", "is for ModelStreamInfer: here is one response");
  }
  if (!violations.empty()) return violations.status();

  status = find_sequence(scope.caller().name, *model, *infer.request, infer.sequence);
  if (!status.ok()) return status;
  status = prepare_rows(call, model, *infer.request, infer.sequence, scope, infer.prepared);
  if (!status.ok()) {
    infer.prepared.clear();  // gives the session back
    if (infer.sequence.is_new) end_sequence(infer.sequence);
    return status;
  }
  // A sequence goes on with the version that it began with.
  const ServedModel& serves = *infer.prepared.front().model;
  infer.head.set_model_name(serves.name);
  infer.head.set_model_version(std::to_string(serves.version));
  infer.head.set_id(wire.id());
  return grpc::Status::OK;
}

std::shared_ptr<InferRun> InferenceService::new_run(const Infer& infer,
                                                    inference::ModelInferResponse& response,
                                                    OnInferred on_done) {
  response = infer.head;
  return std::make_shared<InferRun>(
      [this, request = infer.request, sequence = infer.sequence, &response,
       on_done = std::move(on_done)](const grpc::Status& ended, std::vector<InferredRow> rows,
                                     TokenUse used) {
        end_if_last(sequence);
        const grpc::Status written = guarded([&] {
          if (ended.ok()) write_infer_response(*request, rows, response);
          if (request->marks_final) mark_final(response, true);
          return ended;
        });
        on_done(written, used);
      });
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(grpc::CallbackServerContext* call,
                                                       const inference::ModelInferRequest* request,
                                                       inference::ModelInferResponse* response) {
  auto scope = std::make_unique<CallScope>(context_.gate, *call, Method::kModelInfer);
  const LogFields log_fields = scope->log_fields();
  const LogScope log(log_fields);
  auto* const reactor = new InferCall(context_.calls, std::move(scope));
  Infer infer;
  std::shared_ptr<InferRun> run;
  const grpc::Status status = reactor->begin([&](CallScope& its_scope) {
    const grpc::Status prepared = prepare(*call, *request, its_scope, /*may_stream=*/false, infer);
    if (!prepared.ok()) return prepared;
    run = new_run(infer, *response, [reactor](const grpc::Status& ended, TokenUse used) {
      reactor->finish(ended, used);
    });
    return prepared;
  });
  if (!status.ok()) {
    reactor->finish(status, {});
  } else {
    reactor->attach(run);
    run->begin(std::move(infer.prepared));
  }
  return reactor;
}

// Reads a request, runs it, writes its response, or its values as they come, reads the next: one
// operation at a time, so that its members need no lock but for what a cancellation looks at.
// Between requests a drain does not wait for it.
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
    std::shared_ptr<InferRun> run;
    std::shared_ptr<InferTokens> tokens;
    const grpc::Status status = guarded([&] {
      const grpc::Status prepared =
          service_.prepare(call_, request_, *scope_, /*may_stream=*/true, infer);
      if (!prepared.ok()) return prepared;
      if (infer.request->streams) {
        tokens = new_tokens(infer);
      } else {
        run = service_.new_run(
            infer, *response_.mutable_infer_response(),
            [this](const grpc::Status& ended, TokenUse used) { respond(ended, used); });
      }
      return prepared;
    });
    if (!status.ok()) return respond(status, {});
    {
      MutexLock lock(mutex_);
      run_ = run;
      tokens_ = tokens;
    }
    // A cancellation came before anybody could know this run.
    if (run != nullptr) {
      if (cancelled_) run->cancel();
      run->begin(std::move(infer.prepared));
    } else {
      if (cancelled_) tokens->cancel();
      const InferenceService::Sequence sequence = infer.sequence;
      const grpc::Status begun = tokens->begin(std::move(infer.prepared.front()));
      if (begun.ok()) return;
      service_.end_if_last(sequence);
      forget_tokens();
      respond(begun, {});
    }
  }
  void OnWriteDone(bool ok) override {
    if (const std::shared_ptr<InferTokens> tokens = current_tokens(); tokens != nullptr) {
      if (!tokens->written(ok)) return;
      scope_->settle_tokens(tokens->used());
      forget_tokens();
    }
    rest();
    if (!ok) return finish(cancelled());
    StartRead(&request_);
  }
  void OnCancel() override {
    cancelled_ = true;
    std::shared_ptr<InferRun> run;
    std::shared_ptr<InferTokens> tokens;
    {
      MutexLock lock(mutex_);
      run = run_;
      tokens = tokens_;
    }
    if (run != nullptr) run->cancel();
    if (tokens != nullptr) tokens->cancel();
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
      // Whoever waits for the last response of this request has it.
      if (request_.parameters().contains("stream")) {
        mark_final(*response_.mutable_infer_response(), true);
      }
    }
    StartWrite(&response_);
  }
  std::shared_ptr<InferTokens> new_tokens(const Infer& infer) {
    const ServerOptions::Streaming& streaming = service_.context_.options.streaming;
    InferTokens::Options options;
    options.chunk_interval = streaming.chunk_interval_ms;
    options.outbox_tokens = streaming.outbox_tokens;
    options.max_tokens_per_message = infer.prepared.front().checked.max_tokens_per_message;
    InferTokens::Callbacks callbacks;
    callbacks.write = [this](const auto* message) { StartWrite(message); };
    callbacks.gone = [this] {
      scope_->settle_tokens(current_tokens()->used());
      rest();
      finish(cancelled());
    };
    callbacks.over = [&service = service_, sequence = infer.sequence] {
      service.end_if_last(sequence);
    };
    return std::make_shared<InferTokens>(infer.request, infer.head, options,
                                         service_.context_.clock, calls_, std::move(callbacks));
  }
  std::shared_ptr<InferTokens> current_tokens() {
    MutexLock lock(mutex_);
    return tokens_;
  }
  void forget_tokens() {
    std::shared_ptr<InferTokens> last;  // freed without the mutex
    MutexLock lock(mutex_);
    last.swap(tokens_);
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
  std::shared_ptr<InferRun> run_ GUARDED_BY(mutex_);        // the last one
  std::shared_ptr<InferTokens> tokens_ GUARDED_BY(mutex_);  // of a request that is streamed
};

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
InferenceService::ModelStreamInfer(grpc::CallbackServerContext* call) {
  return new InferStream(
      *this, *call, std::make_unique<CallScope>(context_.gate, *call, Method::kModelStreamInfer));
}

}  // namespace lintel
