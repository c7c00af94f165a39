#include "server/kserve/stream_call.h"

#include <utility>

#include "server/call/status.h"
#include "server/call/unary_call.h"

namespace lintel {

ModelStreamInferCall::ModelStreamInferCall(const ServiceContext& context,
                                           ClientSequences& sequences,
                                           grpc::CallbackServerContext& call,
                                           std::unique_ptr<CallScope> scope)
    : context_(context),
      sequences_(sequences),
      calls_(context.calls),
      call_(call),
      scope_(std::move(scope)) {
  calls_.hold();
  grpc::Status status = guarded([&]() -> grpc::Status {
    if (!scope_->admitted().ok()) return scope_->admitted();
    if (calls_.closed()) return shutting_down();
    return scope_->enter_stream();
  });
  if (status.ok()) {
    StartRead(&request_);
  } else {
    finish(std::move(status));
  }
}

void ModelStreamInferCall::OnReadDone(bool ok) {
  if (!ok) return finish(cancelled_ ? cancelled() : grpc::Status::OK);
  if (!calls_.enter()) return finish(guarded([] { return shutting_down(); }));
  is_busy_ = true;
  PreparedInference infer;
  const LogScope log(scope_->log_fields());
  std::shared_ptr<RowGatherer> run;
  std::shared_ptr<InferTokens> tokens;
  grpc::Status status = guarded([&] {
    const grpc::Status prepared = prepare(infer);
    if (!prepared.ok()) return prepared;
    if (infer.request->streams) {
      tokens = new_tokens(infer);
    } else {
      run = new_row_gatherer(
          sequences_, infer, *response_.mutable_infer_response(),
          [this](grpc::Status ended, ValueUse used) { respond(std::move(ended), used); });
    }
    return prepared;
  });
  if (!status.ok()) return respond(std::move(status), {});
  {
    MutexLock lock(mutex_);
    run_ = run;
    tokens_ = tokens;
  }
  // A cancellation came before anybody could know this run.
  if (run != nullptr) {
    if (cancelled_) run->cancel();
    run->begin(std::move(infer.rows));
  } else {
    if (cancelled_) tokens->cancel();
    grpc::Status begun = tokens->begin(std::move(infer.rows.front()));
    if (begun.ok()) return;
    sequences_.end_if_last(infer.sequence);
    forget_tokens();
    respond(std::move(begun), {});
  }
}

grpc::Status ModelStreamInferCall::prepare(PreparedInference& infer) {
  inference::ModelInferRequest wire;
  id_.clear();
  asks_for_stream_ = false;
  const grpc::Status read =
      request_.read(bounds_of(context_.gate, Method::kModelStreamInfer), wire);
  if (!read.ok()) return read;
  id_ = wire.id();
  asks_for_stream_ = wire.parameters().contains("stream");
  return prepare_inference(context_, sequences_, call_, wire, *scope_, /*may_stream=*/true, infer);
}

void ModelStreamInferCall::OnWriteDone(bool ok) {
  response_ = {};  // clearing it would keep its memory
  if (const std::shared_ptr<InferTokens> tokens = current_tokens(); tokens != nullptr) {
    if (!tokens->written(ok)) return;
    scope_->settle_tokens(tokens->used());
    forget_tokens();
  }
  rest();
  if (!ok) return finish(cancelled());
  StartRead(&request_);
}

void ModelStreamInferCall::OnCancel() {
  cancelled_ = true;
  std::shared_ptr<RowGatherer> run;
  std::shared_ptr<InferTokens> tokens;
  {
    MutexLock lock(mutex_);
    run = run_;
    tokens = tokens_;
  }
  if (run != nullptr) run->cancel();
  if (tokens != nullptr) tokens->cancel();
}

void ModelStreamInferCall::OnDone() {
  ActiveCalls& calls = calls_;
  scope_->end(status_);
  delete this;
  calls.release();
}

void ModelStreamInferCall::respond(grpc::Status status, ValueUse used) {
  scope_->settle_tokens(used);
  if (!status.ok()) {
    grpc::Status written = guarded([&] {
      response_.Clear();
      response_.set_error_message(status.error_message());
      response_.mutable_infer_response()->set_id(std::exchange(id_, {}));
      // Whoever waits for the last response of this request has it.
      if (asks_for_stream_) mark_final(*response_.mutable_infer_response(), true);
      return grpc::Status::OK;
    });
    if (!written.ok()) {  // no memory to say so in a message: the stream says it by its end
      rest();
      return finish(std::move(written));
    }
  }
  StartWrite(&response_);
}

std::shared_ptr<InferTokens> ModelStreamInferCall::new_tokens(const PreparedInference& infer) {
  const StreamingOptions& streaming = context_.streaming;
  InferTokens::Options options;
  options.chunk_interval = streaming.chunk_interval_ms;
  options.outbox_tokens = streaming.outbox_tokens;
  options.max_tokens_per_message = infer.rows.front().checked.max_tokens_per_message;
  InferTokens::Callbacks callbacks;
  callbacks.write = [this](const auto* message) { StartWrite(message); };
  callbacks.gone = [this](grpc::Status status) {
    scope_->settle_tokens(current_tokens()->used());
    rest();
    finish(std::move(status));
  };
  callbacks.over = [&sequences = sequences_, sequence = infer.sequence] {
    sequences.end_if_last(sequence);
  };
  return std::make_shared<InferTokens>(infer.request, infer.head, options, context_.clock, calls_,
                                       std::move(callbacks));
}

std::shared_ptr<InferTokens> ModelStreamInferCall::current_tokens() {
  MutexLock lock(mutex_);
  return tokens_;
}

void ModelStreamInferCall::forget_tokens() {
  std::shared_ptr<InferTokens> last;  // freed without the mutex
  MutexLock lock(mutex_);
  last.swap(tokens_);
}

void ModelStreamInferCall::rest() {
  if (std::exchange(is_busy_, false)) calls_.leave();
}

void ModelStreamInferCall::finish(grpc::Status status) {
  status_ = copy_of(status);
  scope_->finish({});
  Finish(std::move(status));
}

}  // namespace lintel
