#include "server/v1/generation_service.h"

#include <algorithm>
#include <utility>

#include "server/call/status.h"
#include "server/call/unary_call.h"
#include "server/requests/prepare_generation.h"
#include "server/requests/resolve_model.h"
#include "server/requests/score_checks.h"
#include "server/stream/outcome_status.h"
#include "server/stream/refusals.h"
#include "server/v1/generate_stream.h"
#include "server/v1/score_stream.h"

namespace lintel {
namespace {

// A call that is over before it began.
template <typename Response>
class RefusedCall final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedCall(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

GenerationService::GenerationService(const ServiceContext& context) : context_(context) {
  serve(info_of(Method::kGenerate).name, this, &GenerationService::Generate);
  serve(info_of(Method::kScore).name, this, &GenerationService::Score);
}

grpc::Status GenerationService::generate(const grpc::CallbackServerContext& call,
                                         const v1::GenerateRequest& wire,
                                         std::unique_ptr<CallScope>& scope,
                                         grpc::ServerWriteReactor<v1::GenerateResponse>** reactor) {
  const grpc::Status begins = scope->check_tokens();
  if (!begins.ok()) return begins;
  PreparedGeneration prepared;
  const grpc::Status checked = prepare_generation(context_, scope->caller().name, wire,
                                                  call_deadline(call, context_.clock), prepared);
  if (prepared.model != nullptr) scope->set_model(prepared.model->name);
  if (!checked.ok()) return checked;
  const SharedModel& model = prepared.model;
  GenerationRequest& request = prepared.checked.request;
  request.allowance = scope->allowance();

  GenerateStream::Options options;
  options.chunk_interval = context_.streaming.chunk_interval_ms;
  options.outbox_tokens = context_.streaming.outbox_tokens;
  options.max_tokens_per_message = prepared.checked.max_tokens_per_message;
  options.num_samples = request.num_samples;
  options.top_log2_probs = request.top_log2_probs;
  options.deadline_is_calls = prepared.deadline_is_calls;
  options.session_id = wire.session_id();
  const auto stream =
      std::make_shared<GenerateStream>(model, context_.clock, context_.calls, std::move(options));
  *reactor = stream->start(context_.calls, scope);
  if (*reactor == nullptr) return shutting_down();
  // From here on the call is the stream's to finish.
  grpc::Status submitted = guarded([&]() -> grpc::Status {
    const Scheduler::SubmitResult result =
        model->scheduler->submit(std::move(request), std::move(prepared.lease), stream);
    if (result.error == Scheduler::SubmitError::kDraining) return stopped_status(*model);
    if (result.error == Scheduler::SubmitError::kQueueFull) {
      return queue_full(model->scheduler->options().max_queued_requests,
                        model->scheduler->options().max_queued_bytes);
    }
    stream->attach(result.handle);
    return grpc::Status::OK;
  });
  if (!submitted.ok()) stream->refuse(std::move(submitted));
  return grpc::Status::OK;
}

grpc::Status GenerationService::score(const grpc::CallbackServerContext& call,
                                      const v1::ScoreRequest& wire,
                                      std::unique_ptr<CallScope>& scope,
                                      grpc::ServerWriteReactor<v1::ScoreResponse>** reactor) {
  grpc::Status status = scope->check_tokens();
  if (!status.ok()) return status;
  const SharedModel model = resolve_model(wire.model(), context_.models, &status);
  if (model == nullptr) return status;
  scope->set_model(model->name);
  Violations violations;
  ScoreSequences sequences =
      check_score(wire, model->transformer->config(), model->limits, violations);
  if (!violations.empty()) return violations.status();

  const Scheduler::Options& scheduling = model->scheduler->options();
  ScoreStream::Options options;
  // Enough to fill every worker twice, and never more than half of the queue.
  const int window = std::min(2 * scheduling.max_batch_rows * std::max(scheduling.workers, 1),
                              scheduling.max_queued_requests / 2);
  options.window = static_cast<std::size_t>(std::max(window, 1));
  options.max_queued_requests = scheduling.max_queued_requests;
  options.max_queued_bytes = scheduling.max_queued_bytes;
  options.held_bytes =
      sequences.values.size() * sizeof(std::int32_t) / std::max<std::size_t>(sequences.size(), 1);
  options.allowance = scope->allowance();
  options.owner = scope->caller().name;
  options.deadline = call_deadline(call, context_.clock);
  const auto stream =
      std::make_shared<ScoreStream>(model, context_.store, std::move(sequences), options);
  *reactor = stream->start(context_.calls, scope);
  if (*reactor == nullptr) return shutting_down();
  grpc::Status begun = guarded([&] { return stream->begin(); });
  if (!begun.ok()) stream->refuse(std::move(begun));
  return grpc::Status::OK;
}

template <typename Response, typename Body>
grpc::ServerWriteReactor<Response>* GenerationService::stream(grpc::CallbackServerContext& call,
                                                              Method method, Body body) {
  auto scope = std::make_unique<CallScope>(context_.gate, call, method);
  const LogFields log_fields = scope->log_fields();  // a copy: the body may give the scope away
  const LogScope log(log_fields);
  grpc::ServerWriteReactor<Response>* reactor = nullptr;
  grpc::Status status = scope->admitted();
  if (status.ok()) {
    status = guarded([&]() -> grpc::Status {
      if (context_.calls.closed()) return shutting_down();
      if (grpc::Status entered = scope->enter_stream(); !entered.ok()) return entered;
      return body(scope, &reactor);
    });
  }
  if (reactor != nullptr) return reactor;
  scope->end(status);
  return new RefusedCall<Response>(status);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(
    grpc::CallbackServerContext* call, const Received<v1::GenerateRequest>* request) {
  return stream<v1::GenerateResponse>(
      *call, Method::kGenerate, [&](auto& scope, auto** reactor) -> grpc::Status {
        v1::GenerateRequest wire;  // gone when the stream begins
        const grpc::Status read = request->read(bounds_of(context_.gate, Method::kGenerate), wire);
        return read.ok() ? generate(*call, wire, scope, reactor) : read;
      });
}

grpc::ServerWriteReactor<v1::ScoreResponse>* GenerationService::Score(
    grpc::CallbackServerContext* call, const Received<v1::ScoreRequest>* request) {
  return stream<v1::ScoreResponse>(
      *call, Method::kScore, [&](auto& scope, auto** reactor) -> grpc::Status {
        v1::ScoreRequest wire;  // gone when the stream begins
        const grpc::Status read = request->read(bounds_of(context_.gate, Method::kScore), wire);
        return read.ok() ? score(*call, wire, scope, reactor) : read;
      });
}

}  // namespace lintel
