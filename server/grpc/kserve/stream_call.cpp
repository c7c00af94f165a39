#include "server/grpc/kserve/stream_call.h"

#include <utility>

#include "server/api/store_work.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/status.h"
#include "server/sessions/persistence/past_call.h"

namespace lintel {

namespace {

bool says_true(const grpc::CallbackServerContext& rpc, const char* name) {
  const auto found = rpc.client_metadata().find(name);
  return found != rpc.client_metadata().end() && found->second == "true";
}

}  // namespace

ModelStreamInferCall::ModelStreamInferCall(const ServiceContext& context,
                                           ClientSequences& sequences,
                                           grpc::CallbackServerContext& rpc)
    : context_(context),
      sequences_(sequences),
      calls_(context.calls),
      rpc_(rpc),
      call_(context.gate, rpc, Method::kModelStreamInfer),
      errors_are_statuses_(says_true(rpc, "triton_grpc_error")) {
  calls_.hold();
  grpc::Status status = guarded([&]() -> grpc::Status {
    if (!call_.scope.admitted().ok()) return call_.scope.admitted();
    if (calls_.closed()) return shutting_down();
    return call_.quota.enter();
  });
  if (status.ok()) {
    StartRead(&request_);
  } else {
    finish(std::move(status));
  }
}

void ModelStreamInferCall::OnReadDone(bool ok) {
  if (!ok) return finish(is_cancelled() ? cancelled() : grpc::Status::OK);
  active_ = ActiveCall(calls_);
  if (!active_) return finish(guarded([] { return shutting_down(); }));
  const LogScope log(call_.scope.log_fields());
  grpc::Status started = guarded([&] {
    const auto wire = std::make_shared<inference::ModelInferRequest>();
    grpc::Status taken = read(*wire);
    if (!taken.ok()) return taken;
    if (context_.durable != nullptr && names_sequence(*wire)) {
      return run_by_store(context_, call_.scope.log_fields(), [this, wire] { serve(*wire); });
    }
    serve(*wire);
    return taken;
  });
  if (!started.ok()) respond(std::move(started), {});
}

void ModelStreamInferCall::serve(const inference::ModelInferRequest& wire) noexcept {
  PreparedInference infer;
  grpc::Status prepared = guarded([&] {
    return prepare_inference(context_, sequences_, rpc_, wire, call_, /*may_stream=*/true, infer);
  });
  if (!prepared.ok()) return respond(std::move(prepared), {});
  if (infer.rows.empty()) {
    return respond(guarded([&] {
                     write_end(infer, *response_.mutable_infer_response());
                     return grpc::Status::OK;
                   }),
                   {});
  }
  grpc::Status started =
      guarded([&] { return infer.request->streams ? run_streamed(infer) : run(infer); });
  if (started.ok()) return;
  infer.rows.clear();  // gives its session back
  sequences_.end_if_last(infer.sequence, /*ended_well=*/false);
  forget();
  respond(std::move(started), {});
}

grpc::Status ModelStreamInferCall::read(inference::ModelInferRequest& wire) {
  id_.clear();
  asks_for_stream_ = false;
  grpc::Status read = request_.read(bounds_of(context_.gate, Method::kModelStreamInfer), wire);
  if (!read.ok()) return read;
  id_ = wire.id();
  asks_for_stream_ = wire.parameters().contains("stream");
  return read;
}

grpc::Status ModelStreamInferCall::run(PreparedInference& infer) {
  const std::shared_ptr<RowGatherer> rows = new_row_gatherer(
      sequences_, infer, *response_.mutable_infer_response(),
      [this](grpc::Status ended, ValueUse used) { respond(std::move(ended), used); });
  if (!take_on({rows, nullptr})) return cancelled();
  rows->begin(std::move(infer.rows));
  return grpc::Status::OK;
}

grpc::Status ModelStreamInferCall::run_streamed(PreparedInference& infer) {
  PreparedGeneration& row = infer.rows.front();
  TokenOutbox::Options options;
  options.chunk_interval = context_.streaming.chunk_interval_ms;
  options.outbox_tokens = context_.streaming.outbox_tokens;
  options.top_log2_probs = static_cast<int>(infer.request->top_log2_probs);
  options.max_tokens_per_message = row.checked.max_tokens_per_message;
  options.tells_sample_ends =
      infer.request->log2_evidence || infer.request->tells_position || infer.request->window > 0;
  if (row.durable != nullptr) options.session_id = row.lease.session_id();
  options.session_is_stored = row.durable != nullptr;
  const auto outbox = std::make_shared<TokenOutbox>(static_cast<TokenWire&>(*this), row.model,
                                                    context_.clock, calls_, std::move(options));
  streamed_.emplace(infer.request, infer.head);
  sequence_ = infer.sequence;
  if (!take_on({nullptr, outbox})) return cancelled();
  if (row.past) {  // it has been run
    outbox->tell(std::move(row.past));
    return grpc::Status::OK;
  }
  return outbox->submit(std::move(row.checked.request), std::move(row.lease), row.durable);
}

void ModelStreamInferCall::write(std::span<const OutboxEntry> entries) {
  streamed_->fill(entries, /*is_last=*/false);
  StartWrite(&streamed_->message());
}

void ModelStreamInferCall::end(std::span<const OutboxEntry> entries, grpc::Status status,
                               ValueUse used) {
  if (!status.ok() && errors_are_statuses_) return gone(std::move(status), used);
  if (sequence_.is_stored) sequences_.end_if_last(sequence_, status.ok());
  status.ok() ? streamed_->fill(entries, /*is_last=*/true) : streamed_->fill(status);
  call_.scope.note_use(used);
  writes_last_ = true;
  StartWrite(&streamed_->message());
}

void ModelStreamInferCall::gone(grpc::Status status, ValueUse used) noexcept {
  if (streamed_ && sequence_.is_stored) sequences_.end_if_last(sequence_, /*ended_well=*/false);
  call_.scope.note_use(used);
  active_.leave();
  finish(std::move(status));
}

void ModelStreamInferCall::OnWriteDone(bool ok) {
  if (streamed_ && !writes_last_) {
    const std::shared_ptr<TokenOutbox> outbox = [&] {
      MutexLock lock(mutex_);
      return running_.outbox;
    }();
    return outbox->written(ok);
  }
  forget();
  response_ = {};  // clearing it would keep its memory
  active_.leave();
  if (!ok) return finish(cancelled());
  StartRead(&request_);
}

void ModelStreamInferCall::OnCancel() {
  Running running;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    running = running_;
  }
  if (running.rows != nullptr) running.rows->cancel();
  if (running.outbox != nullptr) running.outbox->gone();
}

void ModelStreamInferCall::OnDone() {
  ActiveCalls& calls = calls_;
  call_.end(status_);
  delete this;
  calls.release();
}

void ModelStreamInferCall::respond(grpc::Status status, ValueUse used) {
  if (!status.ok() && errors_are_statuses_) return gone(std::move(status), used);
  call_.scope.note_use(used);
  if (!status.ok()) {
    grpc::Status written = guarded([&] {
      response_.Clear();
      response_.set_error_message(status.error_message());
      response_.mutable_infer_response()->set_id(std::exchange(id_, {}));
      // A client that waits for the last response of this request has it.
      if (asks_for_stream_) mark_final(*response_.mutable_infer_response(), true);
      return grpc::Status::OK;
    });
    if (!written.ok()) {  // no memory to say so in a message: the stream says it by its end
      active_.leave();
      return finish(std::move(written));
    }
  }
  StartWrite(&response_);
}

bool ModelStreamInferCall::is_cancelled() {
  MutexLock lock(mutex_);
  return cancelled_;
}

bool ModelStreamInferCall::take_on(Running running) {
  MutexLock lock(mutex_);
  if (!cancelled_) running_ = std::move(running);
  return !cancelled_;
}

void ModelStreamInferCall::forget() {
  streamed_.reset();
  writes_last_ = false;
  Running last;  // freed without the mutex
  MutexLock lock(mutex_);
  std::swap(last, running_);
}

void ModelStreamInferCall::finish(grpc::Status status) {
  status_ = copy_of(status);
  call_.finish({});
  Finish(std::move(status));
}

}  // namespace lintel
